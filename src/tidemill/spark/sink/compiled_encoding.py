"""The encoder compiled by numba: one loop that writes all records behind one another, see `encoding`.

Columns come in as Arrow keeps them: offsets, bytes, and a bit for each value that is not null. A byte is copied once.

Compiled code is kept beside this file (or in the user's cache folder where that cannot be written), so that a process
after the first only loads it. The loop releases the interpreter lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from tidemill.spark.sink.encoding import Numbers, Rows, lengths_of

Bytes = npt.NDArray[np.uint8]

MOST_FRAME_BYTES = 1 + 10 + 10 + 5 + 5 + 5 + 1
"""Attributes, both deltas, three lengths and a header count of zero."""


class Column(NamedTuple):
    """A column of bytes; without bits nothing is null, without offsets everything is."""

    offsets: npt.NDArray[np.int32]
    data: Bytes
    bits: Bytes
    first_bit: int


def _frozen(buffer: Any, kind: type) -> Any:
    """An array over a buffer that nobody writes to: always of one type, so that the loop is compiled once."""
    array: Any = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array


_NOTHING = _frozen(b"", np.uint8)
_ALL = np.empty(0, np.int64)
_ABSENT = Column(_frozen(b"", np.int32), _NOTHING, _NOTHING, 0)


@njit(cache=True, nogil=True, inline="always")
def _zigzag(number: Any) -> Any:
    return (number << 1) ^ (number >> 63)


@njit(cache=True, nogil=True, inline="always")
def _width(number: Any) -> Any:
    value, width = _zigzag(number) >> 7, 1
    while value:
        value >>= 7
        width += 1
    return width


@njit(cache=True, nogil=True, inline="always")
def _put(out: Bytes, position: Any, number: Any) -> Any:
    value = _zigzag(number)
    while value > 0x7F:
        out[position] = (value & 0x7F) | 0x80
        value >>= 7
        position += 1
    out[position] = value
    return position + 1


@njit(cache=True, nogil=True, inline="always")
def _length(column: Any, row: Any) -> Any:
    """Bytes of this value, -1 for null."""
    offsets, _, bits, first_bit = column
    if not offsets.size:
        return np.int64(-1)
    if bits.size:
        bit = first_bit + row
        if not (bits[bit >> 3] >> (bit & 7)) & 1:
            return np.int64(-1)
    return np.int64(offsets[row + 1]) - np.int64(offsets[row])


@njit(cache=True, nogil=True, inline="always")
def _copy(out: Bytes, position: Any, column: Any, row: Any, length: Any) -> Any:
    start, data = column[0][row], column[1]
    for index in range(length):
        out[position + index] = data[start + index]
    return position + length


@njit(cache=True, nogil=True)
def _fill(
    out: Bytes, first: Any, times: Numbers, places: Numbers, keys: Any, values: Any, headers: Any
) -> int:
    """Write all records; answers where they end. `times` are deltas; without `places` it is all rows."""
    position = 0
    for number in range(times.size):
        row = places[number] if places.size else number
        key, value, header = _length(keys, row), _length(values, row), _length(headers, row)
        body = 1 + _width(times[number]) + _width(first + number) + _width(key) + max(key, 0)
        body += _width(value) + max(value, 0) + (header if header >= 0 else 1)
        position = _put(out, position, np.int64(body))
        out[position] = 0
        position = _put(out, position + 1, times[number])
        position = _put(out, position, first + number)
        position = _put(out, position, key)
        if key > 0:
            position = _copy(out, position, keys, row, key)
        position = _put(out, position, value)
        if value > 0:
            position = _copy(out, position, values, row, value)
        if header >= 0:
            position = _copy(out, position, headers, row, header)
        else:
            out[position] = 0
            position += 1
    return position


def encode_compiled(rows: Rows, first_offset_delta: int, base_timestamp_ms: int) -> memoryview:
    columns = [_column(each) for each in (rows.keys, rows.values, rows.headers)]
    present = [each for each in (rows.keys, rows.values, rows.headers) if each is not None]
    size = sum(int(np.maximum(lengths_of(each, rows.places), 0).sum()) for each in present)
    out = np.empty(size + MOST_FRAME_BYTES * len(rows), np.uint8)
    places = _ALL if rows.places is None else rows.places
    end = _fill(out, np.int64(first_offset_delta), rows.times_ms - base_timestamp_ms, places, *columns)
    return out.data[:end]


def _column(array: pa.BinaryArray | None) -> Column:
    if array is None or not len(array):
        return _ABSENT
    validity, offsets, data = array.buffers()
    places = _frozen(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    bits = _frozen(validity, np.uint8) if array.null_count else _NOTHING
    return Column(places, _NOTHING if data is None else _frozen(data, np.uint8), bits, array.offset)
