"""Group commit: whoever waits for an fsync shares it with all that came before it started.

Each round takes every partition that has unsynced bytes somebody waits for, syncs their files in threads (the
loop goes on serving), and then moves the high watermarks. An fsync that fails is never tried again: its data
directory is offline and its writers get an error.

Writers wait for every step of a round, so it is made of plain callbacks: a task for each would take the loop three more
turns.
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
        self._loop = asyncio.get_running_loop()
        self._running = 0
        """Jobs of this round that are not done."""
        self._is_wanted = False
        self._is_serving = False
        replicas.on_unsynced = self._want

    def start(self) -> None:
        self._is_serving = True
        self._begin()

    def _want(self) -> None:
        """Somebody waits; what else is written in this turn of the loop shares the round."""
        if not self._is_wanted:
            self._is_wanted = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._running or not self._is_wanted or not self._is_serving:
            return
        self._is_wanted = False
        jobs = self._replicas.take_unsynced()
        self._running = len(jobs)
        for partition, job in jobs:
            self._threads.submit(self._sync, partition, job)

    def _sync(self, partition: Partition, job: FlushJob) -> None:
        """In a thread."""
        try:
            job.run()
        except OSError as error:
            logger.error("fsync of %s failed: %s", partition.topic_partition, error)
        except Exception:
            logger.exception("fsync of %s failed", partition.topic_partition)
        self._loop.call_soon_threadsafe(self._synced, partition, job)

    def _synced(self, partition: Partition, job: FlushJob) -> None:
        self._running -= 1
        try:
            self._replicas.synced(partition, job)
        except Exception:
            logger.exception("a round of flushing failed; the next one comes with the next write")
        self._begin()

    async def stop(self) -> None:
        """What runs is finished and counts; nothing new begins."""
        self._is_serving = False
        self._threads.shutdown(wait=True)
        await asyncio.sleep(0)
