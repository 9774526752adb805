"""From batches to Arrow: record batches of some ten thousand rows, made without touching single records.

    decoder = Decoder(topic, partition, columns, arrow schema, range)
    for batch in decoder.decode(payloads): ...

Batches are put together until there are `ROWS` records or `PORTION_BYTES` bytes: Spark's JVM is fastest
with 8 to 16 thousand rows at a time. Their bytes stand in one buffer, `scanning` says where the fields lie
in it, and the columns are built from that:

- keys and values: an Arrow array over the buffer whose elements are, in turn, what is wanted and what lies
  between; `take` copies every other one into a dense array in one call;
- numbers are numpy arrays that Arrow adopts; topic and partition are repeated.

Only wanted columns are built. The schema is Spark's own translation of the query's schema, because Spark
compares both to the letter.

Limits: a timestamp that microseconds cannot hold (the years beyond 294,000) becomes the last one that they
can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.spark.source.batches import Payload
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.scanning import Bytes, Numbers, Pieces, scan, scan_headers

ROWS = 8_192
PORTION_BYTES = 8 << 20
LARGEST_MILLISECONDS = ((1 << 63) - 1) // 1000


class Decoder:
    """Turns the payloads of one range into Arrow batches with the wanted columns."""

    def __init__(self, wanted: OffsetRange, schema: pa.Schema, expected: int = 0) -> None:
        self._wanted = wanted
        self._expected = max(expected, wanted.size)
        self._schema = schema
        self._builders: dict[str, Callable[[_Portion], pa.Array]] = {
            "key": lambda portion: portion.binary(portion.fields.key_starts, portion.fields.key_lengths),
            "value": lambda portion: portion.binary(
                portion.fields.value_starts, portion.fields.value_lengths
            ),
            "topic": lambda portion: _repeated(wanted.where.topic, portion.rows),
            "partition": lambda portion: _adopted(np.full(portion.rows, wanted.where.partition, np.int32)),
            "offset": lambda portion: _adopted(portion.fields.offsets),
            "timestamp": lambda portion: portion.timestamps(self._schema.field("timestamp").type),
            "timestampType": lambda portion: _adopted(portion.timestamp_types),
            "headers": lambda portion: portion.headers(self._schema.field("headers").type),
        }

    def decode(self, payloads: Iterable[Payload]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of these payloads; what is left over at the end makes a smaller one.

        Where a buffer ends, at the end of a fetch say, half a portion is enough: it need not be joined with the next.
        """
        waiting: list[Payload] = []
        rows = size = 0
        for payload in payloads:
            is_elsewhere = waiting and payload.data is not waiting[-1].data
            if is_elsewhere and (rows >= ROWS // 2 or size >= PORTION_BYTES // 2):
                yield from self._convert(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(payload)
            rows += payload.header.record_count
            size += payload.end - payload.start
            if rows >= ROWS or size >= PORTION_BYTES:
                yield from self._convert(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield from self._convert(waiting)

    def _convert(self, payloads: list[Payload]) -> Iterator[pa.RecordBatch]:
        portion = _Portion(payloads, self._wanted, self._expected)
        if portion.rows:
            arrays = [self._builders[name](portion) for name in self._schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Portion:
    """Some batches in one buffer, and the fields of those of their records that are wanted."""

    def __init__(self, payloads: list[Payload], wanted: OffsetRange, expected: int) -> None:
        self.buffer, starts = _one_buffer(payloads)
        self.bytes: Bytes = np.frombuffer(self.buffer, np.uint8)
        headers = [payload.header for payload in payloads]
        ends = starts + np.array([payload.end - payload.start for payload in payloads], np.int64)
        counts = _numbers(header.record_count for header in headers)
        pieces = Pieces(
            starts, ends, counts, _numbers(header.base_offset for header in headers),
            _numbers(header.base_timestamp for header in headers),
        )  # fmt: skip
        self.fields = scan(self.bytes, pieces, expected)
        types = np.array([header.is_log_append_time for header in headers], np.int32)
        self.timestamp_types = np.repeat(types, counts)
        if types.any():
            appended = np.repeat(_numbers(header.max_timestamp for header in headers), counts)
            times = np.where(self.timestamp_types == 1, appended, self.fields.timestamps)
            self.fields = self.fields._replace(timestamps=times)
        first = _numbers(payload.first for payload in payloads)
        if (first > pieces.base_offsets).any() or headers[-1].last_offset >= wanted.end:
            self._trim(np.repeat(first, counts), wanted.end)
        self.rows = self.fields.offsets.size

    def _trim(self, first: Numbers, end: int) -> None:
        mask = (self.fields.offsets >= first) & (self.fields.offsets < end)
        self.fields = self.fields.where(mask)
        self.timestamp_types = self.timestamp_types[mask]

    # -- columns ------------------------------------------------------------------------------------------

    def binary(self, starts: Numbers, lengths: Numbers, kind: pa.DataType | None = None) -> pa.Array:
        """Dense copies of these stretches of the buffer, null where the length is negative."""
        count = starts.size
        is_null = lengths < 0
        if is_null.all():
            return pa.nulls(count, kind or pa.binary())
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = starts
        bounds[1::2] = starts + np.maximum(lengths, 0)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.buffer)]
        every_other = pa.Array.from_buffers(kind or pa.binary(), 2 * count - 1, buffers)
        chosen = np.arange(0, 2 * count, 2, dtype=np.int32)
        return every_other.take(_adopted(chosen, is_null if is_null.any() else None))

    def timestamps(self, kind: pa.DataType) -> pa.Array:
        milliseconds = np.clip(self.fields.timestamps, -LARGEST_MILLISECONDS, LARGEST_MILLISECONDS)
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(milliseconds * 1000)])

    def headers(self, kind: Any) -> pa.Array:
        """Lists of (key, value); null, not empty, for a record without headers, as in Spark's connector."""
        found = scan_headers(self.bytes, self.fields)
        names = self.binary(found.name_starts, found.name_lengths, pa.string())
        values = self.binary(found.value_starts, found.value_lengths)
        structs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        bounds = np.zeros(self.rows + 1, np.int32)
        np.cumsum(found.counts, out=bounds[1:])
        has_some = np.packbits(found.counts > 0, bitorder="little")
        buffers = [pa.py_buffer(has_some), pa.py_buffer(bounds)]
        return pa.Array.from_buffers(kind, self.rows, buffers, children=[structs])


def _adopted(numbers: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array over these numbers. Arrow's own `pa.array` would import pandas first, a quarter of a second."""
    bits = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, numbers.size, [bits, pa.py_buffer(np.ascontiguousarray(numbers))])


def _repeated(text: str, count: int) -> pa.Array:
    raw = text.encode()
    bounds = np.arange(0, (count + 1) * len(raw), len(raw), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(raw * count)])


def _numbers(values: Iterable[int]) -> Numbers:
    return np.array(list(values), np.int64)


def _one_buffer(payloads: list[Payload]) -> tuple[Any, Numbers]:
    """A buffer with the records of all payloads, and where each begins; joined only when there are several."""
    first = payloads[0].data
    if all(payload.data is first for payload in payloads):
        return first, _numbers(payload.start for payload in payloads)
    parts = [memoryview(payload.data)[payload.start : payload.end] for payload in payloads]
    sizes = _numbers(len(part) for part in parts)
    return b"".join(parts), np.cumsum(sizes) - sizes
