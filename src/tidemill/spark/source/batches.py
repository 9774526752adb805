"""From the bytes of a fetch, or of a log file, to batches whose records a reader may see.

Bytes arrive as whole record batches, one behind the other; the last may be cut off. Each whole batch is
checked against its CRC-32C, and then:

- batches outside the wanted range are passed over, without being decompressed;
- control batches (the markers of transactions) hold no records of anybody;
- with read_committed, batches of aborted transactions are passed over. The broker names them as (producer,
  first offset), in order of the first offset: a producer is *aborted* from there until its abort marker
  comes by.

        offset   0..4 producer 7   5..9 producer 8   10 abort of 7   11..15 producer 7
        aborted  [(7, 0)]                   ->       records 5..9 and 11..15

What is left is a `Payload`: where the records lie in which buffer, and the header that completes them.
Records of an uncompressed batch stay where they are, others are unpacked into a `Room`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemill.model.errors import MalformedMessage
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.room import Room
from tidemill.wire.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    Buffer,
    checksum,
    read_header,
    read_varint,
)
from tidemill.wire.compression import NONE

_ABORT_MARKER = 0
_PLACE = struct.Struct(">qi11xi")
"""Of a header what a walk over batches needs: base offset, length, last offset delta."""


class Payload(NamedTuple):
    """The records of one batch: `data[start:end]`, of which those from `first` on are wanted."""

    header: BatchHeader
    data: Buffer
    start: int
    end: int
    first: int


class AbortedTransactions:
    """Which producers are aborted at the place a reader has reached; offsets only ascend."""

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._waiting: list[tuple[int, int]] = []
        self._producers: set[int] = set()
        self._seen: set[tuple[int, int]] = set()
        self.add(aborted)

    def add(self, aborted: Iterable[tuple[int, int]]) -> None:
        """More of the broker's list, as (first offset, producer id); what was said before may be said again."""
        fresh = [each for each in aborted if each not in self._seen]
        self._seen.update(fresh)
        self._waiting = sorted([*self._waiting, *fresh], reverse=True)

    def hides(self, header: BatchHeader, data: Buffer, position: int) -> bool:
        """Whether the records of this batch belong to an aborted transaction; takes note of abort markers.

        A marker that compaction emptied ends the transaction too: a producer's marker is the end of what it had open.
        """
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._producers.add(self._waiting.pop()[1])
        if header.producer_id not in self._producers:
            return False
        if header.is_control:
            if not header.record_count or _marker(data, position) == _ABORT_MARKER:
                self._producers.discard(header.producer_id)
            return False
        return header.is_transactional


def _marker(data: Buffer, position: int) -> int:
    """The type of a control record: its key is version i16 and type i16."""
    position += HEADER_SIZE
    _, position = read_varint(data, position)
    _, position = read_varint(data, position + 1)
    _, position = read_varint(data, position)
    _, position = read_varint(data, position)
    (kind,) = struct.unpack_from(">h", data, position + 2)
    return int(kind)


class WholeBatches(NamedTuple):
    size: int
    next_offset: int


def whole_batches(data: Buffer, start: int) -> WholeBatches:
    """How many bytes are whole batches, and the offset behind them, from headers alone; `start` when there are none."""
    position, following = 0, start
    last = len(data) - HEADER_SIZE
    while position <= last:
        base_offset, length, last_delta = _PLACE.unpack_from(data, position)
        end = position + LOG_OVERHEAD + length
        if length < HEADER_SIZE - LOG_OVERHEAD or end > len(data):
            break
        position, following = end, base_offset + last_delta + 1
    return WholeBatches(position, following)


def visible_batches(
    data: Buffer, wanted: OffsetRange, aborted: AbortedTransactions | None, room: Room
) -> Iterator[Payload]:
    """The batches of `data` that hold records of the range, checked and decompressed."""
    position, size = 0, len(data)
    while position + HEADER_SIZE <= size:
        header = read_header(data, position)
        if header.magic != MAGIC or header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            raise MalformedMessage(
                f"{wanted.where} holds no batch of version 2 at offset {header.base_offset}"
            )
        if position + header.size > size or header.base_offset >= wanted.end:
            return
        if header.last_offset >= wanted.start:
            _check(data, position, header, wanted)
            is_hidden = aborted is not None and aborted.hides(header, data, position)
            if not is_hidden and not header.is_control and header.record_count:
                yield _payload(data, position, header, wanted.start, room)
        position += header.size


def _check(data: Buffer, position: int, header: BatchHeader, wanted: OffsetRange) -> None:
    found = checksum(data, position, header.size)
    if found != header.crc:
        raise MalformedMessage(
            f"the batch at offset {header.base_offset} of {wanted.where} is damaged: "
            f"its checksum is {found:08x}, and {header.crc:08x} was written"
        )


def _payload(data: Buffer, position: int, header: BatchHeader, first: int, room: Room) -> Payload:
    start, end = position + HEADER_SIZE, position + header.size
    if header.compression == NONE:
        return Payload(header, data, start, end, first)
    return Payload(header, *room.unpack(header.compression, memoryview(data)[start:end]), first)
