"""Opening a log: after a clean shutdown by trust, after anything else by proof.

*Clean*: sizes are looked at, the end offset is found behind the last index entry and must be the recovery point, the
newest producer snapshot is taken over. Nothing is read that was not touched since.

*Unclean* (`kill -9`, power loss): every batch of every segment that reaches the recovery point or lies after
it is read and its checksum compared; their indexes are made anew. Where the walk stops early, the bytes tell why:

    never written   they are missing (the file ends, or the next segment begins later) or zero, and above the
                    recovery point: nobody was promised that they survive. The log is cut there, with what follows:
                    the disk may write later pages first, but a log has no gaps.
    torn tail       garbage above the recovery point with nothing valid after it: the same.
    damage          valid batches follow it, or it had been synced. Cutting would throw away good, perhaps
                    acknowledged data. No log byte is changed; `CorruptLog` says where it is and what to do, the
                    partition stays offline, the broker starts without it.

Damage is cut on demand (`on_damage=CUT`), by an operator who has read what it loses or by replication when
another replica has the data; the bytes cut off are kept beside the log, in files ending in `.damaged`.

A clean shutdown whose end does not add up is treated as unclean.

Example: segments 0 and 500, recovery point 520, file of the second ends in half a batch: segment 500 is checked,
cut back to its last whole batch; segment 0 is not read.

Limits: data below the recovery point is not checked here, but before it is read (`proof`).
"""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import NamedTuple

from tidemill.model.errors import CorruptLog
from tidemill.ports.files import Files
from tidemill.storage.batch_scan import (
    DamagedBatch,
    find_valid_batch,
    has_zero_page,
    is_cut_off,
    scan_checked,
)
from tidemill.storage.config import LogConfig
from tidemill.storage.epoch_check import epochs_agree, epochs_of_batches, last_epoch_agrees
from tidemill.storage.leader_epochs import CorruptEpochs, LeaderEpochs
from tidemill.storage.offset_index import MAX_RELATIVE_OFFSET
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.producer_replay import load_producers
from tidemill.storage.producer_snapshots import ProducerSnapshots
from tidemill.storage.producer_state import ProducerState
from tidemill.storage.segment import LOG_SUFFIX, SUFFIXES, Segment
from tidemill.storage.segment_swap import recover_swaps
from tidemill.storage.segments import Segments
from tidemill.storage.sparse_index import CorruptIndex
from tidemill.wire.batch import HEADER_SIZE, BatchHeader

DAMAGED_SUFFIX = ".damaged"
TRUNCATION_MARK = "truncation-mark"
NAME_DIGITS = 20
MAX_OFFSET = (1 << 63) - 1


class OnDamage(enum.Enum):
    QUARANTINE = "quarantine"
    CUT = "cut"


class RecoveryReport(NamedTuple):
    """What opening the log had to do."""

    checked_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0
    rebuilt_epochs: bool = False
    kept_damaged_bytes: int = 0
    missing_offsets: int = 0
    """How far the log ends below the recovery point: data that had been synced is gone."""


class RecoveredLog(NamedTuple):
    segments: Segments
    epochs: LeaderEpochs
    snapshots: ProducerSnapshots
    producers: ProducerState
    log_start_offset: int
    end_offset: int
    recovery_point: int
    report: RecoveryReport


