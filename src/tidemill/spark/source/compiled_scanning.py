"""The scanner compiled by numba: one loop over all records of all batches, see `scanning`.

Compiled code is kept beside this file (or in the user's cache folder where that cannot be written), so that
a process after the first only loads it. The loop releases the interpreter lock.

Limits: numbers are int64 throughout, because numba turns int64 with uint64 into floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.spark.source.scanning import Bytes, Fields, Numbers, Pieces, damaged

_SIGN_OFF = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_COLUMNS = len(Fields._fields)


@njit(cache=True, nogil=True, inline="always")
def _varint(buffer: Bytes, position: Any, end: Any) -> tuple[Any, Any]:
    """The number and the position behind it, which is beyond `end` when it is cut off."""
    value = np.int64(0)
    shift = np.int64(0)
    while position < end and shift < 70:
        byte = np.int64(buffer[position])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & _SIGN_OFF) ^ -(value & 1), position
        shift += 7
    return np.int64(0), end + 1


@njit(cache=True, nogil=True)
def _fill(
    buffer: Bytes, starts: Numbers, ends: Numbers, counts: Numbers, offsets: Numbers, times: Numbers, out: Any
) -> int:
    """Fill the rows of `out`; answers the number of the first damaged batch, or -1."""
    row = 0
    for piece in range(starts.size):
        position, end = starts[piece], ends[piece]
        for _ in range(counts[piece]):
            length, position = _varint(buffer, position, end)
            stop = position + length
            if length < 0 or stop > end:
                return piece
            time, position = _varint(buffer, position + 1, stop)
            offset, position = _varint(buffer, position, stop)
            key_length, position = _varint(buffer, position, stop)
            out[2, row], out[3, row] = position, key_length
            value_length, position = _varint(buffer, position + max(key_length, 0), stop)
            out[4, row], out[5, row] = position, value_length
            position += max(value_length, 0)
            if position >= stop:
                return piece
            out[0, row] = offsets[piece] + offset
            out[1, row] = times[piece] + time
            out[6, row], out[7, row] = position, stop
            position = stop
            row += 1
        if position != end:
            return piece
    return -1


def scan_compiled(buffer: Bytes, pieces: Pieces) -> Fields:
    out = np.empty((_COLUMNS, int(pieces.counts.sum())), np.int64)
    frozen = buffer.view()
    frozen.flags.writeable = False  # one type of array, so that it is compiled once
    bad = _fill(frozen, *pieces, out)
    if bad >= 0:
        raise damaged(pieces, bad)
    return Fields(*out)
