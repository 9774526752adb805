"""The aborted transactions whose markers lie in one segment.

    entry = version i16 (0), producer id i64, first offset i64, last offset i64, last stable offset i64
                                                                               (big endian, 34 bytes)

A reader of committed data must skip the records of aborted transactions; with each fetch it gets the ones
that touch its range. `last offset` is the marker's, `last stable offset` the one right after the abort: once
an entry's last stable offset reaches the end of the range, no later entry can touch the range, and the
search ends. Example: producer 7 wrote offsets 10..14 and was aborted at 20 while producer 8 had been open
since 12: (7, 10, 20, 12).

The file is made with its first entry; most segments never have one. Entries of a segment are read whole
(aborts are rare) and kept. Those of an earlier process are compared with the log before they are used
(`transaction_walk`).

Limits: not mapped, not cached beyond its own segment's entries.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.ports.files import Files
from tidemill.storage.sparse_index import CorruptIndex

logger = logging.getLogger(__name__)

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
VERSION = 0
UNKNOWN = -1


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The `.txnindex` file of one segment."""

    __slots__ = ("_base_offset", "_entries", "_files", "added", "is_checked", "path", "stable_after")

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._files = files
        self._base_offset = base_offset
        self.path = path
        self.is_checked = False
        """Whether its entries were made here, or compared with the log (see `transaction_walk`)."""
        self.added: list[AbortedTransaction] = []
        """Made here while the others were not checked."""
        self.stable_after = UNKNOWN
        """Where the oldest transaction begins that is open at the segment's end (or that end): markers in later
        segments say nothing about what lies below. UNKNOWN if nobody looked."""
        self._entries: list[AbortedTransaction] | None = None

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All of them, in order of their markers; raises CorruptIndex."""
        if self._entries is None:
            data = self._files.read_all(self.path) if self._files.exists(self.path) else b""
            self._entries = self._parse(data)
        return self._entries

    def _parse(self, data: bytes) -> list[AbortedTransaction]:
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{self.path} holds no whole number of entries ({len(data)} bytes)")
        entries: list[AbortedTransaction] = []
        last = self._base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction._make(fields)
            if version != VERSION or not entry.last_offset > last or entry.first_offset > entry.last_offset:
                raise CorruptIndex(
                    f"{self.path}: entry {len(entries)} is no aborted transaction of this segment"
                )
            last = entry.last_offset
            entries.append(entry)
        return entries

    def append(self, entry: AbortedTransaction) -> None:
        entries = self.entries if self.is_checked else self.added
        assert not entries or entry.last_offset > entries[-1].last_offset, "markers come in order"
        file = self._files.open(self.path, create=True)
        end = (len(entries) if self.is_checked else file.size() // ENTRY_SIZE) * ENTRY_SIZE
        try:
            file.write((_ENTRY.pack(VERSION, *entry),), end)
        except OSError:
            file.truncate(end)
            raise
        entries.append(entry)
        if not self.is_checked:
            self._entries = None

    def take_back(self) -> None:
        """The marker of the last entry could not be written."""
        entries = self.entries if self.is_checked else self.added
        del entries[-1]
        if not self.is_checked:
            self._entries = None
        file = self._files.open(self.path)
        file.truncate(max(0, file.size() - ENTRY_SIZE))
        file.close()

    def settle(self, derived: Sequence[AbortedTransaction], stable_after: int) -> None:
        """The log says that these are its entries: make the file anew if it says something else."""
        if not self.is_checked:
            self._entries = None
            try:
                is_sound = self.entries == derived
            except CorruptIndex:
                is_sound = False
            if not is_sound:
                logger.warning("%s disagrees with its log and is made anew", self.path)
                self.reset()
                for entry in derived:
                    self.append(entry)
            self.is_checked = True
            self.added = []
        self.stable_after = stable_after

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose markers are at or above this offset."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) < len(self.entries):
            self._cut(len(kept))
        self._entries = kept
        self.added = [entry for entry in self.added if entry.last_offset < offset]
        self.stable_after = UNKNOWN

    def reset(self) -> None:
        """Forget everything, also a damaged file."""
        if self._files.exists(self.path):
            self._cut(0)
        self._entries, self.added = [], []
        self.is_checked = True
        self.stable_after = UNKNOWN

    def _cut(self, count: int) -> None:
        file = self._files.open(self.path)
        file.truncate(count * ENTRY_SIZE)
        file.close()

    def sync(self) -> None:
        if self._files.exists(self.path):
            file = self._files.open(self.path)
            file.sync()
            file.close()


def collect(
    entries: Iterable[AbortedTransaction], start_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Those that touch [start, end), and whether later segments need not be asked."""
    found = []
    for entry in entries:
        if entry.last_offset >= start_offset and entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return found, True
    return found, False
