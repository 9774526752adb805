"""The segments of a log in order of their base offsets, found by bisection.

    segments with base offsets 0, 500, 900:   floor(499) is the first, floor(500) the second

The last one is the active segment, the only one that is written. There is always one, except for a moment
while a log is truncated to nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from tidemill.storage.segment import Segment

_base_offset = attrgetter("base_offset")


class Segments:
    """An ordered map from base offsets to segments."""

    __slots__ = ("_ordered",)

    def __init__(self, segments: list[Segment]) -> None:
        self._ordered = sorted(segments, key=_base_offset)

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, segment: Segment) -> bool:
        return self.floor(segment.base_offset) is segment

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._ordered)

    @property
    def first(self) -> Segment:
        return self._ordered[0]

    @property
    def active(self) -> Segment:
        return self._ordered[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._ordered)

    def add(self, segment: Segment) -> None:
        place = bisect_right(self._ordered, segment.base_offset, key=_base_offset)
        assert place == 0 or self._ordered[place - 1].base_offset < segment.base_offset, (
            "base offsets are unique"
        )
        self._ordered.insert(place, segment)

    def discard(self, segment: Segment) -> None:
        self._ordered.remove(segment)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that may hold this offset, and all after it."""
        return self._ordered[max(0, bisect_right(self._ordered, offset, key=_base_offset) - 1) :]

    def floor(self, offset: int) -> Segment:
        """The segment that may hold this offset."""
        last = self._ordered[-1]
        if offset >= last.base_offset:
            return last
        return self._ordered[max(0, bisect_right(self._ordered, offset, key=_base_offset) - 1)]

    def after(self, segment: Segment) -> Segment | None:
        place = bisect_right(self._ordered, segment.base_offset, key=_base_offset)
        return self._ordered[place] if place < len(self._ordered) else None

    @property
    def base_offsets(self) -> set[int]:
        return {segment.base_offset for segment in self._ordered}

    def inactive(self) -> list[Segment]:
        return self._ordered[:-1]
