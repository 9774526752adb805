"""The sparse time index: from a timestamp to an offset.

    entry = timestamp i64, relative offset i32            (big endian, 12 bytes)

An entry says: the largest timestamp seen so far is this one, and the batch that brought it ends at this
offset; whatever is newer comes after it. Entries are added beside those of the offset index, but only when
the largest timestamp grew, so timestamps and offsets both increase strictly. The last slot is kept free for
the entry added when the segment is sealed: it holds the segment's largest timestamp, which retention reads.

With entries (1000 -> 99), (1500 -> 260), a search for 1200 finds (1000 -> 99): the first message with a
timestamp >= 1200 is after offset 99, found by a scan from there.

Limits: negative timestamps are never indexed.
"""

from __future__ import annotations

import struct

from tidemill.storage.offset_index import MAX_RELATIVE_OFFSET
from tidemill.storage.sparse_index import CorruptIndex, SparseIndex

_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")


class TimeIndex(SparseIndex):
    """(timestamp -> offset), strictly increasing in both."""

    __slots__ = ()

    ENTRY = struct.Struct(">qi")

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add the entry if its timestamp is larger than the last one's and there is a slot."""
        last = self.last_entry()
        if timestamp < 0 or self.count >= self.capacity or (last is not None and timestamp <= last[0]):
            return
        relative = offset - self.base_offset
        assert 0 <= relative <= MAX_RELATIVE_OFFSET
        assert last is None or offset > last[1], "a larger timestamp comes with a later offset"
        self._write_entry(self.ENTRY.pack(timestamp, relative), (timestamp, offset))

    def entry(self, slot: int) -> tuple[int, int]:
        """(timestamp, offset) in this slot."""
        assert 0 <= slot < self.count
        timestamp, relative = self.ENTRY.unpack_from(self._view(), slot * 12)
        return timestamp, self.base_offset + relative

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry at or below this timestamp."""
        slot = self._slot_at_or_below(timestamp, _I64)
        return self.entry(slot) if slot >= 0 else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above this offset."""
        self._shorten(self._slot_at_or_below(offset - 1 - self.base_offset, _I32, key_position=8) + 1)

    def check(self, next_offset: int, log_size: int) -> None:
        last_timestamp, last_relative = -1, -1
        # A copy: a view held by the traceback of the error would keep the map from closing.
        entries = bytes(self._view()[: self.size_bytes]) if self.count else b""
        for timestamp, relative in self.ENTRY.iter_unpack(entries):
            if timestamp <= last_timestamp or relative <= last_relative:
                raise CorruptIndex(f"{self.path}: entries do not increase")
            last_timestamp, last_relative = timestamp, relative
        if last_relative >= next_offset - self.base_offset:
            raise CorruptIndex(f"{self.path}: the last entry lies beyond the segment")
        self.is_checked = True
