"""The committed offsets of all groups of a shard, and those that wait for the end of a transaction.

An offset is committed by a record of type 1 in `__consumer_offsets`; its tombstone deletes it. A record that belongs
to a transaction counts only when the transaction commits: until then it is pending under its producer id, and a
reader that asks for stable offsets is told to come back (UNSTABLE_OFFSET_COMMIT).

    offset  record                                    committed   pending
    ------  ----------------------------------------  ----------  --------------
       10   g, t-0: 100                               100
       11   g, t-0: 120 in a transaction of 7         100         {7: 120}
       12   g, t-0: 110                               110         {7: 120}
       13   marker: 7 commits                         110                         (11 is older than 12)

The last line is why every offset remembers where in the log it was written: the younger record wins, not the one
whose transaction ended last. Otherwise compaction, which keeps the younger record of a key, would change the outcome.

A tombstone also removes what is pending for its key. A transaction stays open for its group until its marker, even
if nothing of it is left.

Limits: `replay` is the only mutator, beside `end_transaction`, which replays a marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.records.group_records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidemill.model.ids import NO_PRODUCER_ID, ZERO_UUID

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1
"""The only version that can say when an offset expires, as clients before OffsetCommit 5 may."""
NO_TIMESTAMP = -1

PartitionKey = tuple[str, int]
"""Topic name and partition."""


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """When the client wanted it to expire; -1 if the broker's retention counts."""
    topic_id: bytes
    record_offset: int
    """Of the record in `__consumer_offsets`."""


_Table = dict[str, dict[PartitionKey, CommittedOffset]]
"""By group."""
_NOTHING: dict[PartitionKey, CommittedOffset] = {}


class Offsets:
    def __init__(self) -> None:
        self._committed: _Table = {}
        self._pending: dict[int, _Table] = {}
        self._open: dict[str, set[int]] = {}
        """Producers with an open transaction that committed offsets of a group."""

    # -- reading ----------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> Mapping[PartitionKey, CommittedOffset]:
        return self._committed.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get((topic, partition))

    def is_pending(self, group_id: str, key: PartitionKey) -> bool:
        producers = self._open.get(group_id, ())
        return any(key in self._pending[producer_id].get(group_id, _NOTHING) for producer_id in producers)

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self._open

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open

    def group_ids(self) -> set[str]:
        """All groups with offsets, committed or pending."""
        return self._committed.keys() | self._open.keys()

    def keys_of(self, group_id: str) -> list[PartitionKey]:
        """Of all offsets, committed or pending."""
        keys = dict.fromkeys(self.of_group(group_id))
        for producer_id in self._open.get(group_id, ()):
            keys.update(dict.fromkeys(self._pending[producer_id].get(group_id, _NOTHING)))
        return list(keys)

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[str, PartitionKey]]:
        """Group and partition of all offsets of these topics, committed or pending."""
        wanted = set(topics)
        for group_id in self.group_ids():
            yield from ((group_id, key) for key in self.keys_of(group_id) if key[0] in wanted)

    def durable_state(self) -> tuple[_Table, dict[int, _Table]]:
        """For comparing: committed and pending."""
        return self._committed, self._pending

    # -- replaying --------------------------------------------------------------------------------------

    def replay(
        self,
        key: OffsetCommitKey | LegacyOffsetCommitKey,
        value: OffsetCommitValue | LegacyOffsetCommitValue | None,
        record_offset: int,
        producer_id: int,
    ) -> None:
        partition_key = (key.topic, key.partition)
        if value is None:
            self._remove(key.group, partition_key)
        elif producer_id == NO_PRODUCER_ID:
            committed = _from_record(value, record_offset)
            self._committed.setdefault(key.group, {})[partition_key] = committed
        else:
            table = self._pending.setdefault(producer_id, {})
            table.setdefault(key.group, {})[partition_key] = _from_record(value, record_offset)
            self._open.setdefault(key.group, set()).add(producer_id)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for group_id, entries in self._pending.pop(producer_id, {}).items():
            self._close(group_id, producer_id)
            if is_commit:
                self._commit(group_id, entries)

    def _commit(self, group_id: str, entries: dict[PartitionKey, CommittedOffset]) -> None:
        for key, pending in entries.items():
            committed = self.of_group(group_id).get(key)
            if committed is None or committed.record_offset < pending.record_offset:
                self._committed.setdefault(group_id, {})[key] = pending

    def _close(self, group_id: str, producer_id: int) -> None:
        producers = self._open[group_id]
        producers.discard(producer_id)
        if not producers:
            del self._open[group_id]

    def _remove(self, group_id: str, key: PartitionKey) -> None:
        for producer_id in self._open.get(group_id, ()):
            self._pending[producer_id][group_id].pop(key, None)
        entries = self._committed.get(group_id)
        if entries is not None:
            entries.pop(key, None)
            if not entries:
                del self._committed[group_id]


# -- records ----------------------------------------------------------------------------------------------


def offset_record(
    group_id: str, key: PartitionKey, value: OffsetCommitValue, version: int
) -> CoordinatorRecord:
    topic, partition = key
    record_key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(OFFSET_COMMIT, record_key, value, version)


def offset_tombstone(group_id: str, key: PartitionKey) -> CoordinatorRecord:
    topic, partition = key
    record_key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(OFFSET_COMMIT, record_key, None)


def _from_record(value: OffsetCommitValue | LegacyOffsetCommitValue, record_offset: int) -> CommittedOffset:
    if isinstance(value, LegacyOffsetCommitValue):
        return CommittedOffset(
            value.offset, -1, value.metadata, value.commit_timestamp, NO_TIMESTAMP, ZERO_UUID, record_offset
        )
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )
