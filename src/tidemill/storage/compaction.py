"""Compaction as the broker sees it: choose a log, hand out a job, swap the result in.

    states of a partition          idle -> cleaning -> idle
                                   cleaning -> paused -> idle   the disk refused (it may be full): a minute's pause
                                   cleaning -> uncleanable      the data is damaged, or the process failed again
                                                                and again; until a restart

    cleaning = compaction.begin(logs, now_ms)                        on the loop
    result = ...cleaner_process with cleaning.job...                 in a child process
    compaction.complete(cleaning, result, now_ms)                    on the loop

Meanwhile the log may be truncated or deleted; the result is then dropped (`complete` returns False). Retention
leaves a log alone that is being cleaned. How far a log is clean is remembered in `clean_until` and written down
with the other checkpoints; what is lost of it in a crash is cleaned once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.model.ids import TopicPartition
from tidemill.ports.files import Files
from tidemill.storage.checkpoints import Offsets
from tidemill.storage.cleaner import discard_cleaned
from tidemill.storage.cleaner_job import CleanerJob, CleanerResult
from tidemill.storage.cleaner_plan import Candidate, assess, filthiest, job_for
from tidemill.storage.log import Log

DEFAULT_OFFSET_MAP_BYTES = 128 << 20
DISK_PAUSE_MS = 60_000
MOST_FAILURES = 3


class Cleaning(NamedTuple):
    """A log that is being cleaned."""

    candidate: Candidate
    job: CleanerJob

    @property
    def log(self) -> Log:
        return self.candidate.log

    @property
    def partition(self) -> TopicPartition:
        return self.candidate.log.topic_partition


class Compaction:
    def __init__(self, files: Files) -> None:
        self._files = files
        self.offset_map_bytes = DEFAULT_OFFSET_MAP_BYTES
        self.clean_until: Offsets = {}
        self.uncleanable: dict[TopicPartition, str] = {}
        """Partitions that cannot be compacted, and why."""
        self._cleaning: dict[TopicPartition, Cleaning] = {}
        self._paused_until_ms: dict[TopicPartition, int] = {}
        self._failures: dict[TopicPartition, int] = {}
        self.max_dirty_ratio = 0.0
        """Of the filthiest log at the last choice."""

    def is_cleaning(self, partition: TopicPartition) -> bool:
        return partition in self._cleaning

    def preparation(self, logs: Iterable[Log], now_ms: int) -> Iterator[None]:
        """Before `begin`: find out in steps what was aborted in the log that it would choose."""
        chosen = self._choose(logs, now_ms)
        if chosen is not None:
            start, end = chosen.segments[0].base_offset, chosen.first_uncleanable_offset
            with suppress(TidemillError, OSError):  # `begin` will meet it again
                while not chosen.log.knows_aborted(start, end):
                    yield

    def begin(self, logs: Iterable[Log], now_ms: int) -> Cleaning | None:
        """The filthiest log that is due, if any; it counts as being cleaned from now on."""
        chosen = self._choose(logs, now_ms)
        if chosen is None:
            return None
        cleaning = Cleaning(chosen, job_for(chosen, now_ms, self.offset_map_bytes))
        self._cleaning[cleaning.partition] = cleaning
        return cleaning

    def _choose(self, logs: Iterable[Log], now_ms: int) -> Candidate | None:
        candidates = []
        for log in logs:
            if log.config.is_compacted and self._is_available(log, now_ms):
                try:
                    candidates.append(assess(log, self.clean_until.get(log.topic_partition), now_ms))
                except TidemillError as error:
                    self.uncleanable[log.topic_partition] = str(error)
        self.max_dirty_ratio = max((each.dirty_ratio for each in candidates), default=0.0)
        return filthiest(candidates)

    def _is_available(self, log: Log, now_ms: int) -> bool:
        partition = log.topic_partition
        return not (
            log.is_offline
            or partition in self._cleaning
            or partition in self.uncleanable
            or self._paused_until_ms.get(partition, 0) > now_ms
        )

    def complete(self, cleaning: Cleaning, result: CleanerResult, now_ms: int) -> bool:
        """Swap the result in; False if it came to nothing. An OSError is the disk's: the directory has failed."""
        if self._cleaning.pop(cleaning.partition, None) is not cleaning:
            return False
        if result.error is not None and result.is_disk_error:
            self._paused_until_ms[cleaning.partition] = now_ms + DISK_PAUSE_MS
        elif result.error is not None:
            self.uncleanable[cleaning.partition] = result.error
        if result.error is not None or not self._is_unchanged(cleaning):
            self._discard(cleaning)
            return False
        for replacement in result.replacements:
            cleaning.log.replace_segments(replacement.base_offset, replacement.replaced, now_ms)
        self.clean_until[cleaning.partition] = result.end_offset
        self._failures.pop(cleaning.partition, None)
        return True

    def abandon(self, cleaning: Cleaning) -> None:
        """The process was killed, or failed: remove what it left; after a few times, do not try again."""
        partition = cleaning.partition
        if self._cleaning.pop(partition, None) is not cleaning:
            return
        self._discard(cleaning)
        self._failures[partition] = self._failures.get(partition, 0) + 1
        if self._failures[partition] >= MOST_FAILURES:
            self.uncleanable[partition] = f"the cleaner's process failed {MOST_FAILURES} times"

    def forget(self, partition: TopicPartition) -> None:
        """The partition is gone; a result still to come will be dropped."""
        self._cleaning.pop(partition, None)
        self.clean_until.pop(partition, None)
        self.uncleanable.pop(partition, None)
        self._paused_until_ms.pop(partition, None)
        self._failures.pop(partition, None)

    def _is_unchanged(self, cleaning: Cleaning) -> bool:
        """Whether the segments of the job are still those of the log."""
        if cleaning.log.is_offline:
            return False
        current = cleaning.log.segments[: len(cleaning.candidate.segments)]
        pairs = zip(cleaning.candidate.segments, current, cleaning.job.segments, strict=False)
        return len(current) == len(cleaning.job.segments) and all(
            before is after and after.size == job.size_bytes for before, after, job in pairs
        )

    def _discard(self, cleaning: Cleaning) -> None:
        if self._files.exists(cleaning.log.directory):
            discard_cleaned(self._files, cleaning.log.directory)
