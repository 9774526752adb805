"""Arrow columns into the records of a batch, without a step per record in Python.

A record on the wire is a handful of varints around its key, its value and its headers:

    length | attributes | timestamp delta | offset delta | key length | key | value length | value | header count | …

Two ways lead there. numpy computes all varints of a column at once, as a table of bytes one row per record, and keeps
of each row as many bytes as that number needs; Arrow then joins the pieces, record by record, into one buffer: that
buffer is the payload. Numba compiles the same into one loop (`compiled_encoding`), once there is enough to write
(`spark.compiled`).

    >>> rows = Rows(pa.array([b"k", None], pa.binary()), pa.array([b"one", b"two"]), None, np.array([5, 7]))
    >>> bytes(encode_records(rows, first_offset_delta=0, base_timestamp_ms=5))
    b'\\x14\\x00\\x00\\x00\\x02k\\x06one\\x00\\x12\\x00\\x04\\x02\\x01\\x06two\\x00'

Limits: the payload of one call stays below 2 GiB (Arrow's offsets have 32 bits); the caller cuts long before that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.compiled import Compiled

Numbers = npt.NDArray[np.int64]

TYPICAL_FRAME_BYTES = 16
"""What a record takes besides key, value and headers: six varints and the attributes."""


class Rows(NamedTuple):
    """Rows for one partition. Keys and values may be null; `headers` holds each row's headers as they travel,
    their count in front, or is None when no row has any."""

    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    headers: pa.BinaryArray | None
    timestamps_ms: Numbers
    places: Numbers | None = None
    """Which rows of the columns are meant, in their order; None stands for all. Nothing is copied to choose rows."""

    def slice(self, start: int, stop: int) -> Rows:
        if self.places is not None:
            return self._of(self.places[start:stop])
        length = stop - start
        return Rows(
            None if self.keys is None else self.keys.slice(start, length),
            self.values.slice(start, length),
            None if self.headers is None else self.headers.slice(start, length),
            self.timestamps_ms[start:stop],
        )

    def take(self, places: Numbers) -> Rows:
        return self._of(places if self.places is None else self.places[places])

    def _of(self, places: Numbers) -> Rows:
        return Rows(self.keys, self.values, self.headers, self.timestamps_ms, places)

    def dense(self) -> Rows:
        """The same with columns that hold nothing else."""
        if self.places is None:
            return self
        chosen = pa.array(self.places)
        return Rows(
            None if self.keys is None else self.keys.take(chosen),
            self.values.take(chosen),
            None if self.headers is None else self.headers.take(chosen),
            self.times_ms,
        )

    @property
    def times_ms(self) -> Numbers:
        return self.timestamps_ms if self.places is None else self.timestamps_ms[self.places]

    def __len__(self) -> int:
        return len(self.timestamps_ms if self.places is None else self.places)


def lengths_of(column: pa.BinaryArray, places: Numbers | None = None) -> Numbers:
    """Bytes of each value, -1 for null: what the record format writes before it."""
    if not len(column):
        return np.empty(0, np.int64)  # it may have no buffer
    ends = _offsets_of(column)
    lengths = np.diff(ends) if places is None else ends[places + 1] - ends[places]
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        lengths[is_null if places is None else is_null[places]] = -1
    return lengths


def estimated_sizes(rows: Rows) -> Numbers:
    """Bytes that each record takes, to a few: enough to decide where to cut."""
    sizes = np.maximum(lengths_of(rows.values, rows.places), 0) + TYPICAL_FRAME_BYTES
    for column in (rows.keys, rows.headers):
        if column is not None:
            sizes += np.maximum(lengths_of(column, rows.places), 0)
    return sizes


Encoder = Callable[[Rows, int, int], memoryview]


def encode_records(rows: Rows, first_offset_delta: int, base_timestamp_ms: int) -> memoryview:
    """The records of these rows, as they follow one another in a batch."""
    return ENCODER.choose(len(rows))(rows, first_offset_delta, base_timestamp_ms)


def _load_compiled() -> Encoder:
    from tidemill.spark.sink.compiled_encoding import encode_compiled

    one = pa.array([b""], pa.binary())
    encode_compiled(Rows(one, one, None, np.zeros(1, np.int64)), 0, 0)
    return encode_compiled


# -- with numpy and Arrow ----------------------------------------------------------------------------------


def encode_by_numpy(rows: Rows, first_offset_delta: int, base_timestamp_ms: int) -> memoryview:
    rows = rows.dense()
    timestamp_deltas = _varints(rows.timestamps_ms - base_timestamp_ms)
    offset_deltas = _varints(np.arange(first_offset_delta, first_offset_delta + len(rows), dtype=np.int64))
    value_lengths = lengths_of(rows.values)
    value_prefix = _varints(value_lengths)
    body = (
        1
        + timestamp_deltas.widths
        + offset_deltas.widths
        + value_prefix.widths
        + np.maximum(value_lengths, 0)
    )
    key_lengths = np.full(len(rows), -1, np.int64) if rows.keys is None else lengths_of(rows.keys)
    key_prefix = _varints(key_lengths)
    body += key_prefix.widths + np.maximum(key_lengths, 0)
    body += 1 if rows.headers is None else lengths_of(rows.headers)
    head = [_varints(body), _zeros(len(rows)), timestamp_deltas, offset_deltas, key_prefix]
    tail = pa.scalar(b"\0", pa.binary()) if rows.headers is None else rows.headers
    if rows.keys is None:
        pieces = [_joined([*head, value_prefix]), rows.values, tail]
    else:
        pieces = [_joined(head), rows.keys, _joined([value_prefix]), rows.values, tail]
    return _data_of(_join(pieces))


ENCODER: Compiled[Encoder] = Compiled(encode_by_numpy, _load_compiled, worth_compiling=100_000)


def encode_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """Each row's headers as they travel: count, then name and value of each; a null list has none."""
    flat = headers.flatten()
    names = flat.field(0).cast(pa.binary())
    if flat.null_count or names.null_count:
        raise ValueError("a header without a name: every element of the column headers needs a key")
    values = flat.field(1).cast(pa.binary())
    pieces = _join(
        [_joined([_varints(lengths_of(names))]), names, _joined([_varints(lengths_of(values))]), values]
    )
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    starts = _offsets_of(pieces)[bounds]
    grouped = pa.BinaryArray.from_buffers(
        pa.binary(), len(headers), [None, pa.py_buffer(starts.astype(np.int32)), pieces.buffers()[2]]
    )
    return _join([_joined([_varints(counts)]), grouped])


