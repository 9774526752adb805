"""The files of a partition as a fault test sees them: segments, positions of batches, and ways to damage them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from raw import fetch

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.batch import HEADER_SIZE, BatchHeader, checksum, iterate_headers, iterate_records

VISIBLE_SECONDS = 5.0


def segments(data_dir: str, topic: str, partition: int = 0, suffix: str = ".log") -> list[Path]:
    """The files of one kind, oldest first."""
    return sorted(Path(data_dir, f"{topic}-{partition}").glob(f"*{suffix}"))


def batches(path: Path) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the whole batches of a segment."""
    return list(iterate_headers(path.read_bytes()))


def position_after(path: Path, next_offset: int) -> int:
    """Where in this segment the first batch at or after `next_offset` begins."""
    position = 0
    for position, header in batches(path):
        if header.base_offset >= next_offset:
            return position
        position += header.size
    return position


def flip_bit(path: Path, position: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


# -- what a power failure may do to bytes that were not synced -----------------------------------------
#
# Pages that never reached the disk are missing (the file is shorter) or zero, in any order: the disk may write later
# pages first. The end may hold noise. What it does not do is change single bytes in the middle of written pages.

PAGE_BYTES = 4096
Tear = Callable[[random.Random, bytes, int], bytes]
"""(chance, the bytes that were not synced, their position in the file) -> what is left of them."""


def drop_some(chance: random.Random, tail: bytes, position: int) -> bytes:
    return tail[: chance.randint(0, len(tail))]


def lose_pages(chance: random.Random, tail: bytes, position: int) -> bytes:
    left = bytearray(tail)
    for page in range(position // PAGE_BYTES, (position + len(tail)) // PAGE_BYTES + 1):
        if chance.random() < 0.3:
            begin, end = max(0, page * PAGE_BYTES - position), (page + 1) * PAGE_BYTES - position
            left[begin:end] = bytes(len(left[begin:end]))
    return bytes(left)


def zero_from_somewhere(chance: random.Random, tail: bytes, position: int) -> bytes:
    keep = chance.randint(0, len(tail))
    return tail[:keep] + bytes(len(tail) - keep)


def noise_from_somewhere(chance: random.Random, tail: bytes, position: int) -> bytes:
    keep = chance.randint(0, len(tail))
    return tail[:keep] + chance.randbytes(len(tail) - keep)


def noise_behind(chance: random.Random, tail: bytes, position: int) -> bytes:
    return drop_some(chance, tail, position) + chance.randbytes(chance.randint(1, 3_000))


def zeros_behind(chance: random.Random, tail: bytes, position: int) -> bytes:
    return tail + bytes(chance.randint(1, 5_000))


TEARS: tuple[Tear, ...] = (
    drop_some,
    lose_pages,
    zero_from_somewhere,
    noise_from_somewhere,
    noise_behind,
    zeros_behind,
)


def tear_tail(chance: random.Random, path: Path, boundary: int) -> str:
    """Damage what lies behind `boundary`; the name of what was done."""
    data = path.read_bytes()
    tear = chance.choice(TEARS)
    path.write_bytes(data[:boundary] + tear(chance, data[boundary:], boundary))
    return tear.__name__


# -- reading back ---------------------------------------------------------------------------------------


def read_values(
    bootstrap: str, topic: str, first: int = 0, *, partition: int = 0, at_least: int = 0
) -> list[bytes]:
    """All values from offset `first`, with every checksum compared and every offset in its place.

    A broker that has just recovered shows what it found a moment later, when it is synced: until the log ends at
    `at_least`, the reader waits, as a consumer would.
    """
    values: list[bytes] = []
    deadline = time.monotonic() + VISIBLE_SECONDS
    with WireClient(bootstrap) as connection:
        while True:
            offset = first + len(values)
            part = fetch(connection, topic, offset, partition=partition, max_wait_ms=0)
            assert part.error_code == 0, f"{ErrorCode(part.error_code).name} at offset {offset}"
            values += values_from(part.records or b"", offset)
            if first + len(values) >= max(part.high_watermark, at_least):
                return values
            assert time.monotonic() < deadline, (
                f"the log ends at {part.high_watermark}, {at_least} was promised"
            )


def values_from(data: bytes, offset: int) -> list[bytes]:
    """The values of fetched batches from this offset on; nothing may be damaged or missing."""
    values = []
    for position, header in iterate_headers(data):
        assert header.crc == checksum(data, position, header.size), f"damaged batch served at {offset}"
        payload = data[position + HEADER_SIZE : position + header.size]
        for record in iterate_records(header, payload):
            if record.offset >= offset:
                assert record.offset == offset + len(values), f"offset {offset + len(values)} is missing"
                values.append(record.value or b"")
    return values
