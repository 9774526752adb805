"""The metadata log on the event loop: decide, propose, sync in a thread, apply, answer.

A change runs `decide` on the newest image and proposes its records at once; one fsync then commits everything
that was proposed before it began. The broker hears of a commit before the client does, so a client that was
told of a topic can use it.

An fsync of the metadata log that fails leaves nothing to stand on: every further change fails, and the broker
is told to stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidemill.metadata.decisions import Decision
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.quorum import Commit, QuorumOfOne
from tidemill.model.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")


class MetadataService:
    def __init__(self, quorum: QuorumOfOne, on_commit: Callable[[Commit], None]) -> None:
        self._quorum = quorum
        self._on_commit = on_commit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="tidemill-metadata")
        self._committing: asyncio.Task[None] | None = None
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @property
    def image(self) -> MetadataImage:
        return self._quorum.image

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        decision = decide(self._quorum.latest_image)
        if decision.records:
            try:
                offset = self._quorum.propose(decision.records)
            except OSError as error:
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log refused the write: {error}"
                ) from error
            await self._committed(offset)
        return decision.result

    def _committed(self, offset: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit_all())
        return future

    async def _commit_all(self) -> None:
        """One sync after the other until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while (job := self._quorum.begin_sync()) is not None:
                try:
                    await loop.run_in_executor(self._threads, job.run)
                except OSError as error:
                    logger.error("fsync of the metadata log failed: %s", error)
                commit = self._quorum.complete_sync(job)
                self._on_commit(commit)
                self._answer(commit.image.offset)
        except Exception as error:
            logger.exception("the metadata log cannot be continued")
            self._fail(error)
            self.on_failure(error)
        finally:
            self._committing = None

    def _answer(self, committed_offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= committed_offset:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _fail(self, error: Exception) -> None:
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))

    async def maybe_snapshot(self) -> None:
        """Write a snapshot if the log has grown enough since the last one."""
        job = self._quorum.begin_snapshot()
        if job is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, job.run)
            except OSError as error:
                logger.error("the snapshot of the metadata was not written: %s", error)
            self._quorum.complete_snapshot(job)

    async def stop(self) -> None:
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        self._threads.shutdown(wait=True)