def _join(pieces: list[Any]) -> pa.BinaryArray:
    return pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


def _offsets_of(column: pa.BinaryArray) -> Numbers:
    raw = np.frombuffer(column.buffers()[1], np.int32)
    return raw[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _data_of(column: pa.BinaryArray) -> memoryview:
    offsets = _offsets_of(column)
    return memoryview(column.buffers()[2])[offsets[0] : offsets[-1]]


# -- varints of a whole column ---------------------------------------------------------------------------


class _Varints(NamedTuple):
    """Row i holds the varint of number i in its first `widths[i]` bytes."""

    table: npt.NDArray[np.uint8]
    widths: Numbers


def _zeros(count: int) -> _Varints:
    return _Varints(np.zeros((count, 1), np.uint8), np.ones(count, np.int64))


def _varints(numbers: Numbers) -> _Varints:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    longest = max(1, -(-int(zigzag.max(initial=0)).bit_length() // 7))
    widths = np.ones(len(numbers), np.int64)
    if longest == 1:
        return _Varints(zigzag.astype(np.uint8)[:, None], widths)
    for group in range(1, longest):
        widths += zigzag >= np.uint64(1 << 7 * group)
    table = np.empty((len(numbers), longest), np.uint8)
    for group in range(longest):
        low = ((zigzag >> np.uint64(7 * group)) & np.uint64(0x7F)).astype(np.uint8)
        table[:, group] = low | ((widths > group + 1).astype(np.uint8) << 7)
    return _Varints(table, widths)


def _joined(fields: list[_Varints]) -> pa.BinaryArray:
    """The varints of each row one after the other, as a column of bytes."""
    used = [np.arange(field.table.shape[1]) < field.widths[:, None] for field in fields]
    data = np.hstack([field.table for field in fields])[np.hstack(used)]
    ends = np.cumsum(sum(field.widths for field in fields))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
