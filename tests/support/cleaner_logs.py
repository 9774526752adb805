"""Logs made of plain files, to be cleaned: written, read back and crashed without a broker around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.ports.files import Files
from tidemill.storage.cleaner import segment_path
from tidemill.storage.cleaner_filter import payload_of
from tidemill.storage.cleaner_job import CleanerJob, CleanerResult, SegmentFiles
from tidemill.storage.segment_swap import commit_swap, finish_swap, retire_segments
from tidemill.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    encode_batch,
    iterate_headers,
    iterate_records,
    read_header,
)
from tidemill.wire.compression import compress

NOW_MS = 1_000_000
DELETE_RETENTION_MS = 1_000


class Crash(Exception):
    """The machine stopped before this operation."""


class CrashingFiles:
    """Files that stop at the n-th operation that changes something."""

    CHANGES = frozenset(
        {"rename", "remove", "write_atomic", "remove_tree", "make_directory", "sync_directory"}
    )

    def __init__(self, files: Files, operations_left: int) -> None:
        self._files = files
        self.operations_left = operations_left

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES:
            if self.operations_left == 0:
                raise Crash(name)
            self.operations_left -= 1
        return getattr(self._files, name)


def batch(records: Sequence[Record], codec: int = 0, **fields: int) -> bytearray:
    built = build_batch(list(records), **fields)
    if codec == 0:
        return built
    header = read_header(built)
    header = header._replace(attributes=header.attributes | codec)
    return encode_batch(header, compress(codec, bytes(built[HEADER_SIZE:])))


def write_segment(
    files: Files, directory: str, base_offset: int, batches: Sequence[bytes | bytearray]
) -> None:
    for kind, data in (("log", b"".join(batches)), ("index", b""), ("timeindex", b"")):
        file = files.open(segment_path(directory, base_offset, kind), create=True)
        file.write((data,), 0)
        file.sync()
        file.close()


def base_offsets(files: Files, directory: str) -> list[int]:
    return sorted(int(name[:20]) for name in files.list(directory) if name.endswith(".log"))


def read_all_batches(files: Files, directory: str) -> list[tuple[BatchHeader, list[Record]]]:
    """Every batch of the log in order, as a reader of the live names would see it."""
    found = []
    for base_offset in base_offsets(files, directory):
        data = files.read_all(segment_path(directory, base_offset, "log"))
        for position, header in iterate_headers(data):
            payload = payload_of(header, memoryview(data)[position : position + header.size])
            found.append((header, list(iterate_records(header, payload))))
    return found


def read_records(files: Files, directory: str) -> list[Record]:
    return [record for _, records in read_all_batches(files, directory) for record in records]


def job_for(files: Files, directory: str, end_offset: int, **changes: Any) -> CleanerJob:
    """A job over all segments below `end_offset`."""
    segments = tuple(
        SegmentFiles(base, files.size(segment_path(directory, base, "log")), 0, 0)
        for base in base_offsets(files, directory)
        if base < end_offset
    )
    fields: dict[str, Any] = {
        "first_dirty_offset": 0,
        "now_ms": NOW_MS,
        "delete_retention_ms": DELETE_RETENTION_MS,
        "segment_bytes": 1 << 30,
        "segment_index_bytes": 10 << 20,
        "index_interval_bytes": 64,
        "offset_map_bytes": 1 << 20,
        **changes,
    }
    return CleanerJob(directory=directory, segments=segments, first_uncleanable_offset=end_offset, **fields)


def swap_all(files: Files, directory: str, result: CleanerResult) -> None:
    for replacement in result.replacements:
        commit_swap(files, directory, replacement.base_offset)
        files.sync_directory(directory)
        for path in retire_segments(files, directory, replacement.replaced):
            files.remove(path)
        finish_swap(files, directory, replacement.base_offset)
