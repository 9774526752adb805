"""Checking a segment's side files against its batches, while the batches pass by.

Each check holds one file's entries (at most `segment.index.bytes`) and walks along them as the batches come, so a
segment is read once and never held:

    for position, header in ...the batches of the segment...:
        for check in checks:
            yield from check.batch(position, header, marker)
    for check in checks:
        yield from check.end()

What must hold. Offset index: an entry (offset, position) names the last offset of the batch that begins at this
position. Time index: at the batch with the entry's offset, the largest timestamp so far is the entry's. Index
of aborts: every entry ends at an abort marker of its producer, and every abort of data has an entry.

The index of the segment that was active when the broker was killed is longer than its entries; its tail of
zeros is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

from tidemill.ports.files import Files
from tidemill.storage.inspect_findings import Finding, Severity
from tidemill.storage.producer_state import EndMarker
from tidemill.wire.batch import BatchHeader

_ABORT_BYTES = 34


class SideFile(Protocol):
    def batch(self, position: int, header: BatchHeader, marker: EndMarker | None) -> Iterator[Finding]: ...

    def end(self) -> Iterator[Finding]: ...


def read_entries(
    files: Files, path: str, entry: str, *, is_active: bool = False
) -> tuple[list[tuple[int, ...]], list[Finding]]:
    """The entries of an index file without a tail of zeros, and what is wrong with its form."""
    if is_active and not files.exists(path):
        text = "not there yet: the index of an active segment comes with its first entry"
        return [], [Finding(Severity.NOTE, path, text)]
    if not files.exists(path):
        return [], [Finding(Severity.WARNING, path, "the file is missing; it will be rebuilt")]
    data = files.read_all(path)
    size = struct.calcsize(entry)
    findings = []
    if len(data) % size:
        text = f"{len(data)} bytes are no whole number of entries of {size}; it will be rebuilt"
        findings.append(Finding(Severity.WARNING, path, text))
    data = data[: len(data) // size * size]
    used = -(-len(data.rstrip(b"\0")) // size) * size
    entries = list(struct.iter_unpack(entry, data[:used]))
    for place, (before, after) in enumerate(pairwise(entries), 1):
        if not all(a < b for a, b in zip(before, after, strict=True)):
            text = f"entry {place} {after} does not follow {before}: entries must grow"
            findings.append(Finding(Severity.WARNING, path, text, place * size))
            break
    return entries, findings


class OffsetIndexCheck:
    def __init__(self, files: Files, path: str, base_offset: int, *, is_active: bool) -> None:
        self._path = path
        self._base_offset = base_offset
        self._entries, self._form = read_entries(files, path, ">ii", is_active=is_active)
        self._next = 0

    def batch(self, position: int, header: BatchHeader, marker: EndMarker | None) -> Iterator[Finding]:
        while self._next < len(self._entries) and self._entries[self._next][1] <= position:
            relative, entry_position = self._entries[self._next]
            self._next += 1
            if entry_position < position:
                yield self._finding(f"points to {entry_position}, where no batch begins")
            elif self._base_offset + relative != header.last_offset:
                text = f"names offset {self._base_offset + relative}, but that batch ends at {header.last_offset}"
                yield self._finding(text)

    def end(self) -> Iterator[Finding]:
        yield from self._form
        if self._next < len(self._entries):
            self._next += 1
            yield self._finding("and those after it point beyond the log")

    def _finding(self, text: str) -> Finding:
        place = self._next - 1
        return Finding(
            Severity.WARNING, self._path, f"entry {place} {text}; the index will be rebuilt", place * 8
        )


class TimeIndexCheck:
    def __init__(self, files: Files, path: str, base_offset: int, *, is_active: bool) -> None:
        self._path = path
        self._base_offset = base_offset
        self._entries, self._form = read_entries(files, path, ">qi", is_active=is_active)
        self._next = 0
        self._largest = -1

    def batch(self, position: int, header: BatchHeader, marker: EndMarker | None) -> Iterator[Finding]:
        self._largest = max(self._largest, header.max_timestamp)
        while self._next < len(self._entries):
            timestamp, relative = self._entries[self._next]
            if self._base_offset + relative > header.last_offset:
                return
            self._next += 1
            if timestamp != self._largest:
                text = f"says {timestamp} at offset {self._base_offset + relative}, the batches say {self._largest}"
                yield self._finding(text)

    def end(self) -> Iterator[Finding]:
        yield from self._form
        if self._next < len(self._entries):
            self._next += 1
            yield self._finding("and those after it point beyond the log")

    def _finding(self, text: str) -> Finding:
        place = self._next - 1
        return Finding(
            Severity.WARNING, self._path, f"entry {place} {text}; the index will be rebuilt", place * 12
        )


class AbortIndexCheck:
    """Knows which producers have written in a transaction; that memory goes on from segment to segment."""

    def __init__(self, files: Files, path: str, open_transactions: set[int]) -> None:
        self._path = path
        self._open = open_transactions
        data = files.read_all(path) if files.exists(path) else b""
        self._leftover_bytes = len(data) % _ABORT_BYTES
        entries = struct.iter_unpack(">hqqqq", data[: len(data) - self._leftover_bytes])
        self._entries = {last: (version, producer) for version, producer, _, last, _ in entries}

    def batch(self, position: int, header: BatchHeader, marker: EndMarker | None) -> Iterator[Finding]:
        if header.is_transactional and not header.is_control:
            self._open.add(header.producer_id)
        if marker is None:
            return
        had_data = header.producer_id in self._open
        self._open.discard(header.producer_id)
        if not marker.is_abort:
            return
        entry = self._entries.pop(header.base_offset, None)
        if entry is None and had_data:
            text = f"the abort of producer {header.producer_id} is missing: its records would be served as committed"
            yield Finding(Severity.ERROR, self._path, text, None, header.base_offset)
        elif entry is not None and entry != (0, header.producer_id):
            text = (
                f"the entry names producer {entry[1]} (version {entry[0]}), the marker {header.producer_id}"
            )
            yield Finding(Severity.ERROR, self._path, text, None, header.base_offset)

    def end(self) -> Iterator[Finding]:
        if self._leftover_bytes:
            text = f"{self._leftover_bytes} bytes at the end are no whole entry"
            yield Finding(Severity.ERROR, self._path, text)
        for offset, (_, producer_id) in self._entries.items():
            text = f"there is no abort marker of producer {producer_id} at the end of this entry"
            yield Finding(Severity.ERROR, self._path, text, None, offset)
