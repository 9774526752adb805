"""The sparse offset index: from an offset to a position in the segment's log file.

    entry = relative offset i32, position i32            (big endian, 8 bytes)

An entry names the *last* offset of a batch and where that batch begins. One is added for each
`index.interval.bytes` appended. With entries (99 -> 0), (180 -> 4210), (260 -> 8433) in a segment with base
offset 0, a search for 200 finds (180 -> 4210): the batch with 200 begins there or later, and a scan of the
batch headers from 4210 on meets it within about one interval.

Limits: offsets reach 2^31 - 1 beyond the base offset, positions 2^31 - 1; a segment rolls before either.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array

from tidemill.storage.sparse_index import CorruptIndex, SparseIndex

_I32 = struct.Struct(">i")
MAX_RELATIVE_OFFSET = 0x7FFF_FFFF


class OffsetIndex(SparseIndex):
    """(offset -> position), strictly increasing in both."""

    __slots__ = ()

    ENTRY = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        last = self.last_entry()
        assert 0 <= relative <= MAX_RELATIVE_OFFSET and not self.is_full
        assert last is None or (offset > last[0] and position > last[1]), "offsets and positions grow"
        self._write_entry(self.ENTRY.pack(relative, position), (offset, position))

    def entry(self, slot: int) -> tuple[int, int]:
        """(offset, position) in this slot."""
        assert 0 <= slot < self.count
        relative, position = self.ENTRY.unpack_from(self._view(), slot * 8)
        return self.base_offset + relative, position

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or below this offset."""
        slot = self._slot_at_or_below(offset - self.base_offset, _I32)
        return self.entry(slot) if slot >= 0 else None

    def first_at_or_after_position(self, position: int) -> tuple[int, int] | None:
        """The first entry whose batch begins at or after this position of the log file."""
        slot = self._slot_at_or_below(position - 1, _I32, key_position=4) + 1
        return self.entry(slot) if slot < self.count else None

    def last_position_up_to(self, position: int) -> int:
        """The last place at or before this one where a batch is known to begin; -1 if none is."""
        slot = self._slot_at_or_below(position, _I32, key_position=4)
        return self.entry(slot)[1] if slot >= 0 else -1

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above this offset."""
        self._shorten(self._slot_at_or_below(offset - 1 - self.base_offset, _I32) + 1)

    def check(self, next_offset: int, log_size: int) -> None:
        fields = array("i")
        fields.frombytes(self._view()[: self.size_bytes] if self.count else b"")
        if sys.byteorder == "little":
            fields.byteswap()
        offsets, positions = fields[0::2], fields[1::2]
        for name, values, limit in (
            ("offsets", offsets, next_offset - self.base_offset),
            ("positions", positions, log_size),
        ):
            increasing = all(map(operator.lt, values, values[1:]))
            if values and not (increasing and values[0] >= 0 and values[-1] < limit):
                raise CorruptIndex(f"{self.path}: {name} do not increase within the segment")
        self.is_checked = True
