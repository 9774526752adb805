"""How the leader of a share partition keeps its state: the port to whoever stores it.

The leader of a topic's partition decides which share consumer gets which record. What it must still know after a
crash (where it stands, which records were acknowledged out of order, how often each was delivered) it gives to a
persister. The persister of this broker is the share coordinator (`shard.py`), which writes `__share_group_state`.

    key = SharePartitionKey("workers", topic_id, 0)
    await persister.initialize(key, state_epoch=1, start_offset=0)          # by the group coordinator, once
    state = await persister.read(key, leader_epoch=5)                       # by a new leader: fences the old one
    await persister.write(key, StateWrite(state.state_epoch, 5, start_offset=7, batches=(
        StateBatch(9, 9, ACKNOWLEDGED, 1),)))                               # 7 and 8 are open, 9 is done

Batches of a write are merged into what is stored: for an offset that both have, the higher delivery count counts, and
with equal counts the higher state. What lies below the start offset is forgotten. `start_offset` of a write may be -1:
unchanged. It never goes back but by `initialize`: of two writes that were made at the same time, one may not know yet
how far the other one moves it.

Two epochs fence the past. `state_epoch` grows when the group's offsets are set from outside (a write that began before
is refused with FENCED_STATE_EPOCH); `leader_epoch` is the partition leader's (FENCED_LEADER_EPOCH).

All refusals are `ApiError`s: the two above, INVALID_REQUEST for a partition that was never initialised,
UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS (try again).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemill.model.ids import uuid_text

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
"""Delivery states as they are stored. An acquired record is stored as available: locks do not outlive their leader."""
UNCHANGED_START_OFFSET = -1
UNKNOWN_COUNT = -1
NO_EPOCH = -1
"""Whoever says this knows none, and is not fenced."""


class SharePartitionKey(NamedTuple):
    group_id: str
    topic_id: bytes
    partition: int

    def as_coordinator_key(self) -> str:
        """As FindCoordinator takes it, and as the partition of `__share_group_state` is chosen by."""
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"


class StateBatch(NamedTuple):
    """Records from first to last offset, both included, that are in the same state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ReadState(NamedTuple):
    state_epoch: int
    start_offset: int
    """-1 while nobody has said where to begin: then the group's reset strategy decides."""
    batches: tuple[StateBatch, ...]


class StateWrite(NamedTuple):
    state_epoch: int
    leader_epoch: int
    start_offset: int = UNCHANGED_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNKNOWN_COUNT
    """How many records from the start offset on are finished already; -1 if it is not known."""


class StateSummary(NamedTuple):
    state_epoch: int
    leader_epoch: int
    start_offset: int
    """-1 if the partition was never initialised, or nobody has said where to begin."""
    delivery_complete_count: int


class SharePersister(Protocol):
    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin anew, with nothing delivered; `start_offset` may be -1."""
        ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        """All there is; from now on writes of older leaders are refused."""
        ...

    async def write(self, key: SharePartitionKey, change: StateWrite) -> None:
        """Returns when the change is stored for good."""
        ...

    async def delete(self, key: SharePartitionKey) -> None:
        """Forget the partition; it is no error if there was nothing."""
        ...

    async def summary(self, key: SharePartitionKey) -> StateSummary: ...
