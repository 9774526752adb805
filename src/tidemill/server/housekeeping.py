"""What must be done from time to time: retention, flushing, next segments, checkpoints, removal, snapshots, compaction.

Passes that only look at memory run on the loop, in steps, so that clients are served between two logs. What waits
for the disk runs in one thread, and compaction in a child process.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from tidemill.api.settings import BrokerSettings
from tidemill.ports.clock import Clock
from tidemill.server.metadata_service import MetadataService
from tidemill.storage.cleaner_job import CleanerResult
from tidemill.storage.compaction import Cleaning
from tidemill.storage.manager import LogManager

logger = logging.getLogger(__name__)

LOGS_PER_STEP = 200
FLUSH_CHECK_INTERVAL_S = 1.0
PREPARE_INTERVAL_S = 0.5
REMOVAL_INTERVAL_S = 1.0
SNAPSHOT_CHECK_INTERVAL_S = 30.0
CLEANER_MODULE = "tidemill.storage.cleaner_process"


class Housekeeping:
    def __init__(
        self,
        logs: LogManager,
        metadata: MetadataService,
        clock: Clock,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._clock = clock
        self._settings = settings
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tidemill-housekeeping")
        self._tasks: list[asyncio.Task[None]] = []
        self._cleaner: subprocess.Popen[str] | None = None

    def start(self) -> None:
        settings = self._settings
        self._repeat(self.apply_retention, lambda: settings().retention_check_interval_ms / 1000)
        self._repeat(self.prepare_segments, lambda: PREPARE_INTERVAL_S)
        self._repeat(self.flush, lambda: FLUSH_CHECK_INTERVAL_S)
        self._repeat(self.write_checkpoints, lambda: settings().recovery_point_interval_ms / 1000)
        self._repeat(self.remove_deleted, lambda: REMOVAL_INTERVAL_S)
        self._repeat(self._metadata.maybe_snapshot, lambda: SNAPSHOT_CHECK_INTERVAL_S)
        self._repeat(self.compact, lambda: settings().cleaner_backoff_ms / 1000)

    def _repeat(self, work: Callable[[], Awaitable[None]], interval_s: Callable[[], float]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._forever(work, interval_s)))

    async def _forever(self, work: Callable[[], Awaitable[None]], interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            try:
                await work()
            except Exception:
                logger.exception("housekeeping failed and will be tried again")

    async def _in_thread(self, work: Callable[[], object]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            logger.error("housekeeping met a failing disk: %s", error)

    async def apply_retention(self) -> None:
        removed = 0
        for step, count in enumerate(self._logs.retention_pass(self._clock.wall_ms())):
            removed += count
            if step % LOGS_PER_STEP == LOGS_PER_STEP - 1:
                await asyncio.sleep(0)
        if removed:
            logger.info("retention removed %d segments", removed)

    async def flush(self) -> None:
        for step, flush in enumerate(self._logs.flush_pass(self._clock.wall_ms())):
            if flush is not None:
                await self._in_thread(flush.run)
                self._logs.complete_flush(flush)
            elif step % LOGS_PER_STEP == LOGS_PER_STEP - 1:
                await asyncio.sleep(0)

    async def prepare_segments(self) -> None:
        for step, prepared in enumerate(self._logs.preparation_pass()):
            if prepared is not None:
                log, job = prepared
                await self._in_thread(job.run)
                log.complete_next_segment(job)
            elif step % LOGS_PER_STEP == LOGS_PER_STEP - 1:
                await asyncio.sleep(0)

    async def write_checkpoints(self) -> None:
        for job in self._logs.begin_checkpoints():
            await self._in_thread(job.run)
            self._logs.complete_checkpoint(job)

    async def remove_deleted(self) -> None:
        removal = self._logs.begin_removals(self._clock.wall_ms())
        if removal is not None:
            await self._in_thread(removal.run)
            self._logs.complete_removal(removal)

    # -- compaction -----------------------------------------------------------------------------------

    async def compact(self) -> None:
        """One log after the other, until none is due."""
        while self._settings().cleaner_enabled:
            for _ in self._logs.cleaning_preparation(self._clock.wall_ms()):
                await asyncio.sleep(0)
            cleaning = self._logs.begin_cleaning(self._clock.wall_ms())
            if cleaning is None:
                return
            try:
                result = await self._clean(cleaning)
            except (OSError, ValueError, TypeError, KeyError):
                logger.exception("the cleaner of %s cannot be used", cleaning.partition)
                result = None
            if result is None:
                self._logs.compaction.abandon(cleaning)
                return
            if self._logs.complete_cleaning(cleaning, result, self._clock.wall_ms()):
                logger.info(
                    "compacted %s: %d of %d records kept",
                    cleaning.partition, result.records_kept, result.records_read,
                )  # fmt: skip
            elif result.error:
                logger.error("cannot compact %s: %s", cleaning.partition, result.error)

    async def _clean(self, cleaning: Cleaning) -> CleanerResult | None:
        """The child's answer, or None if it died."""
        self._cleaner = subprocess.Popen(
            [sys.executable, "-m", CLEANER_MODULE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process, text = self._cleaner, cleaning.job.to_json()
        try:
            output, errors = await asyncio.get_running_loop().run_in_executor(
                self._threads, process.communicate, text
            )
        finally:
            self._cleaner = None
        if process.returncode != 0:
            logger.error(
                "the cleaner of %s ended with %d: %s", cleaning.partition, process.returncode, errors
            )
            return None
        return CleanerResult.from_json(output)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._cleaner is not None:
            self._cleaner.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
