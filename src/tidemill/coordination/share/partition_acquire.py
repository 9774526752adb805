"""Acquiring: one walk over the batches that the log gave, taking what is available.

    position                                     what happens to it
    the log skips it (compaction)                archived where it was available or never seen; held ones stay
    in a batch that nobody may see               the same
    in flight and available                      acquired again, unless the walk must end before it
    never in flight                              acquired, while the partition has room

Batches are taken whole, so that `max_records` is where the walk *ends*, not where it cuts; only a member that asks for
an exact number gets one. Suspect records (see `partition`) are never mixed with others: the walk ends before them, or
takes a part of them and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.coordination.share.partition_contract import AcquiredRange, FetchedBatch, ShareLimits, Wish
from tidemill.coordination.share.partition_runs import RecordState, Run

if TYPE_CHECKING:
    from tidemill.coordination.share.partition import SharePartition

LEAST_LIMIT_TO_ISOLATE = 3
"""With fewer deliveries allowed than this the last one is not made alone: it would be the first or the second."""


class Acquisition:
    """One call of `acquire`."""

    __slots__ = ("_due_ms", "_is_over", "_limits", "_partition", "_ranges", "_taken", "_wish")

    def __init__(self, partition: SharePartition, wish: Wish, limits: ShareLimits, due_ms: int) -> None:
        self._partition = partition
        self._wish = wish
        self._limits = limits
        self._due_ms = due_ms
        self._ranges: list[AcquiredRange] = []
        self._taken = 0
        self._is_over = wish.max_records <= 0

    @property
    def _remaining(self) -> int:
        return self._wish.max_records - self._taken

    def take(self, fetch_offset: int, batches: Iterable[FetchedBatch]) -> list[AcquiredRange]:
        partition = self._partition
        position = max(fetch_offset, partition.start_offset)
        for batch in batches:
            if self._is_over:
                break
            if batch.base_offset > position:
                self._pass_over(position, batch.base_offset - 1)
            first = max(position, batch.base_offset)
            if first > batch.last_offset:
                continue
            if batch.is_hidden:
                self._pass_over(first, batch.last_offset)
            else:
                self._take_known(first, batch.last_offset)
                self._take_new(first, batch.last_offset)
            position = batch.last_offset + 1
            self._is_over = self._is_over or self._remaining <= 0
        return self._ranges

    def _pass_over(self, first: int, last: int) -> None:
        self._partition.archive_available(first, last)
        self._partition.track_until(last + 1, RecordState.ARCHIVED)

    def _take_known(self, first: int, last: int) -> None:
        partition = self._partition
        for run in partition.runs.between(first, last):
            if run.state is not RecordState.AVAILABLE:
                continue
            low, high = max(first, run.first), min(last, run.last)
            if run.delivery_count >= self._limits.suspect_delivery_count:
                self._is_over = True
                if self._ranges:
                    return
                high = min(high, low + self._suspect_allowance(run) - 1)
            if self._wish.is_exact:
                high = min(high, low + self._remaining - 1)
            if low <= high:
                self._lock(partition.runs.cut(low, high)[0])
            if self._is_over or (self._wish.is_exact and self._remaining <= 0):
                return

    def _suspect_allowance(self, run: Run) -> int:
        limits = self._limits
        if (
            limits.delivery_count_limit >= LEAST_LIMIT_TO_ISOLATE
            and run.delivery_count >= limits.delivery_count_limit - 1
        ):
            return 1
        return max(1, run.batch_size >> (run.delivery_count - limits.suspect_delivery_count + 1))

    def _take_new(self, first: int, last: int) -> None:
        partition = self._partition
        first = max(first, partition.next_offset)
        room = self._limits.max_record_locks - partition.in_flight
        if self._is_over or first > last:
            return
        if room <= 0:
            self._is_over = True
            return
        wanted = last
        if self._wish.is_exact:
            last = min(last, first + min(room, self._remaining) - 1)
        if first <= last:
            self._lock_new(first, last)
        self._is_over = last < wanted  # what lies behind must not be passed over

    def _lock_new(self, first: int, last: int) -> None:
        """A new run, or the end of the one before it, where both are told to the member as one range."""
        partition = self._partition
        tail = partition.runs.tail if partition.runs else None
        if tail is not None and self._ranges and self._continues(first, 1) and tail.last + 1 == first:
            tail.last = last
            tail.batch_size += last - first + 1
            partition.next_offset = last + 1
            self._tell(first, last, 1)
            return
        run = Run(first, last, RecordState.AVAILABLE, 0)
        partition.track(run)
        self._lock(run)

    def _lock(self, run: Run) -> None:
        run.lock(self._wish.member_id, self._due_ms)
        self._tell(run.first, run.last, run.delivery_count)

    def _tell(self, first: int, last: int, delivery_count: int) -> None:
        self._taken += last - first + 1
        if self._continues(first, delivery_count):
            self._ranges[-1] = self._ranges[-1]._replace(last_offset=last)
        else:
            self._ranges.append(AcquiredRange(first, last, delivery_count))

    def _continues(self, first: int, delivery_count: int) -> bool:
        """Whether this is the same range to the member; ranges of its favourite size are left alone."""
        if not self._ranges:
            return False
        before = self._ranges[-1]
        return (
            before.last_offset + 1 == first
            and before.delivery_count == delivery_count
            and (self._wish.is_exact or before.size < self._wish.batch_size)
        )