class LogOpener:
    """Opens the log of one directory. One use."""

    def __init__(
        self, files: Files, open_files: OpenFiles, directory: str, config: LogConfig, recovery_point: int,
        log_start_offset: int, now_ms: int, on_damage: OnDamage = OnDamage.QUARANTINE,
    ) -> None:  # fmt: skip
        self._files = files
        self._open_files = open_files
        self._directory = directory
        self._config = config
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms
        self._on_damage = on_damage
        self._report = RecoveryReport()
        self._epochs = LeaderEpochs(files, directory)
        self._snapshots = ProducerSnapshots(files, directory, ())

    def open(self, *, clean_shutdown: bool) -> RecoveredLog:
        names = self._files.list(self._directory)
        if recover_swaps(self._files, self._directory, names):
            names = self._files.list(self._directory)
        self._recovery_point = min(self._recovery_point, self._truncation_mark(names))
        self._snapshots = ProducerSnapshots(self._files, self._directory, names)
        self._remove_strays(names)
        self._epochs.is_deferred = True
        # Up to the recovery point records are on disk. The indexes of the segment that ends there may not be: a roll
        # right after the flush writes their last entries, and only the next flush syncs them.
        proof_from = self._recovery_point if clean_shutdown else max(0, self._recovery_point - 1)
        try:
            recovered = self._open(names, proof_from, clean_shutdown=clean_shutdown)
        except DamagedBatch:
            recovered = self._open(names, 0, clean_shutdown=False)
        self._epochs.settle()
        return recovered

    def _open(self, names: list[str], proof_from: int, *, clean_shutdown: bool) -> RecoveredLog:
        """Raises DamagedBatch if the walk over what is trusted fails: then everything needs proof."""
        self._load_epochs()
        segments = self._load_segments(names, proof_from)
        if not len(segments):
            return self._open_empty(self._log_start_offset)
        self._log_start_offset = max(self._log_start_offset, segments.first.base_offset)
        producers = None
        is_covered = proof_from >= segments.active.base_offset
        if not (clean_shutdown and is_covered and self._is_end_sound(segments)):
            producers = self._recover(segments, proof_from)
        end_offset = segments.active.next_offset
        self._report = self._report._replace(missing_offsets=max(0, self._recovery_point - end_offset))
        if end_offset < self._log_start_offset:
            return self._start_over(segments)
        self._settle_epochs(segments, end_offset, is_proven=producers is not None)
        self._snapshots.remove_above(end_offset)
        if producers is None:
            producers = load_producers(segments, self._snapshots, self._log_start_offset, end_offset)
        return self._result(segments, producers, end_offset)

    def _result(self, segments: Segments, producers: ProducerState, end_offset: int) -> RecoveredLog:
        assert segments.first.base_offset <= max(self._log_start_offset, end_offset)
        return RecoveredLog(
            segments, self._epochs, self._snapshots, producers, self._log_start_offset, end_offset,
            min(self._recovery_point, end_offset), self._report,
        )  # fmt: skip

    def _open_empty(self, start: int) -> RecoveredLog:
        segment = Segment.create(
            self._files, self._open_files, self._directory, start, self._config, self._now_ms
        )
        self._epochs.truncate_from_end(start)
        self._snapshots.remove_above(start)
        found = self._snapshots.newest(start)
        return self._result(Segments([segment]), ProducerState(found[1] if found else ()), start)

    def _start_over(self, segments: Segments) -> RecoveredLog:
        """All that is left lies below the log start: it was deleted, only its files were not."""
        for segment in reversed(list(segments)):
            segment.remove()
        return self._open_empty(self._log_start_offset)

    def _truncation_mark(self, names: list[str]) -> int:
        """Where a truncation below the recovery point cut the log, if one did since the last clean close."""
        if TRUNCATION_MARK not in names:
            return MAX_OFFSET
        text = self._files.read_all(f"{self._directory}/{TRUNCATION_MARK}")
        return int(text) if text.isdigit() else 0

    # -- loading --------------------------------------------------------------------------------------

    def _remove_strays(self, names: list[str]) -> None:
        """Half-written replacements, and index files whose log is gone."""
        bases = {name[:NAME_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            prefix, dot, kind = name.partition(".")
            is_stray_index = f"{dot}{kind}" in SUFFIXES and len(prefix) == NAME_DIGITS and prefix not in bases
            if is_stray_index or name.endswith(".tmp"):
                self._files.remove(f"{self._directory}/{name}")

    def _load_segments(self, names: list[str], proof_from: int) -> Segments:
        """All segments; those that will not be proven get their indexes."""
        log_names = (name for name in names if name.endswith(LOG_SUFFIX) and len(name) == NAME_DIGITS + 4)
        bases = sorted(int(name[:NAME_DIGITS]) for name in log_names)
        loaded = []
        for base, next_base in pairwise([*bases, MAX_OFFSET]):
            segment = Segment.load(
                self._files, self._open_files, self._directory, base, self._config, next_base
            )
            loaded.append(segment)
            if next_base <= proof_from:
                self._load_indexes(segment)
        return Segments(loaded)

    def _load_indexes(self, segment: Segment) -> None:
        try:
            segment.load_indexes()
        except CorruptIndex:
            segment.rebuild_indexes()
            self._report = self._report._replace(rebuilt_indexes=self._report.rebuilt_indexes + 1)

    def _is_end_sound(self, segments: Segments) -> bool:
        """Find the end of the active segment behind its last index entry; False if that does not add up."""
        active = segments.active
        try:
            if active.size:
                active.load_indexes()
            else:
                active.begin_rebuild()
            last = active.offset_index.last_entry()
            if last is not None and not active.ends_soundly(*last):
                return False
            end = active.base_offset
            for _, header in active.headers(last[1] if last is not None else 0):
                end = header.last_offset + 1
        except (CorruptIndex, DamagedBatch):
            return False
        if end != self._recovery_point:
            return False
        active.next_offset = end
        return True

    # -- proof ----------------------------------------------------------------------------------------

    def _recover(self, segments: Segments, proof_from: int) -> ProducerState:
        """Check, and where needed cut, everything that reaches `proof_from`; returns the producers."""
        suspects = segments.from_offset(proof_from)
        state = load_producers(segments, self._snapshots, self._log_start_offset, suspects[0].base_offset)
        self._epochs.truncate_from_end(suspects[0].base_offset)
        for place, segment in enumerate(suspects):
            later = suspects[place + 1 :]
            try:
                self._check_segment(segment, state, is_sealed=bool(later))
                if later and segment.next_offset != later[0].base_offset:
                    self._check_gap(segment, later[0])
            except DamagedBatch as error:
                self._judge(segments, segment, later, error)
                break
        return state

    def _check_gap(self, segment: Segment, following: Segment) -> None:
        """Segments are written without gaps between them; compaction may leave some."""
        if segment.next_offset > following.base_offset:
            raise DamagedBatch(
                segment.size, f"offsets go beyond {following.base_offset}, where the next begins"
            )
        if not self._config.is_compacted:
            raise DamagedBatch(
                segment.size, f"nothing up to offset {following.base_offset}, where the next begins"
            )
        segment.next_offset = following.base_offset

    def _check_segment(self, segment: Segment, state: ProducerState, *, is_sealed: bool) -> None:
        end = segment.size
        file = segment.handle()
        segment.begin_rebuild()
        segment.transaction_index.reset()
        try:
            for position, header, batch in scan_checked(file, 0, end, segment.base_offset):
                self._check_order(segment, position, header)
                segment.note_existing(position, header)
                if header.leader_epoch > self._epochs.latest_epoch:
                    self._epochs.assign(header.leader_epoch, header.base_offset)
                aborted = state.settle(batch, header)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
            segment.transaction_index.stable_after = (
                segment.next_offset if state.first_open_offset is None else state.first_open_offset
            )
        finally:
            segment.proof = None
            if is_sealed:
                segment.seal()
            self._report = self._report._replace(
                checked_bytes=self._report.checked_bytes + segment.size,
                rebuilt_indexes=self._report.rebuilt_indexes + 1,
            )

    def _check_order(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """The checksum does not cover base offset and leader epoch (the broker sets them); their order does."""
        reason = ""
        if header.base_offset != segment.next_offset and not self._config.is_compacted:
            reason = f"base offset {header.base_offset} where {segment.next_offset} must follow"
        elif header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            reason = f"base offset {header.base_offset} is too far from the segment's"
        elif header.leader_epoch < self._epochs.latest_epoch:
            reason = f"leader epoch {header.leader_epoch} after {self._epochs.latest_epoch}"
        if reason:
            raise DamagedBatch(position, reason)

    def _judge(self, segments: Segments, segment: Segment, later: list[Segment], error: DamagedBatch) -> None:
        """Cut what was never written or torn; refuse to cut damage unless told to."""
        survivor = self._survivor(segment, later)
        is_synced = segment.next_offset < self._recovery_point
        is_damage = is_synced or not (survivor is None or self._was_never_written(segment))
        if is_damage and self._on_damage is OnDamage.QUARANTINE:
            raise self._corrupt(segment, error, survivor)
        for other in reversed(later):
            segments.discard(other)
            self._drop(other, keep=is_damage)
        self._cut(segment, keep=is_damage)

    def _survivor(self, segment: Segment, later: list[Segment]) -> BatchHeader | None:
        """The first valid batch after the damage, in this segment or a later one."""
        for other, start in [(segment, segment.size), *((other, 0) for other in later)]:
            file = other.handle()
            found = find_valid_batch(file, start, file.size(), segment.next_offset)
            if found is not None:
                return found[1]
        return None

    def _was_never_written(self, segment: Segment) -> bool:
        """Whether the bytes behind the last good batch are missing or zero, rather than changed."""
        file, start = segment.handle(), segment.size
        end = file.size()
        following = find_valid_batch(file, start, end, segment.next_offset)
        if following is not None:
            return has_zero_page(file.read(start, following[0] - start), start)
        rest = file.read(start, end - start)
        return len(rest) < HEADER_SIZE or has_zero_page(rest, start) or is_cut_off(rest)

    def _corrupt(self, segment: Segment, error: DamagedBatch, survivor: BatchHeader | None) -> CorruptLog:
        follows = f"; valid data follows at offset {survivor.base_offset}" if survivor is not None else ""
        return CorruptLog(
            f"{segment.path(LOG_SUFFIX)}: {error}; the log is whole below offset {segment.next_offset}{follows}",
            "No byte of the log was changed. Restore the file, or let a replica repair it, or cut the log there.",
        )

    def _cut(self, segment: Segment, *, keep: bool) -> None:
        file = segment.handle()
        removed = file.size() - segment.size
        if keep:
            self._keep(f"{segment.path(LOG_SUFFIX)}{DAMAGED_SUFFIX}", file.read(segment.size, removed))
        segment.cut_back(segment.size)
        self._report = self._report._replace(truncated_bytes=self._report.truncated_bytes + removed)

    def _drop(self, segment: Segment, *, keep: bool) -> None:
        path = segment.path(LOG_SUFFIX)
        removed = self._files.size(path)
        if keep:
            self._keep(f"{path}{DAMAGED_SUFFIX}", self._files.read_all(path))
        segment.remove()
        self._report = self._report._replace(truncated_bytes=self._report.truncated_bytes + removed)

    def _keep(self, path: str, data: bytes) -> None:
        self._files.write_atomic(path, data)
        self._report = self._report._replace(kept_damaged_bytes=self._report.kept_damaged_bytes + len(data))

    # -- leader epochs --------------------------------------------------------------------------------

    def _load_epochs(self) -> None:
        try:
            self._epochs.load()
        except CorruptEpochs:
            self._epochs.clear()
            self._report = self._report._replace(rebuilt_epochs=True)

    def _settle_epochs(self, segments: Segments, end_offset: int, *, is_proven: bool) -> None:
        """Make the epochs agree with the batches; after a clean shutdown only the last one is compared here."""
        self._epochs.truncate_from_end(end_offset)
        compare = epochs_agree if is_proven else last_epoch_agrees
        agree = compare(self._epochs.entries, segments, self._log_start_offset, end_offset)
        if not agree or self._report.rebuilt_epochs:
            self._epochs.replace(epochs_of_batches(segments, self._log_start_offset))
            self._report = self._report._replace(rebuilt_epochs=True)
        self._epochs.truncate_from_start(self._log_start_offset)
