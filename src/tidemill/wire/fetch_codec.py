"""Fetch, by hand: read with one unpack per partition, answered as bytes and slices of files.

A partition of a request, from v12 on, is 36 bytes and its tags:

    partition i32 | leader epoch i32 | fetch offset i64 | last fetched epoch i32 | log start offset i64 | max bytes i32

Older requests go through the general schema decoder: the clients of today do not send them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, MalformedMessage
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.fields import write_count, write_string
from tidemill.wire.frames import FileSlice, Piece, skip_tagged_fields
from tidemill.wire.messages.fetch import FetchRequest as FetchRequestSchema
from tidemill.wire.messages.fetch import ReplicaState
from tidemill.wire.schema import decode
from tidemill.wire.schema_values import (
    MAX_ELEMENTS,
    read_unsigned_varint,
    require_few_elements,
    write_unsigned_varint,
)

LOG_START_OFFSET_SINCE = 5
SESSION_SINCE = 7
LEADER_EPOCH_SINCE = 9
RACK_SINCE = 11
FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13
REPLICA_STATE_SINCE = 15

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_RESULT = struct.Struct(">ihqq")
_EMPTY_RESULT = struct.Struct(">ihqqqbibb")
"""A partition without records or tags, from v12 on: most of an answer to a reader at the end of many partitions."""
NO_TAGS = 0


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[int]


class FetchRequest(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str


class FetchResult(NamedTuple):
    """What one partition answers; `aborted` is None unless the reader asked for committed data only."""

    partition: int
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    records: FileSlice | bytes | None = None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class FetchTopicResult(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[FetchResult]


def decode_fetch_request(data: memoryview, position: int, version: int) -> FetchRequest:
    try:
        if version >= FLEXIBLE_SINCE:
            return _decode_flexible(data, position, version)
        return _decode_by_schema(data, position, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"Fetch v{version} is cut off or damaged") from error


def _decode_by_schema(data: memoryview, position: int, version: int) -> FetchRequest:
    """Versions before 12 are spoken by few clients of today: the general decoder serves them."""
    message = decode(FetchRequestSchema, version, bytes(data), position)
    topics = [
        FetchTopic(
            topic.topic,
            topic.topic_id,
            [
                FetchPartition(
                    partition.partition, partition.current_leader_epoch, partition.fetch_offset,
                    partition.last_fetched_epoch, partition.log_start_offset, partition.partition_max_bytes,
                )
                for partition in topic.partitions
            ],
        )
        for topic in message.topics
    ]  # fmt: skip
    forgotten = [ForgottenTopic(t.topic, t.topic_id, t.partitions) for t in message.forgotten_topics_data]
    return FetchRequest(
        message.replica_id, -1, message.max_wait_ms, message.min_bytes, message.max_bytes,
        message.isolation_level, message.session_id, message.session_epoch, topics, forgotten,
        message.rack_id,
    )  # fmt: skip


def _take_text(data: memoryview, position: int) -> tuple[str, int]:
    length, position = read_unsigned_varint(data, position)
    end = position + length - 1
    if length == 0 or end > len(data):
        raise MalformedMessage("a Fetch string is null or longer than its request")
    return str(data[position:end], "utf-8"), end


def _take_topic(data: memoryview, position: int, version: int) -> tuple[str, bytes, int]:
    if version < TOPIC_ID_SINCE:
        name, position = _take_text(data, position)
        return name, ZERO_UUID, position
    topic_id = bytes(data[position : position + 16])
    if len(topic_id) < 16:
        raise MalformedMessage("a topic id is cut off")
    return "", topic_id, position + 16


def _take_count(data: memoryview, position: int, minimum_size: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(data, position)
    count -= 1
    if not 0 <= count * minimum_size <= len(data) - position or count > MAX_ELEMENTS:
        raise MalformedMessage(f"Fetch claims {count} elements in {len(data) - position} bytes")
    return count, position


def _decode_flexible(data: memoryview, position: int, version: int) -> FetchRequest:
    replica_id = -1
    if version < REPLICA_STATE_SINCE:
        replica_id = _INT32.unpack_from(data, position)[0]
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD.unpack_from(data, position)
    session_id, session_epoch = _SESSION.unpack_from(data, position + 13)
    topic_count, position = _take_count(data, position + 21, 3)
    topics = []
    total = 0
    for _ in range(topic_count):
        name, topic_id, position = _take_topic(data, position, version)
        count, position = _take_count(data, position, _PARTITION_V12.size + 1)
        total = require_few_elements(total + count)
        partitions, position = _decode_partitions(data, position, count)
        topics.append(FetchTopic(name, topic_id, partitions))
        position = skip_tagged_fields(data, position)
    forgotten, position = _decode_forgotten(data, position, version)
    rack_id, position = _take_text(data, position)
    replica_epoch = -1
    if data[position] != NO_TAGS and version >= REPLICA_STATE_SINCE:
        state = _decode_replica_state(data, position, version)
        replica_id, replica_epoch = state.replica_id, state.replica_epoch
    return FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, rack_id,
    )  # fmt: skip


def _decode_partitions(data: memoryview, position: int, count: int) -> tuple[list[FetchPartition], int]:
    partitions = []
    for _ in range(count):
        partitions.append(FetchPartition._make(_PARTITION_V12.unpack_from(data, position)))
        position += _PARTITION_V12.size
        position = position + 1 if data[position] == NO_TAGS else skip_tagged_fields(data, position)
    return partitions, position


def _decode_forgotten(data: memoryview, position: int, version: int) -> tuple[list[ForgottenTopic], int]:
    count, position = _take_count(data, position, 3)
    forgotten = []
    total = 0
    for _ in range(count):
        name, topic_id, position = _take_topic(data, position, version)
        partition_count, position = _take_count(data, position, 4)
        total = require_few_elements(total + partition_count)
        partitions = list(struct.unpack_from(f">{partition_count}i", data, position))
        position = skip_tagged_fields(data, position + 4 * partition_count)
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
    return forgotten, position


def _decode_replica_state(data: memoryview, position: int, version: int) -> ReplicaState:
    """Only followers send it; tag 1 among the tagged fields that end the request."""
    count, position = read_unsigned_varint(data, position)
    for _ in range(min(count, 16)):
        tag, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        if tag == 1:
            replica_id, replica_epoch = struct.unpack_from(">iq", data, position)
            return ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
        position += size
    return ReplicaState()


# -- the response -------------------------------------------------------------------------------------


def encode_fetch_response(
    topics: list[FetchTopicResult], version: int, error: int = 0, session_id: int = 0
) -> list[Piece]:
    """Bytes and file slices, in the order in which they leave."""
    pieces: list[Piece] = []
    out = bytearray(4)  # throttle time
    if version >= SESSION_SINCE:
        out += _INT16.pack(error)
        out += _INT32.pack(session_id)
    flexible = version >= FLEXIBLE_SINCE
    write_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_ID_SINCE:
            out += topic.topic_id
        else:
            write_string(out, topic.name, flexible)
        write_count(out, len(topic.partitions), flexible)
        for result in topic.partitions:
            out = _write_partition(pieces, out, result, version, flexible)
        if flexible:
            out.append(NO_TAGS)
    if flexible:
        out.append(NO_TAGS)
    if out:
        pieces.append(out)
    return pieces


def _write_partition(
    pieces: list[Piece], out: bytearray, result: FetchResult, version: int, flexible: bool
) -> bytearray:
    """Append one partition; where its records are a slice of a file, a new buffer begins after it."""
    if flexible and result.records is None and not (result.error or result.aborted or result.diverging_epoch):
        out += _EMPTY_RESULT.pack(*result[:5], 0 if result.aborted is None else 1, -1, 1, NO_TAGS)
        return out
    out += _RESULT.pack(result.partition, result.error, result.high_watermark, result.last_stable_offset)
    if version >= LOG_START_OFFSET_SINCE:
        out += _INT64.pack(result.log_start_offset)
    _write_aborted(out, result.aborted, flexible)
    if version >= RACK_SINCE:
        out += b"\xff\xff\xff\xff"  # preferred read replica: none
    records = result.records
    length = 0 if records is None else records.length if isinstance(records, FileSlice) else len(records)
    if flexible:
        write_unsigned_varint(out, length + 1)
    else:
        out += _INT32.pack(length)
    if isinstance(records, FileSlice):
        pieces.append(out)
        pieces.append(records)
        out = bytearray()
    elif records:
        out += records
    if flexible:
        _write_partition_tags(out, result)
    return out


def _write_partition_tags(out: bytearray, result: FetchResult) -> None:
    if result.diverging_epoch is None and result.current_leader is None:
        out.append(NO_TAGS)
        return
    tags = bytearray()
    count = 0
    if result.diverging_epoch is not None:
        count += 1
        tags += b"\0\x0d" + struct.pack(">iqb", *result.diverging_epoch, NO_TAGS)
    if result.current_leader is not None:
        count += 1
        tags += b"\x01\x09" + struct.pack(">iib", *result.current_leader, NO_TAGS)
    out.append(count)
    out += tags


def _write_aborted(out: bytearray, aborted: list[tuple[int, int]] | None, flexible: bool) -> None:
    write_count(out, -1 if aborted is None else len(aborted), flexible)
    for producer_id, first_offset in aborted or ():
        out += struct.pack(">qq", producer_id, first_offset)
        if flexible:
            out.append(NO_TAGS)
