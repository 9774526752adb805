"""Checking one partition: every batch, every record, and every file beside them.

The batches must have right checksums and offsets that grow, within a segment and from one to the next; leader
epochs must not go back, and agree with the checkpoint; records must fill their batch and lie within its offsets.
After damage the search goes on at the next whole batch, so one flipped bit is one finding.

    error: orders-0/00000000000000000000.log (position 4096, offset 17): its checksum is wrong; ...

Damage at the very end of the last segment is a torn write, which a start repairs: a warning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.ports.files import Files
from tidemill.storage.batch_scan import DamagedBatch, find_valid_batch, scan_checked
from tidemill.storage.cleaner_filter import payload_of
from tidemill.storage.inspect_findings import Finding, Severity
from tidemill.storage.inspect_indexes import AbortIndexCheck, OffsetIndexCheck, SideFile, TimeIndexCheck
from tidemill.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from tidemill.storage.leader_epochs import CorruptEpochs, EpochEntry, parse_checkpoint
from tidemill.storage.partition_metadata import read_topic_id
from tidemill.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from tidemill.storage.producer_snapshots import CorruptSnapshot, parse_snapshot
from tidemill.storage.producer_state import EndMarker, read_end_marker
from tidemill.storage.segment_swap import TEMPORARY_SUFFIXES
from tidemill.wire.batch import BatchHeader, iterate_records


def verify_partition(files: Files, directory: str, *, with_records: bool) -> Iterator[Finding]:
    names = sorted(files.list(directory))
    yield from _leftovers(directory, names)
    yield from _small_files(files, directory, names)
    bases = [int(name[:20]) for name in names if name.endswith(".log") and name[:20].isdecimal()]
    if not bases:
        yield Finding(Severity.ERROR, directory, "there is no segment")
    partition = PartitionCheck(files, directory, with_records)
    yield from partition.read_epochs()
    for base_offset, next_base in pairwise([*bases, None]):
        assert base_offset is not None
        yield from partition.segment(base_offset, next_base)


def _leftovers(directory: str, names: list[str]) -> Iterator[Finding]:
    for name in names:
        if name.endswith(TEMPORARY_SUFFIXES):
            text = "left over from a deletion or a compaction; the next start deals with it"
            yield Finding(Severity.NOTE, f"{directory}/{name}", text)
        elif name.endswith(".damaged"):
            text = "bytes that were cut off a damaged log"
            yield Finding(Severity.NOTE, f"{directory}/{name}", text)


def _small_files(files: Files, directory: str, names: list[str]) -> Iterator[Finding]:
    try:
        read_topic_id(files, directory)
    except CorruptLog as error:
        yield Finding(Severity.ERROR, f"{directory}/partition.metadata", str(error))
    for name in names:
        if name.endswith(SNAPSHOT_SUFFIX):
            try:
                parse_snapshot(files.read_all(f"{directory}/{name}"))
            except CorruptSnapshot as error:
                text = f"{error}; an older one, or the log, will be used"
                yield Finding(Severity.WARNING, f"{directory}/{name}", text)


class PartitionCheck:
    """Walks through the segments in order and remembers what must grow."""

    def __init__(self, files: Files, directory: str, with_records: bool) -> None:
        self._files = files
        self._directory = directory
        self._with_records = with_records
        self._epochs: list[EpochEntry] = []
        self._next_offset = 0
        self._latest_epoch = -1
        self._reported_epoch = -1
        self._open_transactions: set[int] = set()

    def read_epochs(self) -> Iterator[Finding]:
        path = f"{self._directory}/{EPOCHS_FILE}"
        if not self._files.exists(path):
            yield Finding(Severity.NOTE, path, "there is no checkpoint of leader epochs")
            return
        try:
            self._epochs = parse_checkpoint(self._files.read_all(path))
        except CorruptEpochs as error:
            yield Finding(Severity.WARNING, path, f"{error}; it will be rebuilt from the batches")

    def segment(self, base_offset: int, next_base: int | None) -> Iterator[Finding]:
        stem = f"{self._directory}/{base_offset:020d}"
        checks: list[SideFile] = [
            OffsetIndexCheck(self._files, f"{stem}.index", base_offset, is_active=next_base is None),
            TimeIndexCheck(self._files, f"{stem}.timeindex", base_offset, is_active=next_base is None),
            AbortIndexCheck(self._files, f"{stem}.txnindex", self._open_transactions),
        ]
        self._next_offset = max(self._next_offset, base_offset)
        for position, header, batch in self._batches(f"{stem}.log", is_last=next_base is None):
            if isinstance(header, Finding):
                yield header
                continue
            yield from self._batch(f"{stem}.log", position, header, batch, next_base)
            marker = _marker(header, batch)
            for check in checks:
                yield from check.batch(position, header, marker)
        for check in checks:
            yield from check.end()

    def _batches(
        self, path: str, *, is_last: bool
    ) -> Iterator[tuple[int, BatchHeader | Finding, memoryview]]:
        """The batches of a segment, and a finding for each damaged place between them."""
        file = self._files.open(path)
        position, end = 0, file.size()
        while position < end:
            try:
                for at, header, batch in scan_checked(file, position, end, self._next_offset):
                    yield at, header, batch
                    self._next_offset, position = header.last_offset + 1, at + header.size
                return
            except DamagedBatch as error:
                found = find_valid_batch(file, error.position + 1, end, self._next_offset)
                yield error.position, self._damage(path, error, found, end, is_last), memoryview(b"")
                position = found[0] if found is not None else end

    def _damage(
        self, path: str, error: DamagedBatch, found: tuple[int, BatchHeader] | None, end: int, is_last: bool
    ) -> Finding:
        if found is not None:
            text = f"{error.reason}; the next whole batch is at position {found[0]} with offset {found[1].base_offset}"
            return Finding(Severity.ERROR, path, text, error.position, self._next_offset)
        if is_last:
            text = (
                f"{error.reason}; a torn write of {end - error.position} bytes, which the next start cuts off"
            )
            return Finding(Severity.WARNING, path, text, error.position, self._next_offset)
        text = f"{error.reason}; nothing whole follows in this segment"
        return Finding(Severity.ERROR, path, text, error.position, self._next_offset)

    def _batch(
        self, path: str, position: int, header: BatchHeader, batch: memoryview, next_base: int | None
    ) -> Iterator[Finding]:
        texts = []
        if next_base is not None and header.last_offset >= next_base:
            texts.append(f"ends at {header.last_offset}, in the next segment ({next_base})")
        if header.leader_epoch < self._latest_epoch:
            texts.append(f"leader epoch {header.leader_epoch} comes after {self._latest_epoch}")
        if self._with_records:
            texts += record_faults(header, batch)
        for text in texts:
            yield Finding(Severity.ERROR, path, text, position, header.base_offset)
        self._latest_epoch = max(self._latest_epoch, header.leader_epoch)
        expected = self._epoch_at(header.base_offset)
        if self._epochs and expected != header.leader_epoch != self._reported_epoch:
            self._reported_epoch = header.leader_epoch
            text = f"leader epoch is {header.leader_epoch}, the checkpoint says {expected}"
            yield Finding(Severity.WARNING, path, text, position, header.base_offset)

    def _epoch_at(self, offset: int) -> int:
        place = bisect_right(self._epochs, offset, key=lambda entry: entry.start_offset) - 1
        return self._epochs[place].epoch if place >= 0 else -1


def _marker(header: BatchHeader, batch: memoryview) -> EndMarker | None:
    try:
        return read_end_marker(batch, header) if header.is_control else None
    except MalformedMessage:
        return None


def record_faults(header: BatchHeader, batch: memoryview) -> list[str]:
    """What is wrong with the records of a batch whose checksum is right."""
    try:
        records = list(iterate_records(header, payload_of(header, batch)))
    except MalformedMessage as error:
        return [f"the records cannot be decoded: {error}"]
    faults = []
    offsets = [record.offset for record in records]
    if any(a >= b for a, b in pairwise(offsets)):
        faults.append("the offsets of the records do not grow")
    if offsets and not header.base_offset <= min(offsets) <= max(offsets) <= header.last_offset:
        faults.append(
            f"records at {min(offsets)}..{max(offsets)} lie outside {header.base_offset}..{header.last_offset}"
        )
    latest = max((record.timestamp for record in records), default=header.max_timestamp)
    if latest != header.max_timestamp:
        faults.append(f"the largest timestamp is {latest}, the batch says {header.max_timestamp}")
    return faults
