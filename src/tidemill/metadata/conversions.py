"""Between the records of the log and the state of the image, in both directions.

Reading a record back from the state it made gives an equal state, whatever version it was written in: that
is what makes a snapshot as good as the log that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tidemill.metadata import records as r
from tidemill.metadata.image import (
    METADATA_VERSION_FEATURE,
    BrokerRegistration,
    Endpoint,
    FeatureRange,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidemill.wire.schema import Message

V = TypeVar("V")

UNCHANGED_LEADER = -2
UNCHANGED_RECOVERY_STATE = -1


def broker_from_record(record: r.RegisterBrokerRecord) -> BrokerRegistration:
    cordoned = record.cordoned_log_dirs
    return BrokerRegistration(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        listeners=tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
        features=tuple(
            FeatureRange(f.name, f.min_supported_version, f.max_supported_version) for f in record.features
        ),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        directories=tuple(record.log_dirs),
        cordoned_directories=None if cordoned is None else tuple(cordoned),
    )


def broker_record(broker: BrokerRegistration) -> r.RegisterBrokerRecord:
    cordoned = broker.cordoned_directories
    return r.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            r.BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in broker.listeners
        ],
        features=[
            r.BrokerFeature(name=f.name, min_supported_version=f.minimum, max_supported_version=f.maximum)
            for f in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def partition_from_record(record: r.PartitionRecord) -> PartitionState:
    return PartitionState(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=tuple(record.directories),
        adding_replicas=tuple(record.adding_replicas),
        removing_replicas=tuple(record.removing_replicas),
        leader_recovery_state=record.leader_recovery_state,
        eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
        last_known_eligible=tuple(record.last_known_elr or ()),
    )


def partition_record(topic_id: bytes, index: int, partition: PartitionState) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_eligible) or None,
    )


def changed_partition(before: PartitionState, record: r.PartitionChangeRecord) -> PartitionState:
    """The state after a change: a record that names a leader is an election, even of the same leader."""
    elects = record.leader != UNCHANGED_LEADER
    recovers = record.leader_recovery_state != UNCHANGED_RECOVERY_STATE
    return PartitionState(
        replicas=_either(record.replicas, before.replicas),
        isr=_either(record.isr, before.isr),
        leader=record.leader if elects else before.leader,
        leader_epoch=before.leader_epoch + 1 if elects else before.leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        directories=_either(record.directories, before.directories),
        adding_replicas=_either(record.adding_replicas, before.adding_replicas),
        removing_replicas=_either(record.removing_replicas, before.removing_replicas),
        leader_recovery_state=record.leader_recovery_state if recovers else before.leader_recovery_state,
        eligible_leader_replicas=_either(record.eligible_leader_replicas, before.eligible_leader_replicas),
        last_known_eligible=_either(record.last_known_elr, before.last_known_eligible),
    )


def _either(changed: list[V] | None, before: tuple[V, ...]) -> tuple[V, ...]:
    return before if changed is None else tuple(changed)


def image_records(image: MetadataImage) -> Iterator[Message]:
    """Records that make this image out of nothing; the metadata version comes first, as Kafka demands."""
    assert image.open_transaction is None, "an image with an open transaction has no records of its own"
    yield from _feature_records(image)
    yield from (broker_record(broker) for broker in image.brokers.values())
    for topic in image.topics.values():
        yield from _topic_records(topic)
    yield from _config_records(image)
    if image.next_producer_id:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.carried.values()


def _feature_records(image: MetadataImage) -> Iterator[Message]:
    names = sorted(image.features, key=lambda name: (name != METADATA_VERSION_FEATURE, name))
    for name in names:
        yield r.FeatureLevelRecord(name=name, feature_level=image.features[name])


def _topic_records(topic: TopicState) -> Iterator[Message]:
    yield r.TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for index, partition in topic.partitions.items():
        yield partition_record(topic.topic_id, index, partition)


def _config_records(image: MetadataImage) -> Iterator[Message]:
    for resource, values in image.configs.items():
        for name, value in values.items():
            yield r.ConfigRecord(
                resource_type=resource.type, resource_name=resource.name, name=name, value=value
            )
