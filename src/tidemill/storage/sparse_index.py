"""What the offset index and the time index have in common: a sorted array of fixed entries in a mapped file.

Entries are written with `pwrite` and looked up through a memory map, which shows the same pages. (A store
through the map would be shorter, but the first store into a page of a sparse file makes the file system allocate
within a page fault: two milliseconds where `pwrite` takes one microsecond, and SIGBUS instead of an error when
the disk is full.) Nothing is created before the first entry and nothing is mapped before the first lookup, so an
idle partition costs neither a file nor address space.

The map of a growing index covers `segment.index.bytes`, rounded down to whole entries, and the file is made that
long (sparse) for it; sealing cuts the file to its entries.

Lookup is a binary search in two parts: the last 8192 bytes first (the warm section, whose pages every tail
lookup touches and so keeps in memory), the rest only when the target lies before it.

An index read from disk is checked once, before its first use: whole entries, strictly increasing, within the
segment. What the check refuses is rebuilt from the log by the segment.
"""

from __future__ import annotations

from struct import Struct

from tidemill.model.errors import TidemillError
from tidemill.ports.files import Files, MappedFile, OpenFile
from tidemill.storage.open_files import OpenFiles

WARM_BYTES = 8192


class CorruptIndex(TidemillError):
    """An index that cannot be what was written; the log can rebuild it."""


class SparseIndex:
    """A lazily mapped file of entries sorted by their first field. Subclasses know the fields."""

    __slots__ = (
        "_buffer", "_file", "_files", "_is_growing", "_last", "_map", "_open_files", "base_offset", "capacity", "count",
        "is_checked", "path", "recently_used",
    )  # fmt: skip

    ENTRY: Struct

    def __init__(
        self, files: Files, open_files: OpenFiles, path: str, base_offset: int, max_bytes: int
    ) -> None:
        self._files = files
        self._open_files = open_files
        self.path = path
        self.base_offset = base_offset
        self.capacity = max_bytes // self.ENTRY.size
        """Most entries that fit into the configured size."""
        self.count = 0
        self.is_checked = True
        self.recently_used = False
        self._map: MappedFile | None = None
        self._buffer: memoryview | None = None
        self._file: OpenFile | None = None
        self._last: tuple[int, int] | None = None
        """The last entry, if it is known without looking."""
        self._is_growing = False
        """Whether entries were added since it was last cut, so that the file may be longer than its entries."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries; the file of an active segment is longer."""
        return self.count * self.ENTRY.size

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity

    # -- loading and checking -------------------------------------------------------------------------

    def load(self) -> None:
        """Take over a file of a sealed segment, or of one that was closed properly."""
        size = self._files.size(self.path) if self._files.exists(self.path) else -1
        if size < 0 or size % self.ENTRY.size:
            raise CorruptIndex(f"{self.path} is missing or holds no whole number of entries ({size} bytes)")
        self.count = size // self.ENTRY.size
        self.is_checked = self.count == 0
        self._last = None

    def check(self, next_offset: int, log_size: int) -> None:
        """Raise CorruptIndex unless the entries could be those of a segment of this extent."""
        raise NotImplementedError

    # -- the file and its map -------------------------------------------------------------------------

    def entry(self, slot: int) -> tuple[int, int]:
        """The fields of an entry, offsets made absolute."""
        raise NotImplementedError

    def last_entry(self) -> tuple[int, int] | None:
        if self._last is None and self.count:
            self._last = self.entry(self.count - 1)
        return self._last

    def _write_entry(self, packed: bytes, entry: tuple[int, int]) -> None:
        """Add an entry; after an OSError the slot is still free."""
        self.recently_used = True
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
            self._open_files.enrol(self)
        if not self._is_growing:
            self._unmap()
            self._is_growing = True
        self._file.write((packed,), self.count * self.ENTRY.size)
        self.count += 1
        self._last = entry

    def _view(self) -> memoryview:
        """The mapped entries; only called when there are some."""
        self.recently_used = True
        if self._buffer is None:
            mapped_entries = max(self.capacity, self.count) if self._is_growing else self.count
            self._map = self._files.map(self.path, mapped_entries * self.ENTRY.size)
            self._buffer = self._map.buffer
            self._open_files.enrol(self)
        return self._buffer

    def _unmap(self) -> None:
        mapped, self._map, self._buffer = self._map, None, None
        if mapped is not None:
            mapped.close()

    def release(self) -> None:
        """Unmap and close; the count stays, the next use opens again."""
        self._unmap()
        self._file = None
        self._open_files.withdraw(self)

    def sync(self) -> None:
        """To disk; only for sealed indexes, as recovery rebuilds the others."""
        file = self._files.open(self.path)
        file.sync()
        file.close()

    def seal(self) -> None:
        """Cut the file to its entries; made if there are none, as tools expect every index to exist."""
        if self._is_growing or not self._files.exists(self.path):
            self._cut_file()

    def reset(self) -> None:
        """Forget all entries; what is in the file is overwritten, or cut off by the seal."""
        self.release()
        self.count = 0
        self._last = None
        self.is_checked = True
        self._is_growing = self._files.exists(self.path)

    def _cut_file(self) -> None:
        self.release()
        self._last = None
        file = self._files.open(self.path, create=True)
        file.truncate(self.size_bytes)
        self._is_growing = False

    # -- searching ------------------------------------------------------------------------------------

    def _slot_at_or_below(self, target: int, key: Struct, key_position: int = 0) -> int:
        """The last slot whose field at `key_position` is <= target, or -1."""
        count = self.count
        if count == 0:
            return -1
        buffer = self._view()
        unpack_from = key.unpack_from
        size = self.ENTRY.size
        low, high = 0, count
        warm = count - WARM_BYTES // size
        if warm > 0:
            if unpack_from(buffer, warm * size + key_position)[0] <= target:
                low = warm
            else:
                high = warm
        while low < high:
            middle = (low + high) >> 1
            if unpack_from(buffer, middle * size + key_position)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _shorten(self, count: int) -> None:
        """Drop the entries from this slot on."""
        assert 0 <= count <= self.count
        if count < self.count:
            self.count = count
            self._cut_file()
