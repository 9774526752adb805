"""The persister of this broker: the share coordinator, called in the same process.

In a cluster the coordinator of a share partition may be another broker; then this is the place to send the same five
requests over the wire (`share_states.py` answers them).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tidemill.api.coordination import Coordinator
from tidemill.api.internal_topics import SHARE_STATE_TOPIC, InternalTopics
from tidemill.coordination.core import Outcome
from tidemill.coordination.share.persister import (
    ReadState,
    SharePartitionKey,
    StateSummary,
    StateWrite,
)
from tidemill.coordination.share.shard import ShareStateShard

Call = Callable[[ShareStateShard, Hashable, int], Outcome]


class CoordinatorPersister:
    """A `SharePersister`."""

    def __init__(self, coordinator: Coordinator[ShareStateShard], topics: InternalTopics) -> None:
        self._coordinator = coordinator
        self._topics = topics

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._submit(
            key, lambda core, token, now_ms: core.initialize(key, state_epoch, start_offset, token, now_ms)
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        found: ReadState = await self._submit(
            key, lambda core, token, now_ms: core.read(key, leader_epoch, token, now_ms)
        )
        return found

    async def write(self, key: SharePartitionKey, change: StateWrite) -> None:
        await self._submit(key, lambda core, token, now_ms: core.write(key, change, token, now_ms))

    async def delete(self, key: SharePartitionKey) -> None:
        await self._submit(key, lambda core, token, now_ms: core.delete(key, token, now_ms))

    async def summary(self, key: SharePartitionKey) -> StateSummary:
        found: StateSummary = await self._submit(
            key, lambda core, token, now_ms: core.summarize(key, token, now_ms)
        )
        return found

    async def _submit(self, key: SharePartitionKey, call: Call) -> Any:
        await self._topics.make_sure_of(SHARE_STATE_TOPIC)
        return await self._coordinator.submit(key.as_coordinator_key(), call)
