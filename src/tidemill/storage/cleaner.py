"""Compaction: rewrite the sealed part of a log so that only the last value of each key remains.

A log has a clean part, compacted before, a dirty part, and a part that may not be touched yet:

    |---- clean ----|------- dirty -------|-- not yet --|
    log start       first dirty offset    first uncleanable offset (a segment's base offset)

One pass over the dirty part builds the map key -> newest offset (`build_offset_map`); a second pass over
clean and dirty part copies what survives (`cleaner_filter`) into new files whose names end in `.cleaned`.
Segments that have become small are joined: neighbours go into one new segment as long as the old ones
together fit into one (`group_segments`). Memory is bounded: when the map is full the first pass ends
there, and the log is clean up to that offset; the rest waits for the next pass.

    result = clean(files, job)          # result.end_offset: clean below; result.replacements: what to swap in

Nothing but `.cleaned` files is written here, synced before the result is returned; the broker swaps them
in (`segment_swap`). A damaged batch raises CorruptLog: the log is then not cleaned at all, rather than
wrongly.

Limits: sizes are those of the old segments, so a group never outgrows `segment.bytes` (tombstone horizons
may add a few bytes per record, which no limit of the format minds). Batches of version 2 only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.ports.files import Files, OpenFile
from tidemill.storage.batch_scan import DamagedBatch, scan_checked
from tidemill.storage.cleaner_filter import Batch, BatchFilter, OffsetMap, Transactions, payload_of, spans_of
from tidemill.storage.cleaner_job import CleanerJob, CleanerResult, Replacement, SegmentFiles
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import BatchHeader, read_header

CLEANED_SUFFIX = ".cleaned"
SEGMENT_KINDS = ("log", "index", "timeindex", "txnindex")
MAX_RELATIVE_OFFSET = 0x7FFF_FFFF
_WRITE_BYTES = 1 << 20
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORT_ENTRY = struct.Struct(">hqqqq")


def segment_path(directory: str, base_offset: int, kind: str, suffix: str = "") -> str:
    return f"{directory}/{base_offset:020d}.{kind}{suffix}"


def clean(files: Files, job: CleanerJob) -> CleanerResult:
    """One pass over one log; raises CorruptLog and leaves no files then."""
    offset_map = build_offset_map(files, job)
    end_offset = offset_map.latest_offset + 1
    batch_filter = BatchFilter(job, offset_map)
    replacements: list[Replacement] = []
    bytes_read = bytes_written = 0
    try:
        for group in group_segments(job, end_offset):
            writer = CleanedSegment(files, job, group)
            for segment in group:
                _clean_segment(files, job, segment, batch_filter, writer)
                bytes_read += segment.size_bytes
            if len(group) == 1 and writer.is_unchanged:
                writer.discard()
                continue
            bytes_written += writer.finish()
            replaced = tuple(segment.base_offset for segment in group)
            replacements.append(Replacement(group[0].base_offset, replaced, writer.size_bytes))
    except (CorruptLog, MalformedMessage, OSError):
        discard_cleaned(files, job.directory)
        raise
    return CleanerResult(
        end_offset,
        tuple(replacements),
        batch_filter.records_read,
        batch_filter.records_kept,
        bytes_read,
        bytes_written,
        offset_map.is_full,
    )


def discard_cleaned(files: Files, directory: str) -> None:
    """Remove what an unfinished pass left behind."""
    for name in files.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(f"{directory}/{name}")


# -- first pass: the newest offset of each key ---------------------------------------------------------


def build_offset_map(files: Files, job: CleanerJob) -> OffsetMap:
    offset_map = OffsetMap(job.offset_map_bytes)
    offset_map.latest_offset = job.first_dirty_offset - 1
    transactions = Transactions(_touching(job.aborted, job.first_dirty_offset))
    for segment, next_base in _with_next(job):
        if next_base <= job.first_dirty_offset:
            continue
        for header, batch in _batches(files, job, segment):
            if header.last_offset >= job.first_dirty_offset and not _put_batch(
                header, batch, job.first_dirty_offset, offset_map, transactions
            ):
                return offset_map
        offset_map.latest_offset = next_base - 1
    return offset_map


def _touching(aborted: tuple[AbortedTransaction, ...], offset: int) -> tuple[AbortedTransaction, ...]:
    """Those whose end lies at or after this offset."""
    return tuple(entry for entry in aborted if entry.last_offset >= offset)


def _with_next(job: CleanerJob) -> Iterator[tuple[SegmentFiles, int]]:
    bases = [segment.base_offset for segment in job.segments[1:]]
    return zip(job.segments, [*bases, job.first_uncleanable_offset], strict=True)


def _put_batch(
    header: BatchHeader,
    batch: Batch,
    first_dirty_offset: int,
    offset_map: OffsetMap,
    transactions: Transactions,
) -> bool:
    """Put the keys of one batch into the map; False when the map is full before its end."""
    if header.is_control:
        transactions.end(header, batch)
    elif not transactions.is_aborted(header):
        for span in spans_of(header, payload_of(header, batch)):
            offset = header.base_offset + span.offset_delta
            if span.key is None or offset < first_dirty_offset:
                continue
            if offset_map.is_full:
                return False
            offset_map.put(span.key, offset)
    offset_map.latest_offset = header.last_offset
    return True


def _batches(
    files: Files, job: CleanerJob, segment: SegmentFiles
) -> Iterator[tuple[BatchHeader, memoryview]]:
    path = segment_path(job.directory, segment.base_offset, "log")
    file = files.open(path)
    try:
        for _, header, batch in scan_checked(file, 0, segment.size_bytes, segment.base_offset):
            yield header, batch
    except DamagedBatch as error:
        raise CorruptLog(f"{path}: {error}") from error
    finally:
        file.close()


# -- second pass: what survives ------------------------------------------------------------------------


def group_segments(job: CleanerJob, end_offset: int) -> Iterator[list[SegmentFiles]]:
    """Neighbouring segments below `end_offset`, as many together as fit into one new segment."""
    group: list[SegmentFiles] = []
    for segment, next_base in _with_next(job):
        if segment.base_offset >= end_offset:
            break
        if group and not _fits(job, group, segment, next_base):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _fits(job: CleanerJob, group: list[SegmentFiles], segment: SegmentFiles, next_base: int) -> bool:
    together = [*group, segment]
    return (
        sum(each.size_bytes for each in together) <= job.segment_bytes
        and sum(each.index_bytes for each in together) <= job.segment_index_bytes
        and sum(each.time_index_bytes for each in together) <= job.segment_index_bytes
        and next_base - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET
    )


def _clean_segment(
    files: Files, job: CleanerJob, segment: SegmentFiles, batch_filter: BatchFilter, writer: CleanedSegment
) -> None:
    for header, batch in _batches(files, job, segment):
        kept = batch_filter.keep(header, batch)
        if batch_filter.new_abort is not None:
            writer.add_abort(batch_filter.new_abort)
        if kept is not batch:
            writer.is_unchanged = False
        if kept is not None:
            writer.append(kept)


class CleanedSegment:
    """The new files of one group, written through buffers and synced at the end."""

    def __init__(self, files: Files, job: CleanerJob, group: list[SegmentFiles]) -> None:
        self._files = files
        self._job = job
        self._base_offset = group[0].base_offset
        self._modified_ms = files.modified_ms(segment_path(job.directory, group[-1].base_offset, "log"))
        self._had_aborts = any(
            files.exists(segment_path(job.directory, segment.base_offset, "txnindex")) for segment in group
        )
        self._log = self._create("log")
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._offset_index, self._time_index, self._aborts = bytearray(), bytearray(), bytearray()
        self._unindexed_bytes = 0
        self._max_timestamp, self._max_timestamp_offset, self._indexed_timestamp = -1, -1, -1
        self.size_bytes = 0
        self.is_unchanged = True
        """Whether every batch so far was kept as it is."""

    def append(self, batch: Batch) -> None:
        header = read_header(batch)
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        if self._unindexed_bytes > self._job.index_interval_bytes:
            self._offset_index += _OFFSET_ENTRY.pack(header.last_offset - self._base_offset, self.size_bytes)
            self._index_time()
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size
        self._pending.append(bytes(batch))
        self._pending_bytes += header.size
        self.size_bytes += header.size
        if self._pending_bytes >= _WRITE_BYTES:
            self._write_pending()

    def add_abort(self, entry: AbortedTransaction) -> None:
        self._aborts += _ABORT_ENTRY.pack(0, *entry)

    def finish(self) -> int:
        """Sync everything, in the age of the newest segment that went in; the size of the log file."""
        self._write_pending()
        self._index_time()
        _close(self._log)
        for kind, data in (
            ("index", self._offset_index),
            ("timeindex", self._time_index),
            ("txnindex", self._aborts),
        ):
            if kind != "txnindex" or self._had_aborts:
                file = self._create(kind)
                file.write((data,), 0)
                _close(file)
        self._files.set_modified_ms(self._path("log"), self._modified_ms)
        return self.size_bytes

    def discard(self) -> None:
        self._log.close()
        self._files.remove(self._path("log"))

    def _path(self, kind: str) -> str:
        return segment_path(self._job.directory, self._base_offset, kind, CLEANED_SUFFIX)

    def _create(self, kind: str) -> OpenFile:
        file = self._files.open(self._path(kind), create=True)
        file.truncate(0)
        return file

    def _index_time(self) -> None:
        if self._max_timestamp > self._indexed_timestamp:
            relative = self._max_timestamp_offset - self._base_offset
            self._time_index += _TIME_ENTRY.pack(self._max_timestamp, relative)
            self._indexed_timestamp = self._max_timestamp

    def _write_pending(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._log.write((data,), self.size_bytes - len(data))
            self._pending, self._pending_bytes = [], 0


def _close(file: OpenFile) -> None:
    file.sync()
    file.close()
