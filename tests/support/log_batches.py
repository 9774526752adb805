"""Batches and logs for storage tests, in as few words as possible."""

from __future__ import annotations

import struct
from typing import Any

from tidemill.ports.files import Files
from tidemill.storage.config import LogConfig
from tidemill.storage.log import AppendInfo, Log
from tidemill.storage.timestamps import FoundTimestamp
from tidemill.wire.batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    Record,
    build_batch,
    iterate_headers,
    iterate_records,
    read_header,
)

DIRECTORY = "/data/orders-3"


def data_batch(
    values: list[bytes] | int = 1, *, offset: int = 0, timestamp: int = 1000, size: int = 20, **fields: Any
) -> bytearray:
    """A batch of these values, or of so many of `size` bytes."""
    if isinstance(values, int):
        values = [bytes([65 + place % 26]) * size for place in range(values)]
    records = [Record(offset + place, timestamp, None, value) for place, value in enumerate(values)]
    return build_batch(records, **fields)


def producer_batch(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    transactional: bool = False,
    **fields: Any,
) -> bytearray:
    attributes = TRANSACTIONAL_MASK if transactional else 0
    return data_batch(
        count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
        **fields,
    )


def marker_batch(
    producer_id: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    offset: int = 0,
    **fields: Any,
) -> bytearray:
    """The control batch that ends a transaction."""
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch)
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK
    return build_batch(
        [Record(offset, 1000, key, value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes=attributes,
        **fields,
    )


def append(log: Log, batch: bytearray, epoch: int = 0, now_ms: int = 1000, **options: Any) -> AppendInfo:
    return log.append_as_leader(batch, read_header(batch), epoch, now_ms, **options)


def append_values(log: Log, *values: bytes, **fields: Any) -> AppendInfo:
    return append(log, data_batch(list(values), **fields))


def open_log(files: Files, config: LogConfig | None = None, **options: Any) -> Log:
    return Log.open(files, options.pop("directory", DIRECTORY), config or LogConfig(), **options)


def read_bytes(log: Log, offset: int, limit: int | None = None, max_bytes: int = 1 << 30) -> bytes:
    records = log.read(offset, max_bytes, log.log_end_offset if limit is None else limit)
    return b"" if records is None else records.file.read(records.position, records.length)


def read_records(
    log: Log, offset: int | None = None, limit: int | None = None
) -> list[tuple[int, bytes | None]]:
    """(offset, value) of everything from here to the limit, as a consumer would collect it."""
    position = log.log_start_offset if offset is None else offset
    found: list[tuple[int, bytes | None]] = []
    while True:
        data = read_bytes(log, position, limit)
        if not data:
            return found
        for start, header in iterate_headers(data):
            payload = data[start + 61 : start + header.size]
            found += [
                (record.offset, record.value)
                for record in iterate_records(header, payload)
                if record.offset >= position
            ]
            position = header.last_offset + 1


def offset_for_timestamp(log: Log, timestamp: int) -> FoundTimestamp | None:
    """The first message whose timestamp is at least this, as `api.timestamps` finds it, without a loop."""
    batch = log.batch_for_timestamp(timestamp)
    found = None
    while batch is not None and (found := batch.first_from(timestamp)) is None:
        batch = log.batch_for_timestamp(timestamp, batch.header.last_offset + 1)
    return found
