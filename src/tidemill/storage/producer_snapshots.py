"""Producer state on disk: `<offset>.snapshot`, the state after all batches below that offset.

    version i16 (1), crc-32c u32 of what follows, count i32, then for each producer
    producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
    coordinator epoch i32, first offset of the open transaction i64 (-1: none)            (big endian)

One is written when a segment begins, and lives as long as the segment (`transaction_walk` begins with it);
another when the log is closed. Opening a log takes the newest valid one not beyond the end and replays the
batch headers after it. Only the last batch of each producer is kept, so right after a restart a duplicate of
the last batch is recognised, those before it are refused as out of order; that is Kafka's behaviour too.

Example: a log closed at offset 500 leaves `00000000000000000500.snapshot`.

Limits: without any snapshot the whole log is replayed, and producers whose batches were deleted are unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Set

from tidemill.model.errors import TidemillError
from tidemill.ports.files import Files
from tidemill.storage.producer_state import NO_OFFSET, NO_SEQUENCE, ProducerEntry, RememberedBatch
from tidemill.wire.checksum import crc32c

SUFFIX = ".snapshot"
UNNAMED = ".tmp"
KEPT_SNAPSHOTS = 2
_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6


class CorruptSnapshot(TidemillError):
    """A snapshot that is not what was written; an older one, or the log itself, takes its place."""


def render_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    out = bytearray(_HEAD.size)
    count = 0
    for entry in producers:
        batch = entry.batches[-1] if entry.batches else None
        delta = batch.last_offset - batch.first_offset if batch else 0
        out += _ENTRY.pack(
            entry.producer_id, entry.epoch, entry.last_sequence, entry.last_offset, delta,
            entry.last_timestamp, entry.coordinator_epoch, entry.transaction_first_offset,
        )  # fmt: skip
        count += 1
    _HEAD.pack_into(out, 0, _VERSION, 0, count)
    struct.pack_into(">I", out, 2, crc32c(memoryview(out)[_CRC_START:]))
    return bytes(out)


def parse_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are no snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc != crc32c(memoryview(data)[_CRC_START:]):
        raise CorruptSnapshot(f"version {version}, or its checksum is wrong")
    if count != (len(data) - _HEAD.size) / _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes cannot hold {count} producers")
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]


def _entry(
    producer_id: int, epoch: int, last_sequence: int, last_offset: int, delta: int, timestamp: int,
    coordinator_epoch: int, transaction_first_offset: int,
) -> ProducerEntry:  # fmt: skip
    entry = ProducerEntry(producer_id, epoch)
    entry.last_timestamp = timestamp
    entry.coordinator_epoch = coordinator_epoch
    entry.transaction_first_offset = transaction_first_offset
    if last_offset != NO_OFFSET:
        first_sequence = (last_sequence - delta) & 0x7FFF_FFFF if last_sequence >= 0 else NO_SEQUENCE
        entry.batches.append(
            RememberedBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
        )
    return entry


def write_unnamed(files: Files, directory: str, offset: int, data: bytes) -> None:
    """In any thread: a snapshot that counts from `ProducerSnapshots.adopt` on. Not synced: it has a checksum."""
    file = files.open(f"{directory}/{offset:020d}{SUFFIX}{UNNAMED}", create=True)
    try:
        file.truncate(0)
        file.write((data,), 0)
    finally:
        file.close()


class ProducerSnapshots:
    """The snapshot files of one log's directory."""

    __slots__ = ("_directory", "_files", "offsets")

    def __init__(self, files: Files, directory: str, names: Iterable[str]) -> None:
        self._files = files
        self._directory = directory
        self.offsets = sorted(int(name[: -len(SUFFIX)]) for name in names if name.endswith(SUFFIX))

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SUFFIX}"

    def move(self, directory: str) -> None:
        self._directory = directory

    def write(self, offset: int, producers: Iterable[ProducerEntry], *, sync: bool) -> None:
        self._files.write_atomic(self.path(offset), render_snapshot(producers), sync=sync)
        if offset not in self.offsets:
            self.offsets = sorted([*self.offsets, offset])

    def adopt(self, offset: int) -> None:
        """Give the snapshot of `write_unnamed` its name."""
        path = self.path(offset)
        try:
            self._files.rename(path + UNNAMED, path)
        except OSError:
            return
        if offset not in self.offsets:
            self.offsets = sorted([*self.offsets, offset])

    def newest(self, limit_offset: int) -> tuple[int, list[ProducerEntry]] | None:
        """The newest valid one at or below this offset; damaged ones are removed on the way."""
        for offset in reversed(self.offsets):
            if offset > limit_offset:
                continue
            try:
                return offset, parse_snapshot(self._files.read_all(self.path(offset)))
            except CorruptSnapshot:
                self.remove([offset])
        return None

    def prune(self, needed_offset: int, segment_bases: Set[int] = frozenset()) -> None:
        """Keep the newest two, whatever recovery from `needed_offset` could begin with, and those of segments."""
        usable = [offset for offset in self.offsets if offset <= needed_offset]
        least = min(usable[-1:] + self.offsets[-KEPT_SNAPSHOTS:], default=0)
        self.remove([offset for offset in self.offsets if offset < least and offset not in segment_bases])

    def remove_above(self, offset: int) -> None:
        self.remove([existing for existing in self.offsets if existing > offset])

    def remove_all(self) -> None:
        self.remove(self.offsets)

    def remove(self, offsets: list[int]) -> None:
        self.offsets = [offset for offset in self.offsets if offset not in offsets]
        for offset in offsets:
            if self._files.exists(self.path(offset)):
                self._files.remove(self.path(offset))
