"""Produce, by hand: the request is read without copying a record, the response packed without objects.

The neutral shapes are the same for all versions; what differs between versions is named below. Records stay
views into the received frame, so that the log can stamp and write that very memory.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, MalformedMessage
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.fields import write_count, write_string
from tidemill.wire.frames import skip_tagged_fields
from tidemill.wire.schema_values import MAX_ELEMENTS, read_unsigned_varint, require_few_elements

LOG_START_OFFSET_SINCE = 5
ERROR_MESSAGE_SINCE = 8
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 13

_ACKS_TIMEOUT = struct.Struct(">hi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT32_PAIR = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqq")
_INT64 = struct.Struct(">q")


class ProducePartition(NamedTuple):
    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProduceResult(NamedTuple):
    """What became of one partition's batch."""

    partition: int
    error: int = ErrorCode.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    bad_records: tuple[int, ...] = ()
    """Places of the records in the batch because of which it was refused."""


class ProduceTopicResult(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[ProduceResult]


def decode_produce_request(data: memoryview, position: int, version: int) -> ProduceRequest:
    try:
        if version >= FLEXIBLE_SINCE:
            return _decode_flexible(data, position, version)
        return _decode_legacy(data, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"Produce v{version} is cut off or damaged") from error


def _take(data: memoryview, position: int, length: int) -> memoryview:
    if length < 0 or position + length > len(data):
        raise MalformedMessage(f"a Produce field of {length} bytes is longer than its request")
    return data[position : position + length]


def _check_count(count: int, data: memoryview, position: int, minimum_size: int) -> int:
    if not 0 <= count * minimum_size <= len(data) - position or count > MAX_ELEMENTS:
        raise MalformedMessage(f"Produce claims {count} elements in {len(data) - position} bytes")
    return count


def _decode_legacy(data: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = _legacy_string(data, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, position)
    position += 6
    topics = []
    total = 0
    topic_count = _check_count(_INT32.unpack_from(data, position)[0], data, position, 6)
    position += 4
    for _ in range(topic_count):
        name, position = _legacy_string(data, position)
        if name is None:
            raise MalformedMessage("a Produce topic has no name")
        partitions: list[ProducePartition] = []
        count = _check_count(_INT32.unpack_from(data, position)[0], data, position, 8)
        total = require_few_elements(total + count)
        position += 4
        for _ in range(count):
            index, length = _INT32_PAIR.unpack_from(data, position)
            position += 8
            records = None if length == -1 else _take(data, position, length)
            position += max(length, 0)
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(name, ZERO_UUID, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _legacy_string(data: memoryview, position: int) -> tuple[str | None, int]:
    length = _INT16.unpack_from(data, position)[0]
    position += 2
    if length == -1:
        return None, position
    return str(_take(data, position, length), "utf-8"), position + length


def _compact_string(data: memoryview, position: int) -> tuple[str | None, int]:
    length, position = read_unsigned_varint(data, position)
    if length == 0:
        return None, position
    return str(_take(data, position, length - 1), "utf-8"), position + length - 1


def _decode_flexible(data: memoryview, position: int, version: int) -> ProduceRequest:
    transactional_id, position = _compact_string(data, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, position)
    count, position = read_unsigned_varint(data, position + 6)
    topics = []
    total = 0
    for _ in range(_check_count(count - 1, data, position, 3)):
        name: str | None = ""
        topic_id = ZERO_UUID
        if version >= TOPIC_ID_SINCE:
            topic_id = bytes(_take(data, position, 16))
            position += 16
        else:
            name, position = _compact_string(data, position)
            if name is None:
                raise MalformedMessage("a Produce topic has no name")
        partition_count, position = read_unsigned_varint(data, position)
        total = require_few_elements(total + _check_count(partition_count - 1, data, position, 6))
        partitions, position = _decode_flexible_partitions(data, position, partition_count - 1)
        topics.append(ProduceTopic(name or "", topic_id, partitions))
        position = skip_tagged_fields(data, position)
    skip_tagged_fields(data, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible_partitions(
    data: memoryview, position: int, count: int
) -> tuple[list[ProducePartition], int]:
    partitions = []
    for _ in range(count):
        index = _INT32.unpack_from(data, position)[0]
        length, position = read_unsigned_varint(data, position + 4)
        records = _take(data, position, length - 1) if length else None
        position = skip_tagged_fields(data, position + max(length - 1, 0))
        partitions.append(ProducePartition(index, records))
    return partitions, position


def encode_produce_response(topics: list[ProduceTopicResult], version: int) -> bytes:
    out = bytearray()
    flexible = version >= FLEXIBLE_SINCE
    write_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_ID_SINCE:
            out += topic.topic_id
        else:
            write_string(out, topic.name, flexible)
        write_count(out, len(topic.partitions), flexible)
        for result in topic.partitions:
            _write_result(out, result, version, flexible)
        if flexible:
            out.append(0)
    out += b"\0\0\0\0"  # throttle time
    if flexible:
        out.append(0)
    return bytes(out)


def _write_result(out: bytearray, result: ProduceResult, version: int, flexible: bool) -> None:
    out += _RESULT.pack(result.partition, result.error, result.base_offset, result.append_time_ms)
    if version >= LOG_START_OFFSET_SINCE:
        out += _INT64.pack(result.log_start_offset)
    if version >= ERROR_MESSAGE_SINCE:
        _write_bad_records(out, result, flexible)
        write_string(out, result.message, flexible)
    if flexible:
        out.append(0)


def _write_bad_records(out: bytearray, result: ProduceResult, flexible: bool) -> None:
    write_count(out, len(result.bad_records), flexible)
    for place in result.bad_records:
        out += _INT32.pack(place)
        write_string(out, result.message, flexible)
        if flexible:
            out.append(0)
