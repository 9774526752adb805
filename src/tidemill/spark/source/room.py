"""Where compressed batches are unpacked: one behind the other in the same buffer, until it is full.

    room = Room()
    room.unpack(ZSTD, packed)      # -> (buffer, 0, 70_000)
    room.unpack(ZSTD, packed)      # -> (the same buffer, 70_000, 140_000)

Batches that stand in one buffer need not be joined before they become columns (see `decoding`), and a buffer of
megabytes is neither filled with zeros nor cut to size. Whether the next batch still fits is guessed from how well the
last one was packed; a wrong guess costs its decompression anew, in a new buffer.

What comes in may be a bomb, so a buffer grows in steps and never beyond `limit`. Nothing is written into a buffer that
is full: it lives as long as anybody refers to it.
"""

from __future__ import annotations

import numpy as np

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import Buffer
from tidemill.wire.compression import decompress_into

ROOM_BYTES = 8 << 20
"""As much as `decoding` makes columns of at a time, so that what stands at the end of one buffer is seldom joined with
the beginning of the next."""
LARGEST_BATCH_BYTES = 1 << 30
_FIRST_GUESS_RATIO = 4.0
_LARGEST_RATIO = 16.0
"""What is packed better is found not to fit: one such batch must not make the next buffers huge."""
_RESERVE = 1.2
_GROWTH = 4


class Room:
    """A buffer and how far it is used."""

    def __init__(self, size: int = ROOM_BYTES, limit: int = LARGEST_BATCH_BYTES) -> None:
        self._size = size
        self._limit = limit
        self._ratio = _FIRST_GUESS_RATIO
        self._buffer = memoryview(b"")
        self._used = 0

    def unpack(self, codec: int, packed: Buffer) -> tuple[memoryview, int, int]:
        """The buffer, and where in it the bytes begin and end."""
        guess = int(len(packed) * self._ratio * _RESERVE)
        if self._left < min(guess, self._limit):
            self._renew(guess)
        while (written := decompress_into(codec, packed, self._free())) is None:
            if self._left >= self._limit:
                raise MalformedMessage(f"a batch holds more than {self._limit} bytes of records")
            self._renew(max(self._left, len(packed)) * _GROWTH)
        start, self._used = self._used, self._used + written
        self._ratio = min(written / max(len(packed), 1), _LARGEST_RATIO)
        return self._buffer, start, self._used

    @property
    def _left(self) -> int:
        return len(self._buffer) - self._used

    def _free(self) -> memoryview:
        return self._buffer[self._used : self._used + self._limit]

    def _renew(self, wanted: int) -> None:
        self._buffer = np.empty(min(max(wanted, self._size), self._limit), np.uint8).data
        self._used = 0
