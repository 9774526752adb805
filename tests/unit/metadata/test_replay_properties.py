"""Whatever the controller decided: the log replayed, or a snapshot and the rest of the log, gives its image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_cluster import MetadataCluster

from tidemill.metadata.config_changes import ConfigChange, Operation, ResourceChange
from tidemill.metadata.delta import Delta
from tidemill.metadata.framing import decode_value, encode_value
from tidemill.metadata.image import EMPTY_IMAGE, ConfigResource, MetadataImage, ResourceType
from tidemill.metadata.snapshot import VoterSet, decode_snapshot, encode_snapshot
from tidemill.metadata.topics import NewTopic, TopicDeletion, TopicGrowth
from tidemill.wire.schema import Message

NAMES = ("a", "b.c", "b_c", "__consumer_offsets")
SETTINGS = (("retention.ms", "5"), ("cleanup.policy", "compact"), ("segment.bytes", "2000000"))

Step = Callable[[MetadataCluster], None]
name = st.sampled_from(NAMES)
broker = st.integers(1, 3)


def create(topic: str, partitions: int, replication_factor: int, config: tuple[str, str]) -> Step:
    new = NewTopic(topic, partitions, replication_factor, configs=(config,))
    return lambda cluster: void(cluster.run(cluster.controller.create_topics(cluster.image, [new])))


def delete(topic: str) -> Step:
    deletion = [TopicDeletion(topic)]
    return lambda cluster: void(cluster.run(cluster.controller.delete_topics(cluster.image, deletion)))


def grow(topic: str, count: int) -> Step:
    growth = [TopicGrowth(topic, count)]
    return lambda cluster: void(cluster.run(cluster.controller.create_partitions(cluster.image, growth)))


def alter(topic: str, config: tuple[str, str], operation: Operation) -> Step:
    change = ConfigChange(config[0], operation, config[1])
    request = [ResourceChange(ConfigResource(ResourceType.TOPIC, topic), (change,))]
    return lambda cluster: void(
        cluster.run(cluster.controller.incremental_alter_configs(cluster.image, request))
    )


def restart(broker_id: int, clean: bool) -> Step:
    return lambda cluster: void(cluster.start_broker(broker_id, clean=clean))


def fence(broker_id: int) -> Step:
    return lambda cluster: cluster.fence(broker_id)


def allocate(broker_id: int) -> Step:
    def step(cluster: MetadataCluster) -> None:
        epoch = cluster.image.brokers[broker_id].epoch
        cluster.run(cluster.controller.allocate_producer_ids(cluster.image, broker_id, epoch))

    return step


def void(_: object) -> None:
    """Steps answer nothing."""


steps = st.one_of(
    st.builds(create, name, st.integers(1, 4), st.integers(1, 3), st.sampled_from(SETTINGS)),
    st.builds(delete, name),
    st.builds(grow, name, st.integers(1, 6)),
    st.builds(alter, name, st.sampled_from(SETTINGS), st.sampled_from(Operation)),
    st.builds(restart, broker, st.booleans()),
    st.builds(fence, broker),
    st.builds(allocate, broker),
)


def played(steps: list[Step]) -> MetadataCluster:
    cluster = MetadataCluster(brokers=3, racks=["x", "y", "y"])
    for step in steps:
        step(cluster)
    return cluster


def replayed_from(image: MetadataImage, records: list[Message]) -> MetadataImage:
    delta = Delta(image)
    for record in records:
        delta.replay(decode_value(encode_value(record, 30)))
    return delta.apply(0, 0, 0)


def placeless(image: MetadataImage) -> MetadataImage:
    return dataclasses.replace(image, offset=0, epoch=0, timestamp_ms=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=15))
def test_the_encoded_log_gives_the_image(steps: list[Step]) -> None:
    cluster = played(steps)
    assert replayed_from(EMPTY_IMAGE, cluster.records) == placeless(cluster.image)
    check_invariants(cluster.image)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=10), st.lists(steps, max_size=10))
def test_snapshot_and_tail_give_the_image(before: list[Step], after: list[Step]) -> None:
    cluster = played(before)
    data = b"".join(encode_snapshot(cluster.image, VoterSet(), now_ms=1))
    written = len(cluster.records)
    for step in after:
        step(cluster)
    restored = replayed_from(EMPTY_IMAGE, decode_snapshot(data).records)
    assert replayed_from(restored, cluster.records[written:]) == placeless(cluster.image)


def check_invariants(image: MetadataImage) -> None:
    assert {topic.topic_id for topic in image.topics.values()} == set(image.topics_by_id)
    assert not {"b.c", "b_c"} <= set(image.topics)
    for topic, _, partition in image.partitions():
        assert list(topic.partitions) == list(range(len(topic.partitions)))
        assert set(partition.isr) <= set(partition.replicas) and partition.isr
        assert len(partition.directories) == len(partition.replicas)
        assert partition.leader in partition.isr if partition.has_leader else True
        if partition.has_leader:
            assert image.is_active(partition.leader)
    for resource in image.configs:
        assert resource.type != ResourceType.TOPIC or resource.name in image.topics
