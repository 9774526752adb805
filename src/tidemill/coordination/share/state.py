"""What is stored of one share partition, and how it becomes records of `__share_group_state`.

    ShareSnapshot   everything there is at that time
    ShareUpdate     what one write changed; it belongs to the snapshot with the same snapshot epoch
    (tombstone)     the partition is forgotten; a ShareSnapshot without a value

    log     snapshot(epoch 3: start 0) · update(3: 2-4 done) · update(3: 0-1 done, start 5) · snapshot(epoch 4: start 5)

Replaying a partition means: take its newest snapshot and put every later update over it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.records import share_records
from tidemill.coordination.records.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidemill.coordination.share.batches import combine
from tidemill.coordination.share.persister import (
    UNCHANGED_START_OFFSET,
    UNKNOWN_COUNT,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)

SNAPSHOT, UPDATE = 0, 1
"""Record types."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShareState:
    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNCHANGED_START_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0

    def after(self, change: StateWrite) -> ShareState:
        """With a write put over it; the snapshot it belongs to stays."""
        start_offset = self.start_offset
        if change.start_offset != UNCHANGED_START_OFFSET:
            start_offset = change.start_offset
        return dataclasses.replace(
            self,
            state_epoch=max(self.state_epoch, change.state_epoch),
            leader_epoch=max(self.leader_epoch, change.leader_epoch),
            start_offset=start_offset,
            delivery_complete_count=change.delivery_complete_count,
            batches=combine((*self.batches, *change.batches), start_offset),
        )

    def as_new_snapshot(self, now_ms: int) -> ShareState:
        return dataclasses.replace(
            self, snapshot_epoch=self.snapshot_epoch + 1, created_ms=now_ms, written_ms=now_ms
        )


def snapshot_record(key: SharePartitionKey, state: ShareState) -> CoordinatorRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_to_records(state.batches),
    )
    return CoordinatorRecord(SNAPSHOT, _key(ShareSnapshotKey, key), value)


def update_record(key: SharePartitionKey, state: ShareState, change: StateWrite) -> CoordinatorRecord:
    """`state` is what the change is put over."""
    start_offset = change.start_offset
    value = ShareUpdateValue(
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=max(state.leader_epoch, change.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=change.delivery_complete_count,
        state_batches=_to_records(combine(change.batches, start_offset)),
    )
    return CoordinatorRecord(UPDATE, _key(ShareUpdateKey, key), value)


def tombstone(key: SharePartitionKey) -> CoordinatorRecord:
    return CoordinatorRecord(SNAPSHOT, _key(ShareSnapshotKey, key), None)


def key_of(record_key: ShareSnapshotKey | ShareUpdateKey) -> SharePartitionKey:
    return SharePartitionKey(record_key.group_id, record_key.topic_id, record_key.partition)


def from_snapshot(value: ShareSnapshotValue) -> ShareState:
    return ShareState(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _from_records(value.state_batches),
        value.create_timestamp,
        value.write_timestamp,
    )


def from_update(value: ShareUpdateValue, state_epoch: int) -> StateWrite:
    return StateWrite(
        state_epoch,
        value.leader_epoch,
        value.start_offset,
        _from_records(value.state_batches),
        value.delivery_complete_count,
    )


def _key(
    cls: type[ShareSnapshotKey] | type[ShareUpdateKey], key: SharePartitionKey
) -> ShareSnapshotKey | ShareUpdateKey:
    return cls(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)


def _to_records(batches: Iterable[StateBatch]) -> list[share_records.StateBatch]:
    return [
        share_records.StateBatch(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    ]


def _from_records(batches: Iterable[share_records.StateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
    )
