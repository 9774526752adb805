"""A persister in memory that can be slow, fail, and fence, on purpose: the real one's rules without its log."""

from __future__ import annotations

import asyncio

from tidemill.coordination.share.batches import combine
from tidemill.coordination.share.persister import (
    NO_EPOCH,
    ReadState,
    SharePartitionKey,
    StateSummary,
    StateWrite,
)
from tidemill.model.errors import ApiError, ErrorCode


class MemoryPersister:
    """A `SharePersister`."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ReadState] = {}
        self.leader_epochs: dict[SharePartitionKey, int] = {}
        self.complete_counts: dict[SharePartitionKey, int] = {}
        self.writes: list[StateWrite] = []
        self.failures: list[Exception] = []
        """Each of them is raised once, by the next calls."""
        self.may_go_on = asyncio.Event()
        """While it is not set, reads and writes wait."""
        self.may_go_on.set()

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self.states[key] = ReadState(state_epoch, start_offset, ())

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        await self._wait()
        state = self._known(key)
        self._check_leader(key, leader_epoch)
        return state

    async def write(self, key: SharePartitionKey, change: StateWrite) -> None:
        await self._wait()
        state = self._known(key)
        self._check_leader(key, change.leader_epoch)
        if change.state_epoch < state.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        start = max(state.start_offset, change.start_offset)
        batches = combine([*state.batches, *change.batches], start)
        self.states[key] = ReadState(state.state_epoch, start, batches)
        self.complete_counts[key] = change.delivery_complete_count
        self.writes.append(change)

    async def delete(self, key: SharePartitionKey) -> None:
        self.states.pop(key, None)

    async def summary(self, key: SharePartitionKey) -> StateSummary:
        state = self._known(key)
        epoch = self.leader_epochs.get(key, NO_EPOCH)
        return StateSummary(state.state_epoch, epoch, state.start_offset, self.complete_counts.get(key, -1))

    async def _wait(self) -> None:
        await self.may_go_on.wait()
        if self.failures:
            raise self.failures.pop(0)

    def _known(self, key: SharePartitionKey) -> ReadState:
        if key not in self.states:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{key} was never initialised")
        return self.states[key]

    def _check_leader(self, key: SharePartitionKey, leader_epoch: int) -> None:
        if leader_epoch < self.leader_epochs.get(key, NO_EPOCH):
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        self.leader_epochs[key] = leader_epoch
