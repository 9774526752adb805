"""Where the fields of records lie: one pass over the bytes, two ways to make it.

    record = length varint, attributes i8, timestamp delta varlong, offset delta varint,
             key length varint, key, value length varint, value, header count varint, headers

A record's place depends on the length of the one before it, so somebody has to walk. Python walks over the
lengths alone, and numpy reads the fields of all records at once. Numba, where it is installed, compiles the
whole walk into one loop, which makes decoding four times as fast, once there is enough to read (`spark.compiled`).

Both answer the same `Fields`, which tests compare; both refuse records that do not fit into their batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemill.model.errors import MalformedMessage
from tidemill.spark.compiled import Compiled

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class Pieces(NamedTuple):
    """Where the records of each batch lie in one buffer, and what completes them."""

    starts: Numbers
    ends: Numbers
    counts: Numbers
    base_offsets: Numbers
    base_timestamps: Numbers


class Fields(NamedTuple):
    """Per record: its offset and time, and where its key, value and headers begin; a length of -1 is null."""

    offsets: Numbers
    timestamps: Numbers
    key_starts: Numbers
    key_lengths: Numbers
    value_starts: Numbers
    value_lengths: Numbers
    header_starts: Numbers
    ends: Numbers

    def where(self, mask: NDArray[np.bool_]) -> Fields:
        return Fields(*(column[mask] for column in self))


Scanner = Callable[[Bytes, Pieces], Fields]


def scan(buffer: Bytes, pieces: Pieces, expected: int = 0) -> Fields:
    """The fields of all records; `expected` is how many this process will probably come to in all."""
    return SCANNER.choose(int(pieces.counts.sum()), expected)(buffer, pieces)


def _load_compiled() -> Scanner:
    from tidemill.spark.source.compiled_scanning import scan_compiled

    nothing = np.zeros(0, np.int64)
    scan_compiled(np.zeros(0, np.uint8), Pieces(nothing, nothing, nothing, nothing, nothing))
    return scan_compiled


def damaged(pieces: Pieces, piece: int) -> MalformedMessage:
    return MalformedMessage(f"records of the batch at offset {pieces.base_offsets[piece]} are damaged")


# -- with Python and numpy ------------------------------------------------------------------------------


def scan_by_numpy(buffer: Bytes, pieces: Pieces) -> Fields:
    starts, ends = _record_bounds(buffer, pieces)
    try:
        positions = starts + 1
        deltas, positions = read_varints(buffer, positions)
        offset_deltas, positions = read_varints(buffer, positions)
        key_lengths, key_starts = read_varints(buffer, positions)
        value_lengths, value_starts = read_varints(buffer, key_starts + np.maximum(key_lengths, 0))
        header_starts = value_starts + np.maximum(value_lengths, 0)
    except IndexError:
        raise MalformedMessage("a record is longer than its batch") from None
    bad = (header_starts >= ends) | (header_starts < value_starts) | (value_starts <= key_starts)
    if bad.any():
        raise damaged(pieces, int(np.searchsorted(np.cumsum(pieces.counts), np.argmax(bad), side="right")))
    offsets = offset_deltas + np.repeat(pieces.base_offsets, pieces.counts)
    timestamps = deltas + np.repeat(pieces.base_timestamps, pieces.counts)
    return Fields(
        offsets, timestamps, key_starts, key_lengths, value_starts, value_lengths, header_starts, ends
    )


SCANNER: Compiled[Scanner] = Compiled(scan_by_numpy, _load_compiled, worth_compiling=400_000)


def _record_bounds(buffer: Bytes, pieces: Pieces) -> tuple[Numbers, Numbers]:
    """Where each record's attributes stand, and where it ends."""
    starts: list[int] = []
    ends: list[int] = []
    data = buffer.data
    for piece, (start, end, count) in enumerate(zip(*(a.tolist() for a in pieces[:3]), strict=True)):
        try:
            reached = _walk(data, start, count, starts, ends)
        except IndexError:
            reached = -1
        if reached != end:
            raise damaged(pieces, piece)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _walk(data: memoryview, position: int, count: int, starts: list[int], ends: list[int]) -> int:
    """Follow `count` lengths; -1 when one is negative or has no end."""
    for _ in range(count):
        length = data[position]
        position += 1
        if length >= 0x80:
            length &= 0x7F
            shift = 7
            while True:
                byte = data[position]
                position += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        if length & 1 or length >> 40:
            return -1
        starts.append(position)
        position += length >> 1
        ends.append(position)
    return position


def read_varints(buffer: Bytes, positions: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag numbers at these positions, and the positions behind them."""
    byte = buffer[positions].astype(np.int64)
    values = byte & 0x7F
    positions = positions + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while more.size:
        if shift > 63:
            raise MalformedMessage("a varint is longer than ten bytes")
        byte = buffer[positions[more]].astype(np.int64)
        values[more] |= (byte & 0x7F) << shift
        positions[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return ((values >> 1) & np.int64(0x7FFF_FFFF_FFFF_FFFF)) ^ -(values & 1), positions


class Headers(NamedTuple):
    """Of each record the number of headers; of each header, in order, where name and value lie."""

    counts: Numbers
    name_starts: Numbers
    name_lengths: Numbers
    value_starts: Numbers
    value_lengths: Numbers


def scan_headers(buffer: Bytes, fields: Fields) -> Headers:
    """All headers, found in rounds: first the first header of each record, then the second …"""
    try:
        counts, positions = read_varints(buffer, fields.header_starts)
        found = [] if not counts.size else list(_header_rounds(buffer, counts, positions))
    except IndexError:
        raise MalformedMessage("a record header is longer than its batch") from None
    if not found:
        nothing = np.zeros(0, np.int64)
        return Headers(counts, nothing, nothing, nothing, nothing)
    columns: list[Any] = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Headers(counts, *(column[order] for column in columns[1:]))


def _header_rounds(buffer: Bytes, counts: Numbers, positions: Numbers) -> list[tuple[Numbers, ...]]:
    if counts.min() < 0 or counts.sum() > buffer.size:
        raise MalformedMessage("a record claims more headers than it has room for")
    rounds: list[tuple[Numbers, ...]] = []
    rows = np.flatnonzero(counts > 0)
    while rows.size:
        name_lengths, name_starts = read_varints(buffer, positions[rows])
        value_lengths, value_starts = read_varints(buffer, name_starts + name_lengths)
        if name_lengths.min() < 0:
            raise MalformedMessage("a record header has no name")
        positions[rows] = value_starts + np.maximum(value_lengths, 0)
        rounds.append((rows, name_starts, name_lengths, value_starts, value_lengths))
        rows = rows[counts[rows] > len(rounds)]
    if (positions > buffer.size).any():
        raise MalformedMessage("a record header is longer than its batch")
    return rounds
