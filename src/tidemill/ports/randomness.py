"""Randomness as a port, so that a simulation can replay from a seed."""

from __future__ import annotations

import os
import random
from typing import Protocol


class Randomness(Protocol):
    def below(self, limit: int) -> int:
        """A whole number from 0 up to, not including, `limit`."""
        ...

    def uuid(self) -> bytes:
        """Sixteen random bytes: a version-4 uuid whose text begins with no dash, as Kafka makes them."""
        ...


class SystemRandomness:
    def below(self, limit: int) -> int:
        return random.randrange(limit)

    def uuid(self) -> bytes:
        return _version_4(os.urandom(16))


class SeededRandomness:
    """The same numbers for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def uuid(self) -> bytes:
        return _version_4(self._random.randbytes(16))


def _version_4(raw: bytes) -> bytes:
    marked = bytearray(raw)
    marked[6] = (marked[6] & 0x0F) | 0x40
    marked[8] = (marked[8] & 0x3F) | 0x80
    if marked[0] >> 2 == 62:
        marked[0] &= 0x7F
    return bytes(marked)
