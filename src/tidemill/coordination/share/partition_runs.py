"""The in-flight records of a share partition as runs: neighbouring offsets that share one state.

A batch of 500 records that one member has acquired is one run, not 500 entries. When the member rejects the record in
the middle, the run is cut in three; no other offset is touched:

    [100 .. 599 acquired]   ->   [100 .. 349 acquired] [350 archived] [351 .. 599 acquired]

So memory follows the number of *differences* between neighbours, never the number of records, and a run that is never
cut costs the same whether it holds one record or a thousand.

Runs follow each other without a hole: `runs[i].last + 1 == runs[i + 1].first`. Finding an offset is a bisection;
cutting inserts into a list, which is a move of at most a few thousand pointers because a partition limits how many
records it has in flight.

Limits: a run that waits for a write (`next_state` is set) may lose its head, when the log loses its oldest records,
but is never cut in two: the write that it waits for knows it as one.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

_first_offset = attrgetter("first")


class RecordState(enum.IntEnum):
    """As in Kafka's share state records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


NO_MEMBER = ""
NEVER_LOCKED_MS = -1


class Run:
    """Offsets `first` to `last`, both included, that were delivered together and share their state."""

    __slots__ = (
        "batch_size", "delivery_count", "first", "last", "lock_due_ms", "member_id", "next_state", "state",
    )  # fmt: skip

    def __init__(self, first: int, last: int, state: RecordState, delivery_count: int) -> None:
        assert first <= last
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        """Who holds it; set only while it is acquired."""
        self.lock_due_ms = NEVER_LOCKED_MS
        self.next_state: RecordState | None = None
        """What it becomes once a write under way is done; until then nobody else may change it."""
        self.batch_size = last - first + 1
        """How many records it was first delivered with; kept by the parts when it is cut."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def lock(self, member_id: str, due_ms: int) -> None:
        self.state = RecordState.ACQUIRED
        self.member_id = member_id
        self.lock_due_ms = due_ms
        self.delivery_count += 1

    def become(self, state: RecordState) -> None:
        """Leave the acquired state (or be archived by the broker)."""
        self.state = state
        self.next_state = None
        self.member_id = NO_MEMBER
        self.lock_due_ms = NEVER_LOCKED_MS

    def split(self, offset: int) -> Run:
        """Keep what lies before this offset; the rest becomes a run of its own."""
        assert self.first < offset <= self.last and self.next_state is None
        rest = Run(offset, self.last, self.state, self.delivery_count)
        rest.member_id, rest.lock_due_ms, rest.batch_size = self.member_id, self.lock_due_ms, self.batch_size
        self.last = offset - 1
        return rest

    def __repr__(self) -> str:
        waiting = f" -> {self.next_state.name}" if self.next_state is not None else ""
        return (
            f"[{self.first}..{self.last} {self.state.name}{waiting} x{self.delivery_count} {self.member_id}]"
        )


class Runs:
    """All runs of a partition, in order, without holes."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def head(self) -> Run:
        return self._runs[0]

    @property
    def tail(self) -> Run:
        return self._runs[-1]

    def append(self, run: Run) -> None:
        assert not self._runs or self._runs[-1].last + 1 == run.first
        self._runs.append(run)

    def between(self, first: int, last: int) -> list[Run]:
        """The runs that touch these offsets."""
        found = []
        for run in self.starting_at(first):
            if run.first > last:
                break
            found.append(run)
        return found

    def starting_at(self, offset: int) -> Iterator[Run]:
        """From the run that holds this offset on, or from the first one after it."""
        index = max(0, self._index_of(offset))
        runs = self._runs
        while index < len(runs):
            if runs[index].last >= offset:
                yield runs[index]
            index += 1

    def cut(self, first: int, last: int) -> list[Run]:
        """Runs that cover exactly these offsets (as far as there are any), cut at both ends if need be."""
        low = self._cut_before(first)
        high = self._cut_before(last + 1)
        return self._runs[low:high]

    def join_final(self, first: int, last: int) -> None:
        """Runs in and next to these offsets that are done with, and agree in everything, become one."""
        index = max(0, self._index_of(first - 1))
        runs = self._runs
        while index + 1 < len(runs) and runs[index + 1].first <= last + 1:
            left, right = runs[index], runs[index + 1]
            if (
                left.state.is_final
                and left.state is right.state
                and left.delivery_count == right.delivery_count
            ):
                left.last = right.last
                del runs[index + 1]
            else:
                index += 1

    def drop_before(self, offset: int) -> None:
        """Forget everything below this offset."""
        keep = max(0, self._index_of(offset))
        if keep < len(self._runs) and self._runs[keep].last < offset:
            keep += 1
        del self._runs[:keep]
        if self._runs and self._runs[0].first < offset:
            self._runs[0].first = offset

    def _index_of(self, offset: int) -> int:
        """Of the last run that begins at or before this offset; -1 if all begin later."""
        return bisect_right(self._runs, offset, key=_first_offset) - 1

    def _cut_before(self, offset: int) -> int:
        """The index of the first run at or after this offset, after a run that holds it in the middle is cut."""
        index = self._index_of(offset)
        if index < 0:
            return 0
        run = self._runs[index]
        if run.first == offset:
            return index
        if offset <= run.last:
            self._runs.insert(index + 1, run.split(offset))
        return index + 1
