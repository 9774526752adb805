"""Frames that are a little wrong. The same seed gives the same frames."""

from __future__ import annotations

import random
import struct

from tidemill.api.table import API_BY_KEY
from tidemill.model.errors import MalformedMessage
from tidemill.wire.frames import read_client_id, read_fixed_header

INTERESTING = (
    b"\xff", b"\x7f", b"\x80", b"\x00", b"\xff\xff", b"\x7f\xff", b"\x80\x00", b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff\x0f", b"\x00\x10\x00\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xff" * 10,
)  # fmt: skip
KEPT_HEADER_BYTES = 8
"""API key, version, correlation id."""


class Mutator:
    def __init__(self, frames: list[bytes], seed: int) -> None:
        self._frames = frames
        self._chance = random.Random(seed)

    def next_frame(self) -> bytes:
        """A frame with its size before it; one in fifty lies about the size."""
        chance = self._chance
        data = bytearray(chance.choice(self._frames))
        begin = 0 if chance.random() < 0.2 else min(KEPT_HEADER_BYTES + chance.randint(0, 12), len(data) - 1)
        for _ in range(chance.choice((1, 1, 1, 1, 2, 2, 4))):
            self._mutate(data, begin)
        size = len(data)
        if chance.random() < 0.02:
            size = chance.choice(
                (0, 1, size - 1, size + 1, size * 2, -1, 2**31 - 1, chance.randint(0, 2_000))
            )
        return struct.pack(">i", size) + data

    def _mutate(self, data: bytearray, begin: int) -> None:
        chance = self._chance
        if begin >= len(data):
            data += chance.randbytes(4)
            return
        at = chance.randrange(begin, len(data))
        kind = chance.randrange(8)
        if kind <= 1:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[at] = chance.randrange(256)
        elif kind <= 4:
            chosen = chance.choice(INTERESTING)
            data[at : at + len(chosen)] = chosen
        elif kind == 5:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 6:
            data[at:at] = chance.randbytes(chance.randint(1, 16))
        else:
            data[at:at] = data[at : at + chance.randint(1, 40)]


def passes_header(frame: bytes) -> bool:
    """Whether a frame has the right size and a header that leads the broker into its body."""
    payload = memoryview(frame)[4:]
    if struct.unpack_from(">i", frame)[0] != len(payload):
        return False
    try:
        key, version, _, client_length = read_fixed_header(payload)
        api = API_BY_KEY.get(key)
        if api is None or not api.supports(version):
            return False
        read_client_id(payload, client_length, version >= api.flexible_since)
    except MalformedMessage:
        return False
    return True
