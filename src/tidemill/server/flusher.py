"""Group commit: whoever waits for an fsync shares it with all that came before it started.

Each round takes every partition that has unsynced bytes somebody waits for, syncs their files in threads (the
loop goes on serving), and then moves the high watermarks. An fsync that fails is never tried again: its data
directory is offline and its writers get an error.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.storage.log import FlushJob

logger = logging.getLogger(__name__)

THREADS = 4


class Flusher:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tidemill-fsync")
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        replicas.on_unsynced = self._wanted.set

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                jobs = self._replicas.take_unsynced()
                await asyncio.gather(*(self._sync(partition, job) for partition, job in jobs))
            except Exception:
                logger.exception("a round of flushing failed; the next one comes with the next write")

    async def _sync(self, partition: Partition, job: FlushJob) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, job.run)
        except OSError as error:
            logger.error("fsync of %s failed: %s", partition.topic_partition, error)
        self._replicas.synced(partition, job)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._threads.shutdown(wait=True)
