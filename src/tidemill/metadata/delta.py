"""Replaying records onto an image: the only way that metadata ever changes.

A delta starts from an image, takes records in the order of the log, and gives the next image. It also says
what changed, so that a broker acts upon the difference instead of comparing two images:

    delta = Delta(image)
    for record in batch:
        delta.replay(record)
    image = delta.apply(offset=41, epoch=3, timestamp_ms=now_ms)
    delta.changes.partitions          # {orders-0, orders-1}: created, removed, or with another state

The same path serves the live log, recovery at start and the reading of snapshots, so what a broker believes
after a restart is what it believed before.

How it stays cheap: the maps of the image are copied when the first record touches them, never per record;
a topic that changes is unpacked into a `_TopicDraft` once. Replaying n records costs O(n) plus one copy of
each touched map.

A transaction of the log (KIP-868), as a table; anything absent is illegal and raises `CorruptLog`:

    state      BeginTransaction   EndTransaction             AbortTransaction   any other record
    none       -> open            illegal                    illegal            takes effect
    open       illegal            kept records take effect   kept are dropped   is kept

A record that contradicts the image (a partition of an unknown topic, a change of an unknown broker) means
that the log or this code is wrong. It raises `CorruptLog`: guessing would give brokers different images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tidemill.metadata import records as r
from tidemill.metadata.conversions import broker_from_record, changed_partition, partition_from_record
from tidemill.metadata.image import (
    BrokerRegistration,
    ConfigResource,
    MetadataImage,
    PartitionState,
    ResourceType,
    TopicState,
    metric_name,
)
from tidemill.model.errors import CorruptLog
from tidemill.model.ids import TopicPartition, uuid_text
from tidemill.wire.schema import Message

K = TypeVar("K")
V = TypeVar("V")

BEGINS_SHUTDOWN = 1


class _CopyOnWrite(Generic[K, V]):
    """A map of the image that is copied at its first change."""

    __slots__ = ("_copy", "current")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.current = base
        self._copy: dict[K, V] | None = None

    def writable(self) -> dict[K, V]:
        if self._copy is None:
            self.current = self._copy = _copy_of(self.current)
        return self._copy

    def freeze(self) -> Mapping[K, V]:
        return self.current if self._copy is None else MappingProxyType(self._copy)


def _copy_of(mapping: Mapping[K, V]) -> dict[K, V]:
    """A proxy knows how to copy the table of its dict at once; `dict(proxy)` would look up every key."""
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


@dataclasses.dataclass(slots=True)
class Changes:
    """What differs between the image a delta started from and the one it gives."""

    partitions: set[TopicPartition] = dataclasses.field(default_factory=set)
    """Created, removed or with a new state."""
    topics_created: set[str] = dataclasses.field(default_factory=set)
    topics_deleted: dict[str, bytes] = dataclasses.field(default_factory=dict)
    """Name to the id of the topic that is gone; a topic deleted and created again is also in the other."""
    configs: set[ConfigResource] = dataclasses.field(default_factory=set)
    brokers: set[int] = dataclasses.field(default_factory=set)
    features: set[str] = dataclasses.field(default_factory=set)

    def merge(self, later: Changes) -> None:
        """Add what changed afterwards; a topic that came and went in between was never there."""
        for name, topic_id in later.topics_deleted.items():
            if name in self.topics_created:
                self.topics_created.discard(name)
            else:
                self.topics_deleted[name] = topic_id
        self.partitions |= later.partitions
        self.topics_created |= later.topics_created
        self.configs |= later.configs
        self.brokers |= later.brokers
        self.features |= later.features


@dataclasses.dataclass(slots=True)
class _TopicDraft:
    """A topic under change."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionState]

    def freeze(self) -> TopicState:
        indexes = list(self.partitions)
        if indexes != list(range(len(indexes))):
            self.partitions = dict(sorted(self.partitions.items()))
        return TopicState(self.name, self.topic_id, MappingProxyType(self.partitions))


