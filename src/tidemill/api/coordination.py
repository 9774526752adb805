"""A coordinator as handlers see it: name the key, give the call, await the reply.

    response = await services.groups.submit("orders", lambda core, token, now_ms: core.heartbeat(...))

What the runtime answers later by a callback becomes a future here. A client that goes away cancels it; the core
finds out by itself, when the member's session is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from tidemill.coordination.core import CoordinatorCore, Outcome
from tidemill.coordination.partitioning import partition_for
from tidemill.coordination.record_codec import Producer
from tidemill.coordination.runtime import CoordinatorRuntime
from tidemill.model.errors import ApiError, ErrorCode

C = TypeVar("C", bound=CoordinatorCore)
MAX_KEY_BYTES = 0x7FFF
"""Keys of records in internal topics hold names behind a length of 16 bits."""
REMEMBERED_KEYS = 1000
REMEMBERED_LENGTH = 250
"""Characters; as long as the name of a topic may be. Strangers choose the keys, and all of them lie in memory."""
SURELY_SHORT = MAX_KEY_BYTES // 4
"""Characters: none takes more than four bytes."""


class Coordinator(Generic[C]):
    def __init__(self, runtime: CoordinatorRuntime[C], partition_count: Callable[[str], int]) -> None:
        self.runtime = runtime
        self._partition_count = partition_count
        self._partitions: dict[str, int] = {}
        """Of keys that were asked for, until the topic changes."""

    def forget_partitions(self) -> None:
        """The internal topic has changed."""
        self._partitions.clear()

    def partition_for(self, key: str) -> int:
        """The partition responsible for this key; raises while the internal topic does not exist."""
        index = self._partitions.get(key)
        if index is None:
            index = self._look_up(key)
            if len(self._partitions) >= REMEMBERED_KEYS:
                self._partitions.clear()
            if len(key) <= REMEMBERED_LENGTH:
                self._partitions[key] = index
        return index

    def _look_up(self, key: str) -> int:
        if len(key) > SURELY_SHORT and len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"a name of more than {MAX_KEY_BYTES} bytes")
        count = self._partition_count(self.runtime.topic)
        if not count:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{self.runtime.topic} does not exist yet")
        return partition_for(key, count)

    async def submit(
        self, key: str, call: Callable[[C, Hashable, int], Outcome], producer: Producer | None = None
    ) -> Any:
        return await self.submit_to(self.partition_for(key), call, producer)

    async def submit_to(
        self, index: int, call: Callable[[C, Hashable, int], Outcome], producer: Producer | None = None
    ) -> Any:
        """The reply of the core; what went wrong is raised as `ApiError`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.runtime.submit(index, call, _resolver(future), producer)
        return await future


def _resolver(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def resolve(response: Any) -> None:
        if future.done():
            return
        if isinstance(response, ApiError):
            future.set_exception(response)
        else:
            future.set_result(response)

    return resolve
