"""The share coordinator of one partition of `__share_group_state`: it keeps what leaders of share partitions must know.

It is a store with two fences (see `persister.py` for who calls and why). Every request is about one share partition:

    initialize   snapshot                                  refused if the state epoch is older than what is stored
    write        update, or a snapshot if it is time       refused if either epoch is older; must be initialised;
                                                           the start offset never goes back
    read         nothing, or an update with the new        refused if the leader epoch is older; must be initialised
                 leader epoch
    delete       tombstone
    summarize    nothing                                   whoever asks

Who gives -1 for an epoch knows none, and is believed.

    outcome = shard.initialize(key, 1, 0, token, now_ms)
    outcome = shard.write(key, StateWrite(1, 5, 0, (StateBatch(3, 3, ACKNOWLEDGED, 1),)), token, now_ms)

A snapshot is written every `updates_per_snapshot` updates, and when the state epoch grows (updates have no place for
it). What lies before the oldest snapshot that still counts is redundant: every `prune_interval_ms` the shard says how
far its log may be cut (`on_prunable`). A partition that is never written to would hold that up, so that it gets a new
snapshot when its last one is `cold_snapshot_interval_ms` old.

Limits: one partition per request, as leaders ask. Kafka's settings for the coordinator's threads and for waiting to
fill a batch mean nothing here: there is one loop and each outcome is one batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable
from typing import Any

from tidemill.coordination.core import CoordinatorRecord, Outcome, Reply, SetTimer, Token
from tidemill.coordination.group.modern import Topics
from tidemill.coordination.share.persister import (
    NO_EPOCH,
    UNCHANGED_START_OFFSET,
    UNKNOWN_COUNT,
    ReadState,
    SharePartitionKey,
    StateSummary,
    StateWrite,
)
from tidemill.coordination.share.state import (
    SNAPSHOT,
    ShareState,
    from_snapshot,
    from_update,
    key_of,
    snapshot_record,
    tombstone,
    update_record,
)
from tidemill.model.errors import ApiError, ErrorCode

PRUNE, COLD, DELETED = "prune", "cold", "deleted"
"""The timers."""
RECORDS_AT_ONCE = 500


@dataclasses.dataclass(frozen=True, slots=True)
class ShareStateSettings:
    updates_per_snapshot: int = 500
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000


@dataclasses.dataclass(slots=True)
class _Stored:
    state: ShareState
    snapshot_at: int
    """Offset of the newest snapshot."""
    updates: int = 0
    """Since that snapshot."""


class ShareStateShard:
    """A `core.CoordinatorCore`."""

    def __init__(
        self, settings: ShareStateSettings, topics: Topics, on_prunable: Callable[[int], None]
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._on_prunable = on_prunable
        self._stored: dict[SharePartitionKey, _Stored] = {}
        self._end_offset = 0

    def state_of(self, key: SharePartitionKey) -> ShareState | None:
        stored = self._stored.get(key)
        return None if stored is None else stored.state

    def share_partitions(self) -> Collection[SharePartitionKey]:
        return self._stored.keys()

    # -- records and timers ---------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        record_key: Any = record.key
        key, value = key_of(record_key), record.value
        self._end_offset = offset + 1
        if value is None:
            self._stored.pop(key, None)
        elif record.type == SNAPSHOT:
            self._stored[key] = _Stored(from_snapshot(value), offset)  # type: ignore[arg-type]
        else:
            self._replay_update(key, value, offset)

    def _replay_update(self, key: SharePartitionKey, value: Any, offset: int) -> None:
        """Without its snapshot, which pruning never separates from it, an update is all there is."""
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = _Stored(ShareState(snapshot_epoch=value.snapshot_epoch), offset)
        stored.state = stored.state.after(from_update(value, stored.state.state_epoch))
        stored.updates += 1

    def on_loaded(self, now_ms: int) -> Outcome:
        settings = self._settings
        timers = [
            SetTimer(PRUNE, now_ms + settings.prune_interval_ms),
            SetTimer(COLD, now_ms + settings.cold_snapshot_interval_ms),
            SetTimer(DELETED, now_ms),
        ]
        return Outcome(timers=[*timers])

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        if key == PRUNE:
            self._on_prunable(self.redundant_before())
            return Outcome(timers=[SetTimer(PRUNE, now_ms + self._settings.prune_interval_ms)])
        return self._snapshot_cold(now_ms) if key == COLD else self._forget_deleted(now_ms)

    def redundant_before(self) -> int:
        """The first offset that loading needs."""
        return min((stored.snapshot_at for stored in self._stored.values()), default=self._end_offset)

    def _snapshot_cold(self, now_ms: int) -> Outcome:
        interval_ms = self._settings.cold_snapshot_interval_ms
        cold = [
            (key, stored.state)
            for key, stored in self._stored.items()
            if stored.state.written_ms <= now_ms - interval_ms
        ][:RECORDS_AT_ONCE]
        records = [snapshot_record(key, state.as_new_snapshot(now_ms)) for key, state in cold]
        due_ms = now_ms if len(records) == RECORDS_AT_ONCE else now_ms + interval_ms
        return Outcome(records=records, timers=[SetTimer(COLD, due_ms)])

    def on_topics_deleted(self, now_ms: int) -> Outcome:
        """Their state goes too."""
        return self._forget_deleted(now_ms)

    def _forget_deleted(self, now_ms: int) -> Outcome:
        topic_ids = {key.topic_id for key in self._stored}
        deleted = {topic_id for topic_id in topic_ids if self._topics.by_id(topic_id) is None}
        gone = [key for key in self._stored if key.topic_id in deleted]
        outcome = Outcome(records=[tombstone(key) for key in gone[:RECORDS_AT_ONCE]])
        if len(gone) > RECORDS_AT_ONCE:
            outcome.timers.append(SetTimer(DELETED, now_ms))
        return outcome

    # -- requests -------------------------------------------------------------------------------------

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, token: Token, now_ms: int
    ) -> Outcome:
        """Begin anew. Replies None."""
        self._check_partition(key)
        stored = self._stored.get(key)
        if stored is not None and _is_older(state_epoch, stored.state.state_epoch):
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        state = ShareState(
            snapshot_epoch=0 if stored is None else stored.state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0 if stored is None else stored.state.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == UNCHANGED_START_OFFSET else 0,
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return _answered(token, None, snapshot_record(key, state))

    def write(self, key: SharePartitionKey, change: StateWrite, token: Token, now_ms: int) -> Outcome:
        """Put a change over what is stored. Replies None."""
        stored = self._initialized(key)
        if _is_older(change.leader_epoch, stored.state.leader_epoch):
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if _is_older(change.state_epoch, stored.state.state_epoch):
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        if change.start_offset < stored.state.start_offset:
            change = change._replace(start_offset=UNCHANGED_START_OFFSET)
        return _answered(token, None, self._record_of(key, stored, change, now_ms))

    def read(self, key: SharePartitionKey, leader_epoch: int, token: Token, now_ms: int) -> Outcome:
        """A new leader takes over. Replies a ReadState."""
        stored = self._initialized(key)
        state = stored.state
        if _is_older(leader_epoch, state.leader_epoch):
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        found = ReadState(state.state_epoch, state.start_offset, state.batches)
        if leader_epoch in (NO_EPOCH, state.leader_epoch):
            return _answered(token, found)
        claim = StateWrite(
            state.state_epoch,
            leader_epoch,
            state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )
        return _answered(token, found, self._record_of(key, stored, claim, now_ms))

    def summarize(self, key: SharePartitionKey, token: Token, now_ms: int) -> Outcome:
        """Replies a StateSummary; a partition that was never initialised has start offset -1."""
        self._check_partition(key)
        stored = self._stored.get(key)
        if stored is None:
            return _answered(token, StateSummary(0, 0, UNCHANGED_START_OFFSET, UNKNOWN_COUNT))
        state = stored.state
        summary = StateSummary(
            state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count
        )
        return _answered(token, summary)

    def delete(self, key: SharePartitionKey, token: Token, now_ms: int) -> Outcome:
        """Replies None, also if there was nothing to delete."""
        if key.partition < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
        return _answered(token, None, *([tombstone(key)] if key in self._stored else []))

    # -- rules ----------------------------------------------------------------------------------------

    def _record_of(
        self, key: SharePartitionKey, stored: _Stored, change: StateWrite, now_ms: int
    ) -> CoordinatorRecord:
        is_new_epoch = change.state_epoch > stored.state.state_epoch
        if stored.updates < self._settings.updates_per_snapshot and not is_new_epoch:
            return update_record(key, stored.state, change)
        return snapshot_record(key, stored.state.after(change).as_new_snapshot(now_ms))

    def _initialized(self, key: SharePartitionKey) -> _Stored:
        self._check_partition(key)
        stored = self._stored.get(key)
        if stored is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The share partition has not been initialized.")
        return stored

    def _check_partition(self, key: SharePartitionKey) -> None:
        if key.partition < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
        topic = self._topics.by_id(key.topic_id)
        if topic is None or key.partition >= topic.partition_count:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _is_older(epoch: int, known: int) -> bool:
    return NO_EPOCH != epoch < known


def _answered(token: Token, response: Any, *records: CoordinatorRecord) -> Outcome:
    return Outcome(records=list(records), replies=[Reply(token, response)])