class Delta:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.changes = Changes()
        self._brokers = _CopyOnWrite(image.brokers)
        self._topics = _CopyOnWrite(image.topics)
        self._topics_by_id = _CopyOnWrite(image.topics_by_id)
        self._topics_by_metric_name = _CopyOnWrite(image.topics_by_metric_name)
        self._configs = _CopyOnWrite(image.configs)
        self._features = _CopyOnWrite(image.features)
        self._carried = _CopyOnWrite(image.carried)
        self._drafts: dict[bytes, _TopicDraft] = {}
        self._next_producer_id = image.next_producer_id
        self._transaction = None if image.open_transaction is None else list(image.open_transaction)

    def replay(self, record: Message) -> None:
        if self._transaction is not None and not isinstance(record, _TRANSACTION_RECORDS):
            self._transaction.append(record)
            return
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise CorruptLog(f"{type(record).__name__} cannot be replayed")
        handler(self, record)

    def apply(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """The image after everything replayed; the delta is spent."""
        for topic_id, draft in self._drafts.items():
            self._topics_by_id.writable()[topic_id] = self._topics.writable()[draft.name] = draft.freeze()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            cluster_id=self.image.cluster_id,
            brokers=self._brokers.freeze(),
            topics=self._topics.freeze(),
            topics_by_id=self._topics_by_id.freeze(),
            topics_by_metric_name=self._topics_by_metric_name.freeze(),
            configs=self._configs.freeze(),
            features=self._features.freeze(),
            next_producer_id=self._next_producer_id,
            carried=self._carried.freeze(),
            open_transaction=None if self._transaction is None else tuple(self._transaction),
        )

    # -- transactions -------------------------------------------------------------------------------------

    def _begin_transaction(self, record: r.BeginTransactionRecord) -> None:
        if self._transaction is not None:
            raise CorruptLog("a metadata transaction begins inside another one")
        self._transaction = []

    def _end_transaction(self, record: r.EndTransactionRecord) -> None:
        for kept in self._close_transaction():
            self.replay(kept)

    def _abort_transaction(self, record: r.AbortTransactionRecord) -> None:
        self._close_transaction()

    def _close_transaction(self) -> list[Message]:
        if self._transaction is None:
            raise CorruptLog("a metadata transaction ends that never began")
        kept, self._transaction = self._transaction, None
        return kept

    # -- topics -------------------------------------------------------------------------------------------

    def _topic(self, record: r.TopicRecord) -> None:
        if record.name in self._topics.current:
            raise CorruptLog(f"topic {record.name} is created a second time")
        self._drafts[record.topic_id] = _TopicDraft(record.name, record.topic_id, {})
        self._topics.writable()[record.name] = TopicState(record.name, record.topic_id, MappingProxyType({}))
        if "." in record.name or "_" in record.name:
            self._topics_by_metric_name.writable()[metric_name(record.name)] = record.name
        self.changes.topics_created.add(record.name)

    def _remove_topic(self, record: r.RemoveTopicRecord) -> None:
        draft = self._draft(record.topic_id)
        del self._drafts[record.topic_id]
        del self._topics.writable()[draft.name]
        self._topics_by_id.writable().pop(record.topic_id, None)
        if self._topics_by_metric_name.current.get(metric_name(draft.name)) == draft.name:
            del self._topics_by_metric_name.writable()[metric_name(draft.name)]
        self._forget_configs(ConfigResource(ResourceType.TOPIC, draft.name))
        self._note_removed(draft)

    def _note_removed(self, draft: _TopicDraft) -> None:
        name = draft.name
        self.changes.partitions.update(TopicPartition(name, index) for index in draft.partitions)
        was = self.image.topics.get(name)
        if was is not None and was.topic_id == draft.topic_id:
            self.changes.topics_deleted[name] = draft.topic_id
        else:
            self.changes.topics_created.discard(name)

    def _draft(self, topic_id: bytes) -> _TopicDraft:
        draft = self._drafts.get(topic_id)
        if draft is None:
            topic = self._topics_by_id.current.get(topic_id)
            if topic is None:
                raise CorruptLog(f"there is no topic with the id {uuid_text(topic_id)}")
            draft = _TopicDraft(topic.name, topic_id, _copy_of(topic.partitions))
            self._drafts[topic_id] = draft
        return draft

    def _partition(self, record: r.PartitionRecord) -> None:
        draft = self._draft(record.topic_id)
        draft.partitions[record.partition_id] = partition_from_record(record)
        self.changes.partitions.add(TopicPartition(draft.name, record.partition_id))

    def _partition_change(self, record: r.PartitionChangeRecord) -> None:
        draft = self._draft(record.topic_id)
        before = draft.partitions.get(record.partition_id)
        if before is None:
            raise CorruptLog(f"there is no partition {draft.name}-{record.partition_id} to change")
        draft.partitions[record.partition_id] = changed_partition(before, record)
        self.changes.partitions.add(TopicPartition(draft.name, record.partition_id))

    def _clear_elr(self, record: r.ClearElrRecord) -> None:
        topics = self._topics.current
        if record.topic_name and record.topic_name not in topics:
            raise CorruptLog(f"there is no topic {record.topic_name} to clear")
        for topic in [topics[record.topic_name]] if record.topic_name else list(topics.values()):
            self._clear_eligible_leaders(self._draft(topic.topic_id))

    def _clear_eligible_leaders(self, draft: _TopicDraft) -> None:
        for index, partition in draft.partitions.items():
            if partition.eligible_leader_replicas or partition.last_known_eligible:
                draft.partitions[index] = dataclasses.replace(
                    partition,
                    eligible_leader_replicas=(),
                    last_known_eligible=(),
                    partition_epoch=partition.partition_epoch + 1,
                )
                self.changes.partitions.add(TopicPartition(draft.name, index))

    # -- configurations, features, producer ids -----------------------------------------------------------

    def _config(self, record: r.ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = dict(self._configs.current.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs.writable()[resource] = MappingProxyType(values)
        else:
            self._configs.writable().pop(resource, None)
        self.changes.configs.add(resource)

    def _forget_configs(self, resource: ConfigResource) -> None:
        if resource in self._configs.current:
            del self._configs.writable()[resource]
            self.changes.configs.add(resource)

    def _feature_level(self, record: r.FeatureLevelRecord) -> None:
        if record.feature_level:
            self._features.writable()[record.name] = record.feature_level
        else:
            self._features.writable().pop(record.name, None)
        self.changes.features.add(record.name)

    def _producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    # -- brokers ------------------------------------------------------------------------------------------

    def _register_broker(self, record: r.RegisterBrokerRecord) -> None:
        self._brokers.writable()[record.broker_id] = broker_from_record(record)
        self.changes.brokers.add(record.broker_id)

    def _unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self._brokers.writable()[record.broker_id]
        self.changes.brokers.add(record.broker_id)

    def _fence_broker(self, record: r.FenceBrokerRecord) -> None:
        self._change_broker(self._registered(record.id, record.epoch), fenced=True)

    def _unfence_broker(self, record: r.UnfenceBrokerRecord) -> None:
        self._change_broker(self._registered(record.id, record.epoch), fenced=False)

    def _broker_registration_change(self, record: r.BrokerRegistrationChangeRecord) -> None:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown == BEGINS_SHUTDOWN:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_directories"] = tuple(record.cordoned_log_dirs)
        self._change_broker(self._registered(record.broker_id, record.broker_epoch), **changes)

    def _registered(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self._brokers.current.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise CorruptLog(f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def _change_broker(self, broker: BrokerRegistration, **changes: Any) -> None:
        self._brokers.writable()[broker.broker_id] = dataclasses.replace(broker, **changes)
        self.changes.brokers.add(broker.broker_id)

    # -- what is only carried -----------------------------------------------------------------------------

    def _carry(self, record: Message) -> None:
        self._carried.writable()[carried_key(record)] = record

    def _quota(self, record: r.ClientQuotaRecord) -> None:
        if record.remove:
            self._carried.writable().pop(carried_key(record), None)
        else:
            self._carry(record)

    def _drop_carried(self, record: Message) -> None:
        self._carried.writable().pop(carried_key(record), None)

    def _no_op(self, record: r.NoOpRecord) -> None:
        """Only moves the offset."""


def carried_key(record: Any) -> tuple[object, ...]:
    """What two carried records must share for the later one to replace or remove the earlier."""
    return _CARRIED_KEYS[type(record)](record)


def _quota_key(record: r.ClientQuotaRecord) -> tuple[object, ...]:
    entity = sorted((part.entity_type, part.entity_name) for part in record.entity)
    return ("quota", tuple(entity), record.key)


_CARRIED_KEYS: dict[type[Message], Callable[[Any], tuple[object, ...]]] = {
    r.ClientQuotaRecord: _quota_key,
    r.AccessControlEntryRecord: lambda record: ("access control entry", record.id),
    r.RemoveAccessControlEntryRecord: lambda record: ("access control entry", record.id),
    r.UserScramCredentialRecord: lambda record: ("credential", record.name, record.mechanism),
    r.RemoveUserScramCredentialRecord: lambda record: ("credential", record.name, record.mechanism),
    r.DelegationTokenRecord: lambda record: ("token", record.token_id),
    r.RemoveDelegationTokenRecord: lambda record: ("token", record.token_id),
    r.RegisterControllerRecord: lambda record: ("controller", record.controller_id),
    r.ZkMigrationStateRecord: lambda record: ("migration",),
}

_TRANSACTION_RECORDS = (r.BeginTransactionRecord, r.EndTransactionRecord, r.AbortTransactionRecord)

_HANDLERS: dict[type[Message], Callable[[Delta, Any], None]] = {
    r.RegisterBrokerRecord: Delta._register_broker,
    r.UnregisterBrokerRecord: Delta._unregister_broker,
    r.TopicRecord: Delta._topic,
    r.PartitionRecord: Delta._partition,
    r.ConfigRecord: Delta._config,
    r.PartitionChangeRecord: Delta._partition_change,
    r.FenceBrokerRecord: Delta._fence_broker,
    r.UnfenceBrokerRecord: Delta._unfence_broker,
    r.RemoveTopicRecord: Delta._remove_topic,
    r.DelegationTokenRecord: Delta._carry,
    r.UserScramCredentialRecord: Delta._carry,
    r.FeatureLevelRecord: Delta._feature_level,
    r.ClientQuotaRecord: Delta._quota,
    r.ProducerIdsRecord: Delta._producer_ids,
    r.BrokerRegistrationChangeRecord: Delta._broker_registration_change,
    r.AccessControlEntryRecord: Delta._carry,
    r.RemoveAccessControlEntryRecord: Delta._drop_carried,
    r.NoOpRecord: Delta._no_op,
    r.ZkMigrationStateRecord: Delta._carry,
    r.RemoveUserScramCredentialRecord: Delta._drop_carried,
    r.BeginTransactionRecord: Delta._begin_transaction,
    r.EndTransactionRecord: Delta._end_transaction,
    r.AbortTransactionRecord: Delta._abort_transaction,
    r.RemoveDelegationTokenRecord: Delta._drop_carried,
    r.RegisterControllerRecord: Delta._carry,
    r.ClearElrRecord: Delta._clear_elr,
}
assert set(_HANDLERS) == set(r.RECORD_TYPES.values())
