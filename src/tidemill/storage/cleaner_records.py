"""The records inside one batch, as spans of bytes: what the cleaner needs to keep some and drop others.

Compaction never changes a record and never moves an offset, so a kept record is copied, not decoded: its
offset delta stays right because the batch keeps its base offset, its timestamp delta stays right because
the batch keeps its base timestamp. Only when the batch gets a delete horizon, which lives in the field of
the base timestamp, are the timestamp deltas written anew.

    length varint | attributes i8 | timestamp delta varint | offset delta varint | key | value | headers
    ^start          ^body                                    ^tail                                      end^
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import Buffer, read_varint, write_varint


class RecordSpan(NamedTuple):
    start: int
    body: int
    tail: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def scan_records(payload: Buffer, count: int) -> Iterator[RecordSpan]:
    """Where each record lies, with its key; values and headers are passed over."""
    position = 0
    try:
        for _ in range(count):
            span = _scan_record(payload, position)
            yield span
            position = span.end
    except IndexError as error:
        raise MalformedMessage(f"records end after {position} bytes") from error
    if position != len(payload):
        raise MalformedMessage(f"{count} records fill {position} of {len(payload)} bytes")


def _scan_record(payload: Buffer, start: int) -> RecordSpan:
    length, body = read_varint(payload, start)
    end = body + length
    timestamp_delta, tail = read_varint(payload, body + 1)
    offset_delta, position = read_varint(payload, tail)
    key_length, position = read_varint(payload, position)
    key_end = position + max(key_length, 0)
    if length < 0 or not key_end < end <= len(payload):
        raise MalformedMessage(f"a record at {start} is longer than its batch, or its key than itself")
    key = None if key_length < 0 else bytes(payload[position:key_end])
    value_length, _ = read_varint(payload, key_end)
    return RecordSpan(start, body, tail, end, timestamp_delta, offset_delta, key, value_length < 0)


def join_records(payload: Buffer, spans: list[RecordSpan]) -> bytearray:
    """These records as they are."""
    out = bytearray()
    for span in spans:
        out += payload[span.start : span.end]
    return out


def join_records_shifted(payload: Buffer, spans: list[RecordSpan], shift_ms: int) -> bytearray:
    """These records for a batch whose base timestamp is `shift_ms` later than before."""
    out = bytearray()
    for span in spans:
        head = bytearray(payload[span.body : span.body + 1])
        write_varint(head, span.timestamp_delta - shift_ms)
        write_varint(out, len(head) + span.end - span.tail)
        out += head
        out += payload[span.tail : span.end]
    return out
