"""What must be done to all logs from time to time: retention, flushing, preparing the next segments, compaction.

A pass looks at one log after the other, and the loop may serve others between two of them. What syncs files or
takes long is handed out as a job, run in a thread (or a process), and completed on the loop.

    for flush in logs.flush_pass(now_ms):       on the loop
        flush.run()                             in a thread
        logs.complete_flush(flush)              on the loop
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import ApiError, TidemillError
from tidemill.model.ids import TopicPartition
from tidemill.storage.cleaner_job import CleanerResult
from tidemill.storage.compaction import Cleaning
from tidemill.storage.log import FlushJob, Log
from tidemill.storage.managed_logs import ManagedLogs, parent_of
from tidemill.storage.next_segment import NextSegment

logger = logging.getLogger(__name__)


class LogFlush(NamedTuple):
    log: Log
    job: FlushJob

    def run(self) -> None:
        self.job.run()


class LogPasses(ManagedLogs):
    """The passes over all logs."""

    # -- retention and flushing -----------------------------------------------------------------------

    def run_retention(self, now_ms: int) -> int:
        """Drop old segments of all logs; how many."""
        return sum(self.retention_pass(now_ms))

    def retention_pass(self, now_ms: int) -> Iterator[int]:
        """The same in steps of one log, between which the loop may serve others."""
        for partition, log in list(self.logs.items()):
            if self.logs.get(partition) is not log or self.compaction.is_cleaning(partition):
                continue
            try:
                log.expire_producers(now_ms, self.producer_expiration_ms)
                removed = log.delete_old_segments(now_ms)
            except OSError as error:
                self.fail_directory(parent_of(log.directory), error)
                continue
            except TidemillError as error:
                logger.error("retention leaves %s as it is: %s", partition, error)
                continue
            yield removed

    def begin_flushes(self, now_ms: int) -> list[LogFlush]:
        """Jobs for the logs whose `flush.ms` or `flush.messages` has passed, or that have sealed segments to sync."""
        return [flush for flush in self.flush_pass(now_ms) if flush is not None]

    def flush_pass(self, now_ms: int) -> Iterator[LogFlush | None]:
        """The same in steps of one log, between which the loop may serve others."""
        for partition, log in list(self.logs.items()):
            job = None
            if log.recovery_point >= log.log_end_offset:
                self._seen_flushed_ms[partition] = now_ms
            elif log.config.acknowledges_after_sync:
                pass  # whoever waits for its acknowledgement has it synced
            elif self._is_flush_due(partition, log, now_ms):
                job = self._begin_flush(log)
                self._seen_flushed_ms[partition] = now_ms
            yield LogFlush(log, job) if job is not None else None

    def preparation_pass(self) -> Iterator[tuple[Log, NextSegment] | None]:
        """Logs that will need their next segment soon; run each job in a thread, then complete it on its log."""
        for log in list(self.logs.values()):
            job = log.begin_next_segment()
            yield (log, job) if job is not None else None

    def _is_flush_due(self, partition: TopicPartition, log: Log, now_ms: int) -> bool:
        """Synced from time to time even without being asked: a crash must not mean checking whole logs."""
        waited_ms = now_ms - self._seen_flushed_ms.setdefault(partition, now_ms)
        return (
            waited_ms >= log.config.flush_ms
            or log.log_end_offset - log.recovery_point >= log.config.flush_messages
            or log.recovery_point < log.active_base_offset
        )

    def _begin_flush(self, log: Log) -> FlushJob | None:
        try:
            return log.begin_flush()
        except OSError as error:
            self.fail_directory(parent_of(log.directory), error)
        except ApiError:
            pass
        return None

    def complete_flush(self, flush: LogFlush) -> None:
        """Move the recovery point, or take the directory offline."""
        if flush.log.is_offline:
            return  # deleted or failed meanwhile: an error would say nothing about the disk
        if flush.job.error is not None:
            self.sync_failed(flush.log, flush.job.error)
        else:
            flush.log.complete_flush(flush.job)

    def sync_failed(self, log: Log, error: OSError) -> None:
        """Nobody knows what is on the disk now, and a second sync would not tell: give the directory up."""
        self.fail_directory(parent_of(log.directory), error, is_certain=True)

    # -- compaction -----------------------------------------------------------------------------------

    def cleaning_preparation(self, now_ms: int) -> Iterator[None]:
        """What `begin_cleaning` would have to find out, in steps between which the loop may serve others."""
        return self.compaction.preparation(self.logs.values(), now_ms)

    def begin_cleaning(self, now_ms: int) -> Cleaning | None:
        """The log most in need of compaction, if any is; to be run by `cleaner_process`."""
        return self.compaction.begin(self.logs.values(), now_ms)

    def complete_cleaning(self, cleaning: Cleaning, result: CleanerResult, now_ms: int) -> bool:
        path = parent_of(cleaning.log.directory)
        try:
            return self.compaction.complete(cleaning, result, now_ms)
        except OSError as error:
            self.fail_directory(path, error)
            return False
