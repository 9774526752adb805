"""Filters of a query that narrow what is read: on offset, partition and timestamp.

    WHERE partition = 3 AND offset >= 1000 AND offset < 2000        one task, a thousand records
    WHERE timestamp >= '2026-01-01'                                  starts where the first such record lies

Bounds on offset and partition are kept exactly, so Spark need not look at the rows again. A lower bound on
the timestamp is looked up in the brokers' time index: everything before the answer is older, but what
follows may be older, too, so Spark filters once more. An upper bound on the timestamp cuts nothing, because
a later record may carry an earlier time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidemill.spark.source.offsets import LARGEST_OFFSET, OffsetRange, PartitionOffsets

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Bounds(NamedTuple):
    """What the filters of a query leave: offsets from `first` up to `end`, these partitions, times from `since_ms`."""

    first: int = 0
    end: int = LARGEST_OFFSET
    partitions: frozenset[int] | None = None
    since_ms: int | None = None

    def narrow(
        self, ranges: Iterable[OffsetRange], offsets_at: Callable[[PartitionOffsets], PartitionOffsets]
    ) -> list[OffsetRange]:
        """The ranges within these bounds; `offsets_at` looks up the first offset at or after a time (-1: none)."""
        kept = [
            each._replace(start=max(each.start, self.first), end=min(each.end, self.end))
            for each in ranges
            if self.partitions is None or each.where.partition in self.partitions
        ]
        kept = [each for each in kept if each.size > 0]
        if self.since_ms is None or not kept:
            return kept
        found = offsets_at({each.where: self.since_ms for each in kept})
        late = (
            each._replace(start=max(each.start, found[each.where])) for each in kept if found[each.where] >= 0
        )
        return [each for each in late if each.size > 0]

    def offset(self, first: int, end: int) -> Bounds:
        return self._replace(first=max(self.first, first), end=min(self.end, end))

    def only(self, partitions: Iterable[int]) -> Bounds:
        wanted = frozenset(partitions)
        return self._replace(partitions=wanted if self.partitions is None else self.partitions & wanted)

    def since(self, value: Any) -> Bounds:
        milliseconds = _milliseconds(value)
        return self._replace(since_ms=max(self.since_ms or 0, milliseconds))


def take_filters(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds that these filters make, and those of them that Spark still has to apply."""
    bounds, left = Bounds(), []
    for each in filters:
        attribute = getattr(each, "attribute", None)
        taken = None
        if attribute == ("offset",):
            taken = _offset_bounds(bounds, each)
        elif attribute == ("partition",):
            taken = _partition_bounds(bounds, each)
        elif attribute == ("timestamp",) and isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo):
            bounds = bounds.since(each.value)
        if taken is None:
            left.append(each)
        else:
            bounds = taken
    return bounds, left


def _offset_bounds(bounds: Bounds, each: Filter) -> Bounds | None:
    if isinstance(each, EqualTo):
        return bounds.offset(each.value, each.value + 1)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return bounds.offset(each.value + isinstance(each, GreaterThan), LARGEST_OFFSET)
    if isinstance(each, LessThan | LessThanOrEqual):
        return bounds.offset(0, each.value + isinstance(each, LessThanOrEqual))
    return None


def _partition_bounds(bounds: Bounds, each: Filter) -> Bounds | None:
    if isinstance(each, EqualTo):
        return bounds.only([each.value])
    return bounds.only(each.value) if isinstance(each, In) else None


def _milliseconds(value: datetime.datetime) -> int:
    """Since the epoch, rounded down: a bound between two milliseconds must not pass over the first."""
    zoned = value if value.tzinfo is not None else value.astimezone()
    return max((zoned - _EPOCH) // datetime.timedelta(milliseconds=1), 0)
