"""Looking into logs offline: what is in them, and whether they are whole. For `tidemill log dump` and `verify`.

Reads directories written by Tidemill or by Apache Kafka, changes nothing, needs no broker. Everything is a
generator, so a log of any size streams through.

    for row in dump("/data/orders-0", with_records=True):      # dictionaries, one per batch and record
        print(row)
    for finding in verify("/data/orders-0"):                   # nothing found: the log is whole
        print(finding.severity, finding.path, finding.position, finding.text)

A path may be a data directory (all its partitions), a partition's directory, or one file of it: `.log`, `.index`,
`.timeindex`, `.txnindex`, `.snapshot`.

Limits: do not trust `verify` on a log that is being written; its tail will look torn. Batches of the formats
before version 2 are reported, not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tidemill.model.errors import MalformedMessage, TidemillError
from tidemill.ports.disk import Disk
from tidemill.ports.files import Files
from tidemill.storage.batch_scan import DamagedBatch, find_valid_batch, scan_checked
from tidemill.storage.cleaner_filter import payload_of
from tidemill.storage.data_directory import sort_names
from tidemill.storage.inspect_findings import Finding, Severity
from tidemill.storage.inspect_log import verify_partition
from tidemill.storage.producer_snapshots import CorruptSnapshot, parse_snapshot
from tidemill.storage.producer_state import read_end_marker
from tidemill.storage.segment import LOG_SUFFIX
from tidemill.wire.batch import BatchHeader, iterate_records
from tidemill.wire.compression import CODEC_NAMES

__all__ = ["Finding", "NotALog", "Severity", "dump", "partitions_in", "verify"]

Row = dict[str, Any]


class NotALog(TidemillError):
    """A path with nothing to look into."""


def partitions_in(path: str, files: Files | None = None) -> list[str]:
    """The partitions' directories at this path: itself, or those in it."""
    files, path = files or Disk(), path.rstrip("/")
    if not files.exists(path):
        raise NotALog(f"{path} does not exist")
    names = files.list(path)
    if any(name.endswith(LOG_SUFFIX) for name in names):
        return [path]
    found = [f"{path}/{name}" for _, name in sort_names(names).partitions]
    if not found:
        raise NotALog(
            f"{path} holds neither segments (*.log) nor directories of partitions (<topic>-<number>)"
        )
    return found


def verify(path: str, files: Files | None = None, *, with_records: bool = True) -> Iterator[Finding]:
    """Everything that is wrong, or odd, in the logs at this path. Without records, batches are not decoded."""
    files = files or Disk()
    for directory in partitions_in(path, files):
        yield from verify_partition(files, directory, with_records=with_records)


# -- dump ----------------------------------------------------------------------------------------------


def dump(
    path: str,
    files: Files | None = None,
    *,
    with_records: bool = False,
    start_offset: int = 0,
    end_offset: int | None = None,
) -> Iterator[Row]:
    """Rows with a `kind` (batch, record, damage, and one per kind of file), in the order of the files."""
    files = files or Disk()
    for file_path in _files_at(path, files):
        suffix = file_path.rpartition(".")[2]
        if suffix == "log":
            yield from _dump_log(files, file_path, with_records, start_offset, end_offset)
        else:
            yield from _DUMPS[suffix](files.read_all(file_path), _base_offset(file_path))


def _files_at(path: str, files: Files) -> list[str]:
    name = path.rpartition("/")[2]
    if "." in name and name.rpartition(".")[2] in {"log", *_DUMPS} and name[:20].isdecimal():
        if not files.exists(path):
            raise NotALog(f"{path} does not exist")
        return [path]
    return [
        f"{directory}/{name}"
        for directory in partitions_in(path, files)
        for name in sorted(files.list(directory))
        if name.endswith(LOG_SUFFIX)
    ]


def _base_offset(path: str) -> int:
    return int(path.rpartition("/")[2][:20])


def _dump_log(
    files: Files, path: str, with_records: bool, start_offset: int, end_offset: int | None
) -> Iterator[Row]:
    file = files.open(path)
    position, end, least_offset = 0, file.size(), 0
    while position < end:
        try:
            for at, header, batch in scan_checked(file, position, end, least_offset):
                position, least_offset = at + header.size, header.last_offset + 1
                if end_offset is not None and header.base_offset >= end_offset:
                    return
                if header.last_offset >= start_offset:
                    yield batch_row(path, at, header)
                    if with_records:
                        yield from record_rows(path, header, batch)
        except DamagedBatch as error:
            yield {"kind": "damage", "file": path, "position": error.position, "reason": error.reason}
            found = find_valid_batch(file, error.position + 1, end, least_offset)
            position = found[0] if found is not None else end


def batch_row(path: str, position: int, header: BatchHeader) -> Row:
    return {
        "kind": "batch",
        "file": path,
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence if header.base_sequence >= 0 else -1,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "delete_horizon_ms": header.delete_horizon_ms,
        "compression": CODEC_NAMES[header.compression]
        if header.compression < len(CODEC_NAMES)
        else "unknown",
        "crc": header.crc,
    }


def record_rows(path: str, header: BatchHeader, batch: memoryview) -> Iterator[Row]:
    try:
        marker = read_end_marker(batch, header) if header.is_control else None
        for record in iterate_records(header, payload_of(header, batch)):
            row: Row = {"kind": "record", **record._asdict()}
            if marker is not None:
                row["marker"] = "abort" if marker.is_abort else "commit"
                row["coordinator_epoch"] = marker.coordinator_epoch
            yield row
    except MalformedMessage as error:
        yield {"kind": "damage", "file": path, "offset": header.base_offset, "reason": str(error)}


def _dump_offset_index(data: bytes, base_offset: int) -> Iterator[Row]:
    for relative, position in struct.iter_unpack(">ii", data[: len(data) // 8 * 8]):
        yield {"kind": "index", "offset": base_offset + relative, "position": position}


def _dump_time_index(data: bytes, base_offset: int) -> Iterator[Row]:
    for timestamp, relative in struct.iter_unpack(">qi", data[: len(data) // 12 * 12]):
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": base_offset + relative}


def _dump_aborts(data: bytes, base_offset: int) -> Iterator[Row]:
    for version, producer_id, first, last, stable in struct.iter_unpack(
        ">hqqqq", data[: len(data) // 34 * 34]
    ):
        yield {
            "kind": "txnindex",
            "version": version,
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }


def _dump_snapshot(data: bytes, base_offset: int) -> Iterator[Row]:
    try:
        entries = parse_snapshot(data)
    except CorruptSnapshot as error:
        yield {"kind": "damage", "reason": str(error)}
        return
    for entry in entries:
        yield {
            "kind": "snapshot",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.transaction_first_offset,
        }


_DUMPS = {
    "index": _dump_offset_index,
    "timeindex": _dump_time_index,
    "txnindex": _dump_aborts,
    "snapshot": _dump_snapshot,
}
