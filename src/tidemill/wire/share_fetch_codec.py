"""The answer to ShareFetch, by hand: bytes and slices of files, so that records leave by `sendfile`.

Both versions of it, 1 and 2, look the same; the request is read by its schema.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.model.errors import ErrorCode
from tidemill.wire.frames import FileSlice, Piece
from tidemill.wire.schema_values import write_unsigned_varint

NO_TAGS = 0
_HEAD = struct.Struct(">ih")
_INT32 = struct.Struct(">i")
_ERROR = struct.Struct(">h")
_LEADER = struct.Struct(">iib")
_ACQUIRED = struct.Struct(">qqhb")
UNKNOWN_LEADER = (-1, -1)


class ShareFetchResult(NamedTuple):
    """What one partition answers, to the fetch and to the acknowledgements that came with it."""

    partition: int
    error: int = ErrorCode.NONE
    message: str | None = None
    acknowledge_error: int = ErrorCode.NONE
    acknowledge_message: str | None = None
    leader: tuple[int, int] = UNKNOWN_LEADER
    records: FileSlice | None = None
    acquired: tuple[tuple[int, int, int], ...] = ()
    """(first offset, last offset, delivery count)."""


class ShareFetchTopicResult(NamedTuple):
    topic_id: bytes
    partitions: list[ShareFetchResult]


def encode_share_fetch_response(
    topics: list[ShareFetchTopicResult],
    lock_timeout_ms: int,
    error: int = ErrorCode.NONE,
    message: str | None = None,
) -> list[Piece]:
    pieces: list[Piece] = []
    out = bytearray(_HEAD.pack(0, error))
    _write_text(out, message)
    out += _INT32.pack(lock_timeout_ms)
    write_unsigned_varint(out, len(topics) + 1)
    for topic in topics:
        out += topic.topic_id
        write_unsigned_varint(out, len(topic.partitions) + 1)
        for result in topic.partitions:
            out = _write_partition(pieces, out, result)
        out.append(NO_TAGS)
    write_unsigned_varint(out, 1)  # node endpoints: none
    out.append(NO_TAGS)
    pieces.append(out)
    return pieces


def _write_partition(pieces: list[Piece], out: bytearray, result: ShareFetchResult) -> bytearray:
    """Append one partition; behind its records, a slice of a file, a new buffer begins."""
    out += _INT32.pack(result.partition)
    out += _ERROR.pack(result.error)
    _write_text(out, result.message)
    out += _ERROR.pack(result.acknowledge_error)
    _write_text(out, result.acknowledge_message)
    out += _LEADER.pack(*result.leader, NO_TAGS)
    if result.records is None:
        write_unsigned_varint(out, 1)
    else:
        write_unsigned_varint(out, result.records.length + 1)
        pieces += (out, result.records)
        out = bytearray()
    write_unsigned_varint(out, len(result.acquired) + 1)
    for acquired in result.acquired:
        out += _ACQUIRED.pack(*acquired, NO_TAGS)
    out.append(NO_TAGS)
    return out


def _write_text(out: bytearray, text: str | None) -> None:
    raw = text.encode() if text is not None else b""
    write_unsigned_varint(out, 0 if text is None else len(raw) + 1)
    out += raw
