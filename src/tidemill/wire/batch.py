"""Record batches, version 2: the unit that is sent, stored and fetched.

    offset  field                      offset  field
    0       base offset          i64   23      last offset delta   i32
    8       batch length         i32   27      base timestamp      i64
    12      partition leader epoch i32 35      max timestamp       i64
    16      magic (2)            i8    43      producer id         i64
    17      crc-32c              u32   51      producer epoch      i16
    21      attributes           i16   53      base sequence       i32
                                       57      record count        i32
                                       61      records (maybe compressed)

The checksum covers everything from the attributes on, so the broker may set base offset and leader epoch
in place, in the received buffer, without touching a single record: that is the whole hot path of a write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import MalformedMessage
from tidemill.wire.checksum import crc32c

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
_ROOM_FOR_HEADER = bytes(HEADER_SIZE)
LOG_OVERHEAD = 12
"""Base offset and length: what precedes the bytes that `batch length` counts."""
MAGIC = 2
CRC_START = 21

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
assert _HEADER.size == HEADER_SIZE


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, its own header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones of a compacted batch may go; kept in the base timestamp (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, by: int) -> int:
    """Sequence numbers are 31 bits wide and wrap to zero."""
    return (sequence + by) & 0x7FFFFFFF


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    return BatchHeader._make(_HEADER.unpack_from(data, position))


def read_prefix(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Base offset and whole size of the batch at this position."""
    base_offset, length = _PREFIX.unpack_from(data, position)
    return base_offset, length + LOG_OVERHEAD


def checksum(data: Buffer, position: int, size: int) -> int:
    return crc32c(memoryview(data)[position + CRC_START : position + size])


def stamp(data: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set what the leader decides, in place; neither field is covered by the checksum."""
    length = _PREFIX.unpack_from(data, position)[1]
    _HEADER_START.pack_into(data, position, base_offset, length, leader_epoch)


_HEADER_START = struct.Struct(">qii")


def iterate_headers(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch; a torn last one ends the iteration."""
    end = len(data)
    while position + HEADER_SIZE <= end:
        header = read_header(data, position)
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            raise MalformedMessage(f"batch at {position} has length {header.batch_length}")
        if position + header.size > end:
            return
        yield position, header
        position += header.size


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


# -- varints of the record format (zigzag, up to ten bytes) --------------------------------------------


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise MalformedMessage("a varint is longer than ten bytes")


def write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _read_nullable(data: Buffer, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise MalformedMessage("a record is longer than its batch")
    return bytes(data[position:end]), end


def _write_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(value))
        out += value


def iterate_records(header: BatchHeader, payload: Buffer) -> Iterator[Record]:
    """The records of one batch; `payload` is what follows the header, decompressed."""
    if header.record_count < 0:
        raise MalformedMessage(
            f"the batch at offset {header.base_offset} claims {header.record_count} records"
        )
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _read_record(header, payload, position)
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"records of the batch at offset {header.base_offset} are damaged") from error
    if position != len(payload):
        raise MalformedMessage(f"the batch at offset {header.base_offset} holds more than its records")


def _read_record(header: BatchHeader, data: Buffer, position: int) -> tuple[Record, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise MalformedMessage("a record is longer than its batch")
    timestamp_delta, position = read_varint(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _read_nullable(data, position)
    value, position = _read_nullable(data, position)
    count, position = read_varint(data, position)
    if not 0 <= count <= length:
        raise MalformedMessage(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_nullable(data, position)
        if name is None:
            raise MalformedMessage("a record header has no name")
        header_value, position = _read_nullable(data, position)
        headers.append((name.decode(), header_value))
    if position != end:
        raise MalformedMessage("a record does not fill its length")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise MalformedMessage(f"a record has the timestamp {timestamp}")
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def encode_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    head = bytearray(1)
    write_varint(head, record.timestamp - base_timestamp)
    write_varint(head, record.offset - base_offset)
    _write_nullable(head, record.key)
    value = record.value
    write_varint(head, -1 if value is None else len(value))
    tail = bytearray()
    write_varint(tail, len(record.headers))
    for name, header_value in record.headers:
        _write_nullable(tail, name.encode())
        _write_nullable(tail, header_value)
    write_varint(out, len(head) + len(value or b"") + len(tail))
    out += head
    out += value or b""
    out += tail


def encode_batch(header: BatchHeader, *payload: Buffer, is_final: bool = True) -> bytearray:
    """A whole batch from a header (its length and checksum are computed here) and its records' bytes.

    One that is not final has no checksum: whoever changes its header writes it then.
    """
    return _finish(bytearray().join((_ROOM_FOR_HEADER, *payload)), header, is_final)


def _finish(out: bytearray, header: BatchHeader, is_final: bool) -> bytearray:
    """Write the header before the records."""
    header = header._replace(batch_length=len(out) - LOG_OVERHEAD, magic=MAGIC, crc=0)
    _HEADER.pack_into(out, 0, *header)
    if is_final:
        struct.pack_into(">I", out, 17, checksum(out, 0, len(out)))
    return out


def build_batch(
    records: list[Record],
    *,
    leader_epoch: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_final: bool = True,
) -> bytearray:
    """A batch of these records, uncompressed; their offsets must ascend. For `is_final` see `encode_batch`."""
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    out = bytearray(HEADER_SIZE)
    for record in records:
        encode_record(out, record, base_offset, base_timestamp)
    header = BatchHeader(
        base_offset, 0, leader_epoch, MAGIC, 0, attributes, records[-1].offset - base_offset, base_timestamp,
        max(record.timestamp for record in records), producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    return _finish(out, header, is_final)
