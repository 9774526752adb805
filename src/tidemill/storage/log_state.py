"""What a log holds in memory, and the offsets that everybody asks for.

The log is built in layers, each a module and a class of its own: state (here), reading (`log_read`), appending
(`log_append`), and the whole (`log`), which adds cutting, flushing and closing.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.files import Files
from tidemill.ports.randomness import Randomness
from tidemill.storage.config import LogConfig
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.producer_state import ProducerEntry
from tidemill.storage.recovery import RecoveredLog
from tidemill.storage.segment import Segment
from tidemill.storage.transaction_walk import TransactionWalk
from tidemill.wire.frames import FileSlice

REMEMBERED_POSITIONS = 16
PASSING_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
"""Room or handles are missing: no sign that the disk is broken, and it may be over in a moment."""


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    append_time_ms: int
    """-1 with CreateTime."""
    is_duplicate: bool


LogSlice = FileSlice
"""Bytes of a file, for `sendfile`; holding `file` keeps them readable."""


class LogState:
    """Segments, offsets, producers and epochs of one partition.

    Invariants: log_start_offset <= high_watermark <= log_end_offset, recovery_point <= log_end_offset, the last
    segment is the active one and ends at log_end_offset.
    """

    __slots__ = (
        "_active", "_config", "_deleted", "_epochs", "_epochs_checked", "_failure", "_files", "_found_end",
        "_has_next",
        "_is_changed", "_is_log_append_time", "_open_files", "_positions", "_producers",
        "_randomness", "_segments", "_snapshots", "_truncation_count", "_unwritten_snapshot", "_walks",
        "directory", "high_watermark", "log_end_offset", "log_start_offset", "recovery_point", "recovery_report",
        "size", "topic_id", "topic_partition",
    )  # fmt: skip

    def __init__(
        self, files: Files, open_files: OpenFiles, directory: str, topic_partition: TopicPartition, topic_id: bytes,
        config: LogConfig, recovered: RecoveredLog, randomness: Randomness | None = None,
    ) -> None:  # fmt: skip
        self._files = files
        self._open_files = open_files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._randomness = randomness
        self._segments = recovered.segments
        self._active: Segment = recovered.segments.active
        self._epochs = recovered.epochs
        self._epochs_checked = False
        self._snapshots = recovered.snapshots
        self._producers = recovered.producers
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.end_offset
        self._found_end = recovered.end_offset
        """What lies below was found on the disk, the rest was written here."""
        self.high_watermark = recovered.log_start_offset
        self.recovery_point = recovered.recovery_point
        self.recovery_report = recovered.report
        self.size = recovered.segments.size
        """Bytes of all segments' log files."""
        self._positions: dict[int, tuple[Segment, int]] = {}
        """Where some recently appended or read batches begin: base offset -> (segment, position)."""
        self._deleted: list[tuple[int, list[str]]] = []
        """Renamed to `.deleted`: (when their files may be removed, paths)."""
        self._truncation_count = 0
        self._has_next = False
        """Whether the file of the next segment lies ready (`next_segment`)."""
        self._unwritten_snapshot: tuple[int, bytes] | None = None
        """Producers as of the last roll; the next flush writes them, so that the roll need not."""
        self._is_changed = recovered.report.rebuilt_indexes > 0
        """Whether anything was written since the log was last closed."""
        self._walks: list[TransactionWalk] = []
        """Checks of transaction indexes that are under way."""
        self._failure: OSError | None = None
        self.config = config
        self._set_jitter(self._active)
        self._check()

    def _check(self) -> None:
        assert self.log_start_offset <= self.high_watermark <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
        assert self._active is self._segments.active and self._active.next_offset == self.log_end_offset

    def _set_jitter(self, segment: Segment) -> None:
        """Logs that began together need not roll together."""
        if self._config.segment_jitter_ms > 0 and self._randomness is not None:
            limit = min(self._config.segment_jitter_ms, self._config.segment_ms)
            segment.roll_jitter_ms = self._randomness.below(limit)

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._is_log_append_time = config.message_timestamp_type == "LogAppendTime"

    @property
    def is_offline(self) -> bool:
        return self._failure is not None

    def require_online(self) -> None:
        if self._failure is not None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline: {self._failure}"
            )

    def fail(self, error: OSError) -> None:
        """Take the log offline for good: what is on disk is not known any more."""
        self._failure = error

    # -- offsets --------------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> None:
        """Everything below is safe; retention, compaction and the last stable offset never pass it."""
        self.high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self._producers.forget_completed_below(self.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided, and its marker is below the high watermark."""
        unstable = self._producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments in order; the last is the active one."""
        return tuple(self._segments)

    @property
    def active_base_offset(self) -> int:
        return self._active.base_offset

    def producers(self) -> list[ProducerEntry]:
        """The active producers."""
        return list(self._producers.producers.values())

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for so long; how many."""
        return self._producers.expire(now_ms, expiration_ms)

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """A batch at this offset begins here: the next sequential read need not search."""
        positions = self._positions
        if len(positions) >= REMEMBERED_POSITIONS:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)
