"""Appending: as leader one batch from a producer, as follower what the leader wrote.

Order of a leader's append, and why. Everything that may fail comes before the batch is in the log, everything
after it only changes memory:

    1  producer state is asked: refuse, or recognise a duplicate
    2  a new leader epoch is noted (file replaced)
    3  the next segment begins, if the active one is full
    4  an abort is noted in the transaction index
    5  the batch is stamped (offset, epoch, append time) and written; if that fails, the file is cut back
    6  indexes, producers, offsets: memory; an index entry that cannot be written is left out

A crash between 4 and 5 leaves an entry about a marker that does not exist; recovery makes that index anew.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.storage.log_read import ReadableLog
from tidemill.storage.log_state import PASSING_ERRORS, AppendInfo
from tidemill.storage.next_segment import NEXT_SEGMENT
from tidemill.storage.offset_index import MAX_RELATIVE_OFFSET
from tidemill.storage.producer_snapshots import render_snapshot
from tidemill.storage.producer_state import CompletedTransaction, EndMarker, read_end_marker
from tidemill.storage.segment import LOG_SUFFIX, BatchMark, Segment
from tidemill.wire.batch import (
    CONTROL_MASK,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    Buffer,
    checksum,
    iterate_headers,
)

NO_APPEND_TIME = -1
_START = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CRC_POSITION, _ATTRIBUTES_POSITION, _MAX_TIMESTAMP_POSITION = 17, 21, 35


class AppendableLog(ReadableLog):
    """The writing half of a log."""

    __slots__ = ()

    # -- as leader ------------------------------------------------------------------------------------

    def open_transaction_epoch(self, producer_id: int) -> int | None:
        """The epoch of the transaction that this producer has open here: its batches need no verification."""
        return self._producers.open_transaction_epoch(producer_id)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse a producer that was replaced here; see `ProducerState`."""
        self._producers.check_epoch(producer_id, epoch)

    def check_begins_at_zero(self, header: BatchHeader) -> None:
        """Refuse a first batch that cannot be the first; see `ProducerState`."""
        self._producers.check_begins_at_zero(header)

    def append_as_leader(
        self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int,
        transaction_version: int = 0,
    ) -> AppendInfo:  # fmt: skip
        """Write one validated batch at the end; it is changed in place (offset, epoch, append time).

        A duplicate is answered with the offsets it has. Raises ApiError if the producer is refused, OSError if
        the disk is.
        """
        if self._failure is not None:
            self.require_online()
        has_producer = header.producer_id >= 0
        if has_producer:
            if header.attributes & CONTROL_MASK:
                return self._append_marker(batch, header, leader_epoch, now_ms, transaction_version)
            duplicate = self._producers.check(header)
            if duplicate is not None:
                append_time_ms = duplicate.timestamp if self._is_log_append_time else NO_APPEND_TIME
                return AppendInfo(duplicate.first_offset, duplicate.last_offset, append_time_ms, True)
        timestamp = header.max_timestamp
        if self._is_log_append_time:
            timestamp = now_ms
            _set_append_time(batch, header, now_ms)
        offset = self.log_end_offset
        last_offset = self._write(batch, header.last_offset_delta, timestamp, leader_epoch, now_ms)
        if has_producer:
            self._producers.record(header, offset, timestamp)
        return AppendInfo(offset, last_offset, now_ms if self._is_log_append_time else NO_APPEND_TIME, False)

    def _append_marker(
        self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, version: int
    ) -> AppendInfo:
        """A control batch: the end of a transaction."""
        marker = read_end_marker(batch, header)
        completed = None
        if marker is not None:
            self._producers.check_marker(header, marker, version)
            completed = self._producers.completion(header, marker, self.log_end_offset)
        timestamp = header.max_timestamp
        if self._is_log_append_time:
            timestamp = now_ms
            _set_append_time(batch, header, now_ms)
        offset = self.log_end_offset
        segment = self._segment_for(len(batch), offset + header.last_offset_delta, timestamp, now_ms)
        is_noted = self._note_abort(segment, completed)
        try:
            last_offset = self._write(batch, header.last_offset_delta, timestamp, leader_epoch, now_ms)
        except OSError:
            if is_noted:
                segment.transaction_index.take_back()
            raise
        self._settle_marker(header, marker, completed, timestamp)
        return AppendInfo(offset, last_offset, now_ms if self._is_log_append_time else NO_APPEND_TIME, False)

    def _note_abort(self, segment: Segment, completed: CompletedTransaction | None) -> bool:
        if completed is None or not completed.is_aborted:
            return False
        self._is_changed = True
        segment.transaction_index.append(self._producers.aborted_entry(completed))
        return True

    def _settle_marker(
        self,
        header: BatchHeader,
        marker: EndMarker | None,
        completed: CompletedTransaction | None,
        timestamp: int,
    ) -> None:
        if marker is not None:
            self._producers.record_marker(header, marker, completed, timestamp)

    def _write(
        self,
        batch: bytearray | memoryview,
        last_offset_delta: int,
        timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """Stamp and write one batch at the end of the log; returns its last offset."""
        offset = self.log_end_offset
        last_offset = offset + last_offset_delta
        size = len(batch)
        if leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(leader_epoch, offset)
        segment = self._active
        if segment.must_roll(size, last_offset, timestamp, now_ms, self._config):
            segment = self._segment_for(size, last_offset, timestamp, now_ms)
        _START.pack_into(batch, 0, offset, size - LOG_OVERHEAD, leader_epoch)
        position = segment.size
        try:
            segment.append(batch, size, last_offset, timestamp)
        except OSError as error:
            self._undo_write(segment, position, error)
            raise
        self._remember(offset, segment, position)
        self.log_end_offset = last_offset + 1
        self.size += size
        self._is_changed = True
        return last_offset

    def _undo_write(self, segment: Segment, position: int, error: OSError) -> None:
        """Cut off what a failed write left. Nothing follows it, unless only room was missing."""
        assert segment.size == position
        if error.errno not in PASSING_ERRORS:
            self.fail(error)
        try:
            segment.cut_back(position)
        except OSError as second:
            self.fail(second)

    # -- as follower ----------------------------------------------------------------------------------

    def append_as_follower(self, data: Buffer, now_ms: int = 0) -> AppendInfo | None:
        """Write the leader's batches as they are; a cut-off last one is left out. None if there is no whole one.

        Raises ApiError (CORRUPT_MESSAGE) for damaged bytes and for offsets that do not follow; what came before
        the bad batch is in the log then.
        """
        self.require_online()
        view = memoryview(data)
        run: list[BatchHeader] = []
        start = end = 0
        first_offset = -1
        for position, header in iterate_headers(view):
            if first_offset < 0:
                first_offset = header.base_offset
            is_marker = header.producer_id >= 0 and header.attributes & CONTROL_MASK
            if run and (is_marker or self._ends_run(header, end - start, now_ms)):
                self._append_run(view[start:end], run, now_ms)
                run, start = [], position
            self._check_replicated(view, position, header, run)
            end = position + header.size
            if is_marker:
                self._append_replicated_marker(view[position:end], header, now_ms)
                start = end
            else:
                run.append(header)
        if run:
            self._append_run(view[start:end], run, now_ms)
        return AppendInfo(first_offset, self.log_end_offset - 1, NO_APPEND_TIME, False) if end else None

    def _ends_run(self, header: BatchHeader, run_bytes: int, now_ms: int) -> bool:
        """Whether this batch needs a new segment, counted with those before it that are still to be written."""
        size = run_bytes + header.size
        return self._active.must_roll(
            size, header.last_offset, header.max_timestamp, now_ms, self._config
        ) or (size > self._config.segment_bytes)

    def _check_replicated(
        self, view: memoryview, position: int, header: BatchHeader, run: list[BatchHeader]
    ) -> None:
        expected = run[-1].last_offset + 1 if run else self.log_end_offset
        problem = ""
        if header.base_offset < expected or header.last_offset_delta < 0:
            problem = f"offset {header.base_offset} where {expected} or more must follow"
        elif checksum(view, position, header.size) != header.crc:
            problem = f"the batch at offset {header.base_offset} has a wrong checksum"
        if problem:
            if run:
                size = sum(each.size for each in run)
                self._append_run(view[position - size : position], run, 0)
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition}: {problem}")

    def _append_run(self, data: memoryview, run: list[BatchHeader], now_ms: int) -> None:
        """Write batches that fit into one segment with one call, then account for each."""
        first, last = run[0], run[-1]
        self._note_epochs(run)
        segment = self._segment_for(
            len(data), last.last_offset, first.max_timestamp, now_ms, first.base_offset
        )
        position = segment.size
        try:
            segment.append_run(
                data, [BatchMark(each.size, each.last_offset, each.max_timestamp) for each in run]
            )
        except OSError as error:
            self._undo_write(segment, position, error)
            raise
        self._remember(first.base_offset, segment, position)
        for header in run:
            if header.producer_id >= 0:
                self._producers.record(header, header.base_offset, header.max_timestamp)
        self._grow(last.last_offset + 1, len(data))

    def _append_replicated_marker(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        marker = read_end_marker(batch, header)
        completed = (
            self._producers.completion(header, marker, header.base_offset) if marker is not None else None
        )
        self._note_epochs([header])
        segment = self._segment_for(
            len(batch), header.last_offset, header.max_timestamp, now_ms, header.base_offset
        )
        is_noted = self._note_abort(segment, completed)
        position = segment.size
        try:
            segment.append(batch, len(batch), header.last_offset, header.max_timestamp)
        except OSError as error:
            self._undo_write(segment, position, error)
            if is_noted:
                segment.transaction_index.take_back()
            raise
        self._settle_marker(header, marker, completed, header.max_timestamp)
        self._grow(header.last_offset + 1, len(batch))

    def _note_epochs(self, run: list[BatchHeader]) -> None:
        for header in run:
            if header.leader_epoch > self._epochs.latest_epoch:
                self._epochs.assign(header.leader_epoch, header.base_offset)

    def _grow(self, end_offset: int, size: int) -> None:
        assert end_offset > self.log_end_offset and self._active.next_offset == end_offset
        self.log_end_offset = end_offset
        self.size += size
        self._is_changed = True

    # -- rolling --------------------------------------------------------------------------------------

    def _segment_for(
        self, size: int, last_offset: int, timestamp: int, now_ms: int, base_offset: int | None = None
    ) -> Segment:
        """The active segment, or a new one if this batch must not go into it."""
        if size > self._config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes are more than segment.bytes ({self._config.segment_bytes})",
            )
        if self._active.must_roll(size, last_offset, timestamp, now_ms, self._config):
            is_far = last_offset - self.log_end_offset > MAX_RELATIVE_OFFSET
            self._begin_segment(
                base_offset if is_far and base_offset is not None else self.log_end_offset, now_ms
            )
        return self._active

    def roll(self, now_ms: int = 0) -> None:
        """Begin a new segment at the end of the log, unless the active one is empty."""
        self.require_online()
        if self._active.size:
            self._begin_segment(self.log_end_offset, now_ms)

    def _begin_segment(self, base_offset: int, now_ms: int) -> None:
        """Segments follow one another without a gap, which recovery relies on. No fsync here: the next flush
        syncs what is sealed, and writes the producers' snapshot.
        """
        old = self._active
        if old.size:
            old.seal()
        self._take_next(base_offset)
        segment = Segment.create(
            self._files, self._open_files, self.directory, base_offset, self._config, now_ms
        )
        self._set_jitter(segment)
        if old.size:
            old.next_offset = base_offset
            if old.transaction_index.is_checked:
                first_open = self._producers.first_open_offset
                old.transaction_index.stable_after = base_offset if first_open is None else first_open
        else:
            self._segments.discard(old)
            old.remove()
        self._segments.add(segment)
        self._active = segment
        self._is_changed = True
        if self.log_end_offset not in self._snapshots.offsets:
            producers = self._producers.producers.values()
            self._unwritten_snapshot = (self.log_end_offset, render_snapshot(producers))

    def _take_next(self, base_offset: int) -> None:
        """Give the file that lies ready its name; if that fails, the segment makes its own."""
        if self._has_next:
            self._has_next = False
            with suppress(OSError):
                path = f"{self.directory}/{base_offset:020d}{LOG_SUFFIX}"
                self._files.rename(f"{self.directory}/{NEXT_SEGMENT}", path)

    def assign_epoch(self, epoch: int) -> None:
        """A new leader begins to write at the end of the log."""
        self.require_online()
        if epoch > self._epochs.latest_epoch:
            self._epochs.assign(epoch, self.log_end_offset)
            self._is_changed = True


def _set_append_time(batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
    """The broker's clock replaces the producer's: type bit, largest timestamp, and so the checksum."""
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, header.attributes | TIMESTAMP_TYPE_MASK)
    _TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, now_ms)
    _CRC.pack_into(batch, _CRC_POSITION, checksum(batch, 0, len(batch)))
