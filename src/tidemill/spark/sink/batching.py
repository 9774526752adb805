"""Rows become record batches, one open batch for each target partition.

A batch is closed when the next rows would make it larger than about `batch_bytes` (before compression), or when the
task is over. A row larger than that travels alone. Batches are made without a producer and without a checksum: id,
epoch and sequence are stamped when it is known who publishes them, then the checksum is computed; no record changes:

    accumulator.append(TopicPartition("orders", 3), rows)       # -> [Batch, …] that are full
    accumulator.close()                                 # -> the rest
    stamp_producer(batch.data, producer, base_sequence=0)

Limits: a batch is whole in memory; rows of one partition keep their order, rows of different partitions have none.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from tidemill.model.errors import MalformedMessage
from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.sink.encoding import Numbers, Rows, encode_records, estimated_sizes
from tidemill.wire.batch import (
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    checksum,
    encode_batch,
    read_header,
)
from tidemill.wire.compression import compress

_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_CHECKSUM = struct.Struct(">I")
_CHECKSUM_AT, _ATTRIBUTES_AT, _PRODUCER_AT = 17, 21, 43


class Producer(NamedTuple):
    """Who publishes: what InitProducerId answered."""

    id: int
    epoch: int
    is_transactional: bool


class Batch(NamedTuple):
    target: TopicPartition
    record_count: int
    data: bytearray


class _OpenBatch:
    """The batch that a partition is filling."""

    def __init__(self, base_timestamp_ms: int) -> None:
        self.base_timestamp_ms = base_timestamp_ms
        self.max_timestamp_ms = base_timestamp_ms
        self.count = 0
        self.size = 0
        self.payload: list[memoryview] = []

    def append(self, rows: Rows) -> None:
        records = encode_records(rows, self.count, self.base_timestamp_ms)
        self.payload.append(records)
        self.size += len(records)
        self.count += len(rows)
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(rows.times_ms.max()))

    def close(self, codec: int, level: int | None) -> bytearray:
        header = BatchHeader(
            0, 0, -1, MAGIC, 0, codec, self.count - 1, self.base_timestamp_ms, self.max_timestamp_ms,
            -1, -1, -1, self.count,
        )  # fmt: skip
        payload = [compress(codec, b"".join(self.payload), level)] if codec else self.payload
        return encode_batch(header, *payload, is_final=False)


class Accumulator:
    """All open batches of one task."""

    def __init__(self, codec: int, batch_bytes: int, level: int | None = None) -> None:
        self._codec = codec
        self._level = level
        self._batch_bytes = batch_bytes
        self._open: dict[TopicPartition, _OpenBatch] = {}

    def append(self, target: TopicPartition, rows: Rows) -> list[Batch]:
        """Take rows in; the batches that became full, in order."""
        full: list[Batch] = []
        ends = np.cumsum(estimated_sizes(rows))
        start = 0
        while start < len(rows):
            stop = self._fitting(target, ends, start)
            if stop == start:
                full.append(self._close(target))
                continue
            fitting = rows.slice(start, stop)
            if target not in self._open:
                self._open[target] = _OpenBatch(int(fitting.times_ms[0]))
            self._open[target].append(fitting)
            start = stop
            if stop < len(rows):
                full.append(self._close(target))
        return full

    def _fitting(self, target: TopicPartition, ends: Numbers, start: int) -> int:
        """Where the rows end that still fit into the open batch; a new batch takes at least one."""
        before = int(ends[start - 1]) if start else 0
        batch = self._open.get(target)
        if batch is None:
            return max(start + 1, int(np.searchsorted(ends, before + self._batch_bytes, "right")))
        return max(start, int(np.searchsorted(ends, before + self._batch_bytes - batch.size, "right")))

    def close(self) -> list[Batch]:
        return [self._close(target) for target in sorted(self._open)]

    def _close(self, target: TopicPartition) -> Batch:
        batch = self._open.pop(target)
        return Batch(target, batch.count, batch.close(self._codec, self._level))


def stamp_producer(data: bytearray, producer: Producer, base_sequence: int) -> None:
    """Write who publishes into a finished batch, and the checksum."""
    attributes = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)[0]
    if producer.is_transactional:
        attributes |= TRANSACTIONAL_MASK
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer.id, producer.epoch, base_sequence)
    _CHECKSUM.pack_into(data, _CHECKSUM_AT, checksum(data, 0, len(data)))


def verify(data: bytes | bytearray | memoryview) -> BatchHeader:
    """The header of a batch that was stored in between; damage raises."""
    header = read_header(data)
    if header.size != len(data) or header.crc != checksum(data, 0, len(data)):
        raise MalformedMessage("a staged batch is damaged: its checksum does not match")
    return header
