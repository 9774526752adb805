"""Reading: from an offset, a timestamp or an epoch to bytes of a file.

A read hands out no data, only (file, position, length); `sendfile` moves the bytes. Where an offset lies is
mostly known: consumers ask next for the offset at which the last slice ended, and the batches appended last
are remembered too. Otherwise: bisection for the segment, the offset index, and a scan of batch headers within
one index interval.

The end of a slice is the smallest of: the end of the segment, the batch that reaches `limit_offset`, and
`max_bytes`. There the offset index says where the last whole batch ends; Kafka cuts it in two instead, and half of
what a reader of large batches receives is thrown away and asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.files import OpenFile
from tidemill.storage.batch_scan import DamagedBatch
from tidemill.storage.epoch_check import epochs_agree, epochs_of_batches
from tidemill.storage.log_state import LogSlice, LogState
from tidemill.storage.proof import Proof, require_no_hidden_batch
from tidemill.storage.segment import LOG_SUFFIX, Segment
from tidemill.storage.timestamps import TimestampedBatch
from tidemill.storage.transaction_index import AbortedTransaction, collect
from tidemill.storage.transaction_walk import TransactionWalk, believe_file
from tidemill.wire.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_prefix

logger = logging.getLogger(__name__)

MOST_STEPS = 1
"""Of a check of transaction indexes, in one read."""
NO_LIMIT = -1
MOST_WALKS = 8
MAX_OFFSET = (1 << 63) - 1

EXPANSION_LIMIT = 16
"""How many times `max.message.bytes` a batch may unpack to before it is not looked into."""


class CommittedSlice(NamedTuple):
    records: LogSlice
    aborted: list[AbortedTransaction]


class ReadableLog(LogState):
    """The reading half of a log."""

    __slots__ = ()

    # -- by offset ------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, min_one_batch: bool = True
    ) -> LogSlice | None:
        """Bytes from the batch with this offset on, below `limit_offset`; None if there are none yet.

        With `min_one_batch` the first batch is whole, even if it is larger than `max_bytes`; without, a first
        batch that does not fit gives a slice of length 0.
        """
        if self._failure is not None:
            self.require_online()
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise self._out_of_range(offset)
        if limit_offset > end_offset:
            limit_offset = end_offset
        if offset >= limit_offset:
            return None
        place = self._positions.get(offset)
        if place is None:
            place = self._locate(offset)
            if place is None:
                return None
            self._remember(offset, *place)
        segment, position = place
        length = (
            segment.size if limit_offset >= segment.next_offset else self._end(segment, limit_offset)
        ) - position
        if length <= 0:
            return None
        file = segment.file
        if file is None:
            file = segment.handle()
        else:
            segment.recently_used = True
        if length > max_bytes:
            length = _cut(segment, file, position, max_bytes, min_one_batch)
        if segment.proof is not None and position < segment.proof.end:
            length = self._prove(segment, segment.proof, position, length)
        return LogSlice(file, position, length)

    def _prove(self, segment: Segment, proof: Proof, position: int, length: int) -> int:
        """How much of this slice may be served: what an earlier process wrote is checked first (`proof`)."""
        try:
            sound = proof.prove(
                segment.handle(),
                position,
                position + length,
                segment.next_offset,
                self._epochs.epoch_for_offset,
            )
        except DamagedBatch as error:
            if error.position not in proof.reported:
                proof.reported.add(error.position)
                logger.error("%s is damaged and not served: %s", segment.path(LOG_SUFFIX), error)
            raise self._damaged(error) from error
        if proof.is_complete:
            segment.finish_proof()
        return min(length, sound - position)

    def _out_of_range(self, offset: int) -> ApiError:
        return ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}] of {self.topic_partition}",
        )

    def _end(self, segment: Segment, limit_offset: int) -> int:
        """Where the batch that reaches the limit begins, in a segment that goes beyond it."""
        place = self._positions.get(limit_offset)
        if place is None:
            place = self._locate(limit_offset)
            if place is None:
                return segment.size
            self._remember(limit_offset, *place)
        return place[1] if place[0] is segment else segment.size

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """(segment, position) of the first batch that reaches this offset."""
        segment: Segment | None = self._segments.floor(offset)
        try:
            while segment is not None:
                position = segment.position_of(offset)
                if position >= 0:
                    self._check_passed_over(segment, position, offset)
                    return segment, position
                segment = self._segments.after(segment)
        except DamagedBatch as error:
            raise self._damaged(error) from error
        return None

    def _check_passed_over(self, found: Segment, position: int, offset: int) -> None:
        """A batch was found after the offset: was there none at it, or one whose header is damaged?"""
        first = self._segments.floor(offset)
        if first.proof is None or read_prefix(found.handle().read(position, LOG_OVERHEAD))[0] <= offset:
            return
        for segment in self._segments.from_offset(offset):
            start = max(segment.last_batch_before(offset), 0)
            end = position if segment is found else segment.size
            least_offset = segment.base_offset if start == 0 else 0
            require_no_hidden_batch(segment.handle(), start, end, least_offset)
            if segment is found:
                return

    def _damaged(self, error: DamagedBatch) -> ApiError:
        return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition}: {error}")

    # -- transactions ---------------------------------------------------------------------------------

    def committed(self, records: LogSlice, offset: int, end_offset: int) -> CommittedSlice | None:
        """The aborted transactions that touch this slice, which was read from `offset` on (and may be shortened).

        None if they are not known yet: each call comes nearer to it.
        """
        segment = self._segment_of(records, offset)
        end = records.position + records.length
        plain_end = segment.plain_end
        if records.position < plain_end:
            return CommittedSlice(records._replace(length=min(end, plain_end) - records.position), [])
        bound = self.offset_bound(records, offset)
        aborted = self._find_aborted(offset, min(end_offset, bound), MOST_STEPS)
        return CommittedSlice(records, aborted) if aborted is not None else None

    def offset_bound(self, records: LogSlice, offset: int) -> int:
        """An offset at or after the end of this slice; near it, not exact."""
        segment = self._segment_of(records, offset)
        return segment.offset_bound(records.position + records.length) or segment.next_offset

    def _segment_of(self, records: LogSlice, offset: int) -> Segment:
        """Where a slice lies: mostly where its offset should, but compaction may have left nothing there."""
        for segment in self._segments.from_offset(offset):
            if segment.file is records.file:
                return segment
        return self._segments.active

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those whose records touch [start, end), however long it takes to find them."""
        found = self._find_aborted(start_offset, end_offset, NO_LIMIT)
        assert found is not None
        return found

    def knows_aborted(self, start_offset: int, end_offset: int) -> bool:
        """One step nearer to an answer of `aborted_transactions` that takes no time."""
        return self._find_aborted(start_offset, end_offset, MOST_STEPS) is not None

    def _find_aborted(self, start: int, end: int, most_steps: int) -> list[AbortedTransaction] | None:
        found: list[AbortedTransaction] = []
        for segment in self._segments.from_offset(start):
            index = segment.transaction_index
            is_ours = start >= self._found_end and not index.is_checked
            entries = index.added if is_ours else self._aborted_in(segment, end, most_steps)
            if entries is None:
                return None
            touching, is_last = collect(entries, start, end)
            found += touching
            if is_last or index.stable_after >= end or not (is_ours or index.is_checked):
                break
        return found

    def _aborted_in(
        self, segment: Segment, end_offset: int, most_steps: int
    ) -> Sequence[AbortedTransaction] | None:
        """The entries of this segment, or those that matter to a reader below an offset which is decided."""
        index = segment.transaction_index
        if index.is_checked:
            return index.entries
        walk = self._walk_to(segment)
        try:
            while not (walk.segment is segment and walk.stable_offset >= end_offset):
                if most_steps == 0:
                    return None
                most_steps -= 1
                walk.step(self._segments)
                if index.is_checked:
                    return index.entries
        except DamagedBatch as error:
            self._walks.remove(walk)
            if not believe_file(segment, walk):
                raise self._damaged(error) from error
            return index.entries
        return walk.entries

    def _walk_to(self, segment: Segment) -> TransactionWalk:
        """The check that is nearest before this segment; a new one if a snapshot lies nearer."""
        base = segment.base_offset
        nearest = max((offset for offset in self._snapshots.offsets if offset <= base), default=0)
        for walk in self._walks:
            is_before = nearest <= walk.segment.base_offset < base and walk.segment in self._segments
            if is_before or (walk.segment is segment and walk.is_whole):
                return walk
        try:
            walk = TransactionWalk(self._segments, self._snapshots, segment, self.log_start_offset)
        except DamagedBatch as error:
            raise self._damaged(error) from error
        self._walks = [walk, *self._walks[: MOST_WALKS - 1]]
        return walk

    def _check_transactions(self, segment: Segment) -> None:
        """Before its index is changed: the whole of it must be right."""
        if not segment.transaction_index.is_checked:
            self._aborted_in(segment, MAX_OFFSET, NO_LIMIT)

    # -- by timestamp ---------------------------------------------------------------------------------

    def batch_for_timestamp(self, timestamp: int, from_offset: int = 0) -> TimestampedBatch | None:
        """The first batch that holds, or claims to hold, such a message; looked into elsewhere, as it may be large."""
        self.require_online()
        start = max(from_offset, self.log_start_offset)
        try:
            for segment in self._segments:
                if segment.next_offset > start and segment.max_timestamp >= timestamp:
                    for position, header in segment.locate_timestamp(timestamp):
                        if header.max_timestamp >= timestamp and header.last_offset >= start:
                            return self._timestamped(segment, position, header)
        except DamagedBatch as error:
            raise self._damaged(error) from error
        return None

    def _timestamped(self, segment: Segment, position: int, header: BatchHeader) -> TimestampedBatch:
        data = b"" if header.is_log_append_time else segment.read_batch(position, header)
        limit_bytes = EXPANSION_LIMIT * self._config.max_message_bytes
        return TimestampedBatch(header, data[HEADER_SIZE:], limit_bytes, self.log_start_offset)

    def batch_of_max_timestamp(self) -> TimestampedBatch | None:
        """The first batch with the largest timestamp."""
        self.require_online()
        candidates = [segment for segment in self._segments if segment.size and segment.max_timestamp >= 0]
        if not candidates:
            return None
        segment = max(candidates, key=lambda candidate: candidate.max_timestamp)
        return self.batch_for_timestamp(segment.max_timestamp)

    # -- by epoch -------------------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch not above this one, where it ends); (-1, -1) if unknown."""
        self._check_epochs()
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        self._check_epochs()
        return self._epochs.epoch_for_offset(offset)

    def _check_epochs(self) -> None:
        """Before the first answer that a truncation may follow: does the file agree with the batches?"""
        if self._epochs_checked:
            return
        start, end = self.log_start_offset, self.log_end_offset
        entries = [entry for entry in self._epochs.entries if entry.start_offset < end]
        try:
            if not epochs_agree(entries, self._segments, start, end):
                self._epochs.replace(epochs_of_batches(self._segments, start))
        except DamagedBatch as error:
            raise self._damaged(error) from error
        self._epochs_checked = True


def _cut(segment: Segment, file: OpenFile, position: int, max_bytes: int, min_one_batch: bool) -> int:
    """How many bytes to give where more are there: whole batches if the index knows where one ends."""
    first_size = read_prefix(file.read(position, LOG_OVERHEAD))[1]
    if first_size > max_bytes:
        return first_size if min_one_batch else 0
    end = segment.last_batch_start(position + max_bytes)
    return end - position if end > position else max_bytes
