"""One segment of a log: a file of batches, two sparse indexes and, if needed, an index of aborted transactions.

    00000000000000368769.log         batches, byte for byte as they travel
    00000000000000368769.index       offset -> position
    00000000000000368769.timeindex   timestamp -> offset
    00000000000000368769.txnindex    aborted transactions (only if there are any)

The name is the base offset: no batch in it begins before, none of an earlier segment reaches it. Only the
last segment of a log is written. Files are opened when used and let go when others need the room
(`open_files`); `size` is known without opening.

Appending 10,000 bytes in batches of 1,000 with an index interval of 4,096 gives entries for the batches at
positions 5,000 and 10,000 - 5,000 > 4,096 bytes had gone by since the last entry - each with its batch's last
offset. `seal` adds the final time entry and cuts the indexes to their size.

Indexes found damaged (by their form, or because no batch begins where they say) are rebuilt from the log.

Limits: not thread safe; positions are 31 bits, which `segment.bytes` cannot exceed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from tidemill.ports.files import Files, OpenFile
from tidemill.storage.batch_scan import (
    CHUNK_BYTES,
    NOT_FOUND,
    WRONG_START,
    DamagedBatch,
    find_offset,
    scan_headers,
)
from tidemill.storage.config import LogConfig
from tidemill.storage.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.proof import Proof
from tidemill.storage.sparse_index import CorruptIndex
from tidemill.storage.time_index import TimeIndex
from tidemill.storage.transaction_index import TransactionIndex
from tidemill.wire.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
NO_TIMESTAMP = -1
MAX_POSITION = 0x7FFF_FFFF


class BatchMark(NamedTuple):
    """What the indexes must know of a batch."""

    size: int
    last_offset: int
    max_timestamp: int


class Segment:
    """A run of batches in files that share a name. `suffix` ("" or e.g. ".cleaned") ends all their names."""

    __slots__ = (
        "_bytes_since_index_entry",
        "_files",
        "_first_timestamp",
        "_index_interval_bytes",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_open_files",
        "_scan_bytes",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "is_index_full",
        "next_offset",
        "offset_index",
        "plain_bytes",
        "proof",
        "recently_used",
        "roll_jitter_ms",
        "size",
        "suffix",
        "time_index",
        "transaction_index",
    )  # fmt: skip

    def __init__(
        self, files: Files, open_files: OpenFiles, directory: str, base_offset: int, config: LogConfig,
        now_ms: int = 0, suffix: str = "",
    ) -> None:  # fmt: skip
        self._files = files
        self._open_files = open_files
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        index_bytes = config.segment_index_bytes
        paths = [self.path(kind) for kind in SUFFIXES]
        self.offset_index = OffsetIndex(files, open_files, paths[1], base_offset, index_bytes)
        self.time_index = TimeIndex(files, open_files, paths[2], base_offset, index_bytes)
        self.transaction_index = TransactionIndex(files, paths[3], base_offset)
        self.file: OpenFile | None = None
        self.proof: Proof | None = None
        """Of the bytes that were found and not written by this process (`proof`); None if there are none left."""
        self.plain_bytes = 0
        """So many bytes from its beginning on are known to hold no record that an abort could concern."""
        self.recently_used = False
        self.size = 0
        self.next_offset = base_offset
        """The offset after its last batch; for a loaded segment an upper bound until it is scanned."""
        self.created_ms = now_ms
        self.roll_jitter_ms = 0
        self._index_interval_bytes = config.index_interval_bytes
        self._scan_bytes = min(max(config.index_interval_bytes, HEADER_SIZE), CHUNK_BYTES) + HEADER_SIZE
        self._bytes_since_index_entry = 0
        self.is_index_full = False
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset

    @classmethod
    def create(
        cls, files: Files, open_files: OpenFiles, directory: str, base_offset: int, config: LogConfig,
        now_ms: int = 0, suffix: str = "",
    ) -> Segment:  # fmt: skip
        """A new segment; what a crash may have left under its names is emptied."""
        segment = cls(files, open_files, directory, base_offset, config, now_ms, suffix)
        segment.handle(create=True).truncate(0)
        segment.offset_index.reset()
        segment.time_index.reset()
        segment.transaction_index.reset()
        return segment

    @classmethod
    def load(
        cls, files: Files, open_files: OpenFiles, directory: str, base_offset: int, config: LogConfig,
        next_offset: int, suffix: str = "",
    ) -> Segment:  # fmt: skip
        """A segment that is there; raises CorruptIndex if an index has an impossible size."""
        segment = cls(files, open_files, directory, base_offset, config, 0, suffix)
        segment.size = files.size(segment.path(LOG_SUFFIX))
        segment.next_offset = next_offset
        segment._max_timestamp = None
        segment.proof = Proof(segment.size) if segment.size else None
        return segment

    def finish_proof(self) -> None:
        """All that was found is proven."""
        if self.proof is not None and not self.proof.has_transactions:
            self.plain_bytes = self.proof.end
        self.proof = None

    @property
    def plain_end(self) -> int:
        """No record below this position can belong to an aborted transaction, as far as records were proven."""
        proof = self.proof
        if proof is not None and not proof.has_transactions:
            return proof.end
        return self.plain_bytes

    def path(self, kind: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{kind}{self.suffix}"

    def handle(self, *, create: bool = False) -> OpenFile:
        """The open log file."""
        self.recently_used = True
        file = self.file
        if file is None:
            file = self.file = self._files.open(self.path(LOG_SUFFIX), create=create)
            self._open_files.enrol(self)
        return file

    def release(self) -> None:
        """Let the log file go; readers under way keep it through the object they hold."""
        self.file = None
        self._open_files.withdraw(self)

    # -- appending ------------------------------------------------------------------------------------

    def must_roll(self, size: int, last_offset: int, timestamp: int, now_ms: int, config: LogConfig) -> bool:
        """Whether a batch must go into the next segment: by size, time, full index or relative offset."""
        if self.size == 0:
            return last_offset - self.base_offset > MAX_RELATIVE_OFFSET
        return (
            self.size > config.segment_bytes - size
            or self._waited_ms(now_ms, timestamp) > config.segment_ms - self.roll_jitter_ms
            or last_offset - self.base_offset > MAX_RELATIVE_OFFSET
            or self.is_index_full
        )

    def _waited_ms(self, now_ms: int, timestamp: int) -> int:
        """How long it has been filled: by the batches' timestamps, or by the clock if they have none."""
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        return timestamp - first if first is not None and first >= 0 else now_ms - self.created_ms

    def append(self, batch: Buffer, size: int, last_offset: int, max_timestamp: int) -> None:
        """Write one batch. After an OSError the file may hold a part of it: call `cut_back`."""
        position = self.size
        file = self.file
        if file is None:
            file = self.handle()
        file.write((batch,), position)
        self._note(position, size, last_offset, max_timestamp)

    def append_run(self, data: Buffer, marks: Sequence[BatchMark]) -> None:
        """Write several batches that lie one after the other in `data`."""
        position = self.size
        self.handle().write((data,), position)
        for size, last_offset, max_timestamp in marks:
            self._note(position, size, last_offset, max_timestamp)
            position += size

    def _note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Account for a batch that is in the file."""
        self.recently_used = True
        if self._max_timestamp is None or max_timestamp > self._max_timestamp:
            self._note_timestamp(max_timestamp, last_offset)
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._add_index_entries(last_offset, position)
        self._bytes_since_index_entry += size
        self.size = position + size
        self.next_offset = last_offset + 1

    def _add_index_entries(self, last_offset: int, position: int) -> None:
        """If the disk refuses, do without: the batch is written, and an index is sparse by nature."""
        if self.is_index_full:
            return
        try:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset)
            self._bytes_since_index_entry = 0
        except OSError:
            return
        self.is_index_full = self.offset_index.is_full or self.time_index.is_full

    def _note_timestamp(self, timestamp: int, offset: int) -> None:
        if timestamp > self.max_timestamp:
            self._max_timestamp = timestamp
            self._max_timestamp_offset = offset

    def cut_back(self, size: int) -> None:
        """Undo a write that failed half-way."""
        self.handle().truncate(size)

    def seal(self) -> None:
        """No more appends for now: final time entry, indexes cut to their size."""
        if self.size:
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset)
        self.offset_index.seal()
        self.time_index.seal()

    # -- timestamps -----------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches, or -1."""
        if self._max_timestamp is None:
            last = self._checked_time_index().last_entry()
            self._max_timestamp, self._max_timestamp_offset = (
                last if last else (NO_TIMESTAMP, self.base_offset)
            )
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the batch that brought the largest timestamp."""
        return self._max_timestamp_offset if self.max_timestamp >= 0 else self.base_offset

    @property
    def largest_timestamp(self) -> int:
        """For retention: the largest timestamp, or when the file was last written if there is none."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self._files.modified_ms(self.path(LOG_SUFFIX))

    @property
    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch; None while empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = read_header(self.handle().read(0, HEADER_SIZE)).max_timestamp
        return self._first_timestamp

    # -- looking up -----------------------------------------------------------------------------------

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of its batches from a position where one begins."""
        least_offset = self.base_offset if position == 0 else 0
        return scan_headers(self.handle(), position, self.size if end is None else end, least_offset)

    def position_of(self, offset: int) -> int:
        """Where the first batch that reaches this offset begins, or -1; an index that lies is rebuilt."""
        entry = self._checked_offset_index().lookup(offset)
        last_offset, start = entry if entry is not None else (-1, 0)
        file = self.file
        if file is None:
            file = self.handle()
        position = find_offset(file, start, self.size, offset, self._scan_bytes, last_offset)
        if position == WRONG_START:
            self.rebuild_indexes()
            return find_offset(file, 0, self.size, offset, CHUNK_BYTES)
        return position

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """(position, header) of the first batch that reaches this offset; None if it lies beyond the last."""
        position = self.position_of(offset)
        if position == NOT_FOUND:
            return None
        return position, read_header(self.handle().read(position, HEADER_SIZE))

    def ends_soundly(self, last_offset: int, position: int) -> bool:
        """Whether a batch begins where an index entry says, and ends at the offset it says."""
        if not 0 <= position < self.size:
            return False
        try:
            return (
                find_offset(self.handle(), position, self.size, last_offset, HEADER_SIZE, last_offset)
                == position
            )
        except DamagedBatch:
            return False

    def locate_timestamp(self, timestamp: int) -> Iterator[tuple[int, BatchHeader]]:
        """Batches from the first that may hold this timestamp on; only to be asked if max_timestamp >= it."""
        entry = self._checked_time_index().lookup(timestamp)
        found = self.locate(entry[1]) if entry is not None else None
        if entry is not None and (found is None or found[1].max_timestamp != entry[0]):
            self.rebuild_indexes()
            entry = self.time_index.lookup(timestamp)
            found = self.locate(entry[1]) if entry is not None else None
        return self.headers(found[0] if found is not None else 0)

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.handle().read(position, LOG_OVERHEAD + header.batch_length)

    def last_batch_start(self, position: int) -> int:
        """The last place at or before this one where a batch is known to begin; -1 if none is."""
        return self._checked_offset_index().last_position_up_to(position)

    def last_batch_before(self, offset: int) -> int:
        """Where a batch begins that the index knows to end before or at this offset; -1 if it knows none."""
        entry = self._checked_offset_index().lookup(offset)
        return entry[1] if entry is not None else -1

    def offset_bound(self, position: int) -> int | None:
        """An offset not below any that ends at or before this position; None if the index cannot say."""
        entry = self._checked_offset_index().first_at_or_after_position(position)
        return entry[0] + 1 if entry else None

    # -- indexes: loading, checking, rebuilding -------------------------------------------------------

    def load_indexes(self) -> None:
        """Take the index files over as they are; raises CorruptIndex if their sizes are impossible."""
        self.offset_index.load()
        self.time_index.load()
        if self.size and not self.time_index.count and not self._has_no_timestamps():
            raise CorruptIndex(f"{self.time_index.path} is empty, but the segment is not")

    def _has_no_timestamps(self) -> bool:
        try:
            return all(header.max_timestamp < 0 for _, header in self.headers())
        except DamagedBatch:
            return False

    def _checked_offset_index(self) -> OffsetIndex:
        if not self.offset_index.is_checked:
            self._check_or_rebuild()
        return self.offset_index

    def _checked_time_index(self) -> TimeIndex:
        if not self.time_index.is_checked:
            self._check_or_rebuild()
        return self.time_index

    def _check_or_rebuild(self) -> None:
        try:
            self.offset_index.check(self.next_offset, self.size)
            self.time_index.check(self.next_offset, self.size)
        except CorruptIndex:
            self.rebuild_indexes()

    def begin_rebuild(self) -> None:
        """Empty the indexes; the batches come again through `note_existing`."""
        self.offset_index.reset()
        self.time_index.reset()
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._first_timestamp = None
        self._bytes_since_index_entry = 0
        self.size = 0
        self.next_offset = self.base_offset

    def note_existing(self, position: int, header: BatchHeader) -> None:
        """A batch found in the file during a rebuild."""
        assert position == self.size
        self._note(position, header.size, header.last_offset, header.max_timestamp)

    def rebuild_indexes(self) -> None:
        """Make offset and time index anew from the batch headers. Damage in the log raises DamagedBatch."""
        end, next_offset = self.size, self.next_offset
        self.begin_rebuild()
        try:
            for position, header in scan_headers(self.handle(), 0, end, self.base_offset):
                self.note_existing(position, header)
        finally:
            self.size, self.next_offset = end, next_offset
        self.seal()

    # -- shortening, syncing, renaming ----------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Remove the batches from the one that reaches this offset on; a batch is never split."""
        found = self.locate(offset)
        if found is not None:
            self.cut_back(found[0])
            self.size = found[0]
            if self.proof is not None and self.proof.end > self.size:
                self.proof = Proof(self.size) if self.size else None
            self.plain_bytes = min(self.plain_bytes, self.size)
            offset = min(offset, found[1].base_offset)
        self.next_offset = offset
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self.is_index_full = self.offset_index.is_full or self.time_index.is_full
        self._bytes_since_index_entry = 0
        self._forget_timestamps()

    def _forget_timestamps(self) -> None:
        """After a cut: the largest timestamp is in the last time entry, or in a batch after it."""
        if self.size == 0:
            self._first_timestamp = None
        if self._max_timestamp is not None and self._max_timestamp_offset < self.next_offset:
            return
        last = self.time_index.last_entry()
        self._max_timestamp, self._max_timestamp_offset = last if last else (NO_TIMESTAMP, self.base_offset)
        start = max(self.position_of(last[1]), 0) if last else 0
        for _, header in self.headers(start):
            self._note_timestamp(header.max_timestamp, header.last_offset)

    def sync_indexes(self) -> None:
        self.offset_index.sync()
        self.time_index.sync()
        self.transaction_index.sync()

    def rename(self, directory: str, suffix: str) -> None:
        """Give all its files another directory or suffix; files that do not exist are passed over."""
        old_paths = [self.path(kind) for kind in SUFFIXES]
        self.move(directory, suffix)
        for old, kind in zip(old_paths, SUFFIXES, strict=True):
            if self._files.exists(old):
                self._files.rename(old, self.path(kind))

    def move(self, directory: str, suffix: str) -> None:
        """Its files were renamed: forget handles on the old paths."""
        self.close()
        self.directory, self.suffix = directory, suffix
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.transaction_index.path = self.path(TRANSACTION_INDEX_SUFFIX)

    def close(self) -> None:
        """Let all handles go; the segment can be used again."""
        self.release()
        self.offset_index.release()
        self.time_index.release()

    def remove(self) -> None:
        """Delete its files."""
        self.close()
        for kind in SUFFIXES:
            if self._files.exists(self.path(kind)):
                self._files.remove(self.path(kind))
