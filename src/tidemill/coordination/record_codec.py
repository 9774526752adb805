"""Records of the internal topics as bytes: what Kafka writes and its DumpLogSegments reads.

    key     i16 record type, then the key's fields (always version 0)
    value   i16 version, then the value's fields; no value at all is a tombstone

All records of one outcome travel in one batch, so that they are in the log together or not at all. Worked example, a
committed offset of group `g` for `t-0` (record type 1):

    key     00 01 | 00 01 'g' | 00 01 't' | 00 00 00 00
    value   00 03 | offset i64 | leader epoch i32 | metadata string | commit timestamp i64

Reading gives two kinds of entries: records (with the producer of their transaction, if they belong to one), and
the ends of transactions, which control batches mark.

Limits: a record whose type is unknown, written by a newer release, is skipped with a warning, as Kafka does. A
batch that does not match its checksum is an error: state that was built over a hole would be wrong silently.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.coordination.core import CoordinatorRecord
from tidemill.model.errors import MalformedMessage
from tidemill.model.ids import NO_PRODUCER_ID
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    Record,
    build_batch,
    checksum,
    encode_batch,
    encode_record,
    iterate_headers,
    iterate_records,
)
from tidemill.wire.compression import NONE, compress, decompress
from tidemill.wire.schema import Message, decode, encode

logger = logging.getLogger(__name__)

RecordTypes = Mapping[int, tuple[type[Message], type[Message]]]

KEY_VERSION = 0
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
ABORT, COMMIT = 0, 1
_TYPE = struct.Struct(">h")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class Producer(NamedTuple):
    """In whose transaction records are written."""

    producer_id: int
    epoch: int


class LoggedRecord(NamedTuple):
    record: CoordinatorRecord
    offset: int
    producer_id: int
    """-1 outside transactions."""


class EndOfTransaction(NamedTuple):
    producer_id: int
    epoch: int
    is_commit: bool
    offset: int


Entry = LoggedRecord | EndOfTransaction


# -- one record -------------------------------------------------------------------------------------------


def encode_key(record: CoordinatorRecord) -> bytes:
    return _TYPE.pack(record.type) + encode(record.key, KEY_VERSION)


def encode_value(record: CoordinatorRecord) -> bytes | None:
    if record.value is None:
        return None
    return _TYPE.pack(record.value_version) + encode(record.value, record.value_version)


def decode_record(key: bytes | None, value: bytes | None, types: RecordTypes) -> CoordinatorRecord | None:
    """None for a record of a type, or a version, that only a newer release knows."""
    if key is None or len(key) < _TYPE.size:
        raise MalformedMessage("a record of an internal topic has no key")
    (record_type,) = _TYPE.unpack_from(key)
    if record_type not in types:
        logger.warning("a record of the unknown type %d is left out", record_type)
        return None
    key_class, value_class = types[record_type]
    decoded_key = decode(key_class, KEY_VERSION, key, _TYPE.size)
    if value is None:
        return CoordinatorRecord(record_type, decoded_key, None)
    if len(value) < _TYPE.size:
        raise MalformedMessage(f"a record of type {record_type} has a value without a version")
    (version,) = _TYPE.unpack_from(value)
    if not value_class.VERSIONS[0] <= version <= value_class.VERSIONS[1]:
        logger.warning("a record of type %d has the unknown version %d and is left out", record_type, version)
        return None
    decoded = decode(value_class, version, value, _TYPE.size, max_elements=len(value))  # we wrote it
    return CoordinatorRecord(record_type, decoded_key, decoded, version)


# -- batches ----------------------------------------------------------------------------------------------


def encode_records(
    records: list[CoordinatorRecord], now_ms: int, compression: int = NONE, producer: Producer | None = None
) -> bytearray:
    """One batch; its offsets begin at zero until a log gives it others."""
    payload = bytearray()
    for offset, record in enumerate(records):
        encode_record(payload, Record(offset, now_ms, encode_key(record), encode_value(record)), 0, now_ms)
    attributes = compression | (TRANSACTIONAL_MASK if producer else 0)
    producer_id, epoch = producer or (NO_PRODUCER_ID, -1)
    header = BatchHeader(
        0, 0, 0, MAGIC, 0, attributes, len(records) - 1, now_ms, now_ms, producer_id, epoch, -1, len(records)
    )
    return encode_batch(header, compress(compression, payload) if compression else payload)


def encode_marker(producer: Producer, is_commit: bool, coordinator_epoch: int, now_ms: int) -> bytearray:
    """The control batch that ends a transaction."""
    marker = Record(
        0,
        now_ms,
        _MARKER_KEY.pack(0, COMMIT if is_commit else ABORT),
        _MARKER_VALUE.pack(0, coordinator_epoch),
    )
    return build_batch(
        [marker],
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


class ReadBatch(NamedTuple):
    last_offset: int
    entries: Iterator[Entry]


def read_batches(data: Buffer, types: RecordTypes) -> Iterator[ReadBatch]:
    """Every whole batch of these bytes; a torn last one is left for the next read."""
    for position, header in iterate_headers(data):
        if checksum(data, position, header.size) != header.crc:
            raise MalformedMessage(f"the batch at offset {header.base_offset} does not match its checksum")
        payload = memoryview(data)[position + HEADER_SIZE : position + header.size]
        yield ReadBatch(header.last_offset, _entries(header, payload, types))


def _entries(header: BatchHeader, payload: memoryview, types: RecordTypes) -> Iterator[Entry]:
    if header.compression:
        payload = memoryview(decompress(header.compression, payload, MAX_DECOMPRESSED_BYTES))
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for record in iterate_records(header, payload):
        if header.is_control:
            yield _end_of_transaction(header, record)
            continue
        decoded = decode_record(record.key, record.value, types)
        if decoded is not None:
            yield LoggedRecord(decoded, record.offset, producer_id)


def _end_of_transaction(header: BatchHeader, record: Record) -> EndOfTransaction:
    if record.key is None or len(record.key) < _MARKER_KEY.size:
        raise MalformedMessage(f"the control record at offset {record.offset} has no type")
    _, kind = _MARKER_KEY.unpack_from(record.key)
    return EndOfTransaction(header.producer_id, header.producer_epoch, kind == COMMIT, record.offset)
