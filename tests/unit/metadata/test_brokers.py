from __future__ import annotations

import dataclasses

import pytest
from metadata_cluster import MetadataCluster

from tidemill.metadata import records as r
from tidemill.metadata.assignments import new_partition_records
from tidemill.metadata.brokers import register_broker
from tidemill.metadata.features import UnsupportedMetadataVersion, check_metadata_version
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import NO_LEADER, TopicPartition


def cluster_with_topic(brokers: int, *replicas: tuple[int, ...]) -> MetadataCluster:
    cluster = MetadataCluster(brokers)
    partitions = new_partition_records(cluster.image, b"x" * 16, 0, replicas)
    cluster.replay([r.TopicRecord(name="x", topic_id=b"x" * 16), *partitions])
    return cluster


def test_a_registration_begins_fenced_with_an_epoch_from_the_log() -> None:
    cluster = MetadataCluster(brokers=0)
    request = cluster.registration(1, "rack-a")
    epoch = cluster.run(cluster.controller.register_broker(cluster.image, request, 17))
    broker = cluster.image.brokers[1]
    assert (broker.epoch, epoch, broker.fenced, broker.rack) == (17, 17, True, "rack-a")
    cluster.run(cluster.controller.unfence_broker(cluster.image, 1, epoch))
    assert cluster.image.is_active(1)


def test_a_broker_that_goes_hands_over_what_it_can() -> None:
    cluster = cluster_with_topic(3, (1, 2), (2, 1), (1,), (3, 2))
    cluster.fence(1)
    states = [(p.leader, p.isr, p.leader_epoch) for p in cluster.image.topics["x"].partitions.values()]
    assert states == [(2, (2,), 1), (2, (2,), 0), (NO_LEADER, (1,), 1), (3, (3, 2), 0)]


def test_a_broker_that_comes_back_leads_what_had_no_leader() -> None:
    cluster = cluster_with_topic(2, (1,), (1, 2))
    cluster.fence(1)
    cluster.start_broker(1)
    partitions = cluster.image.topics["x"].partitions
    assert (partitions[0].leader, partitions[0].leader_epoch) == (1, 2)
    assert (partitions[1].leader, partitions[1].isr) == (2, (2,))


def test_after_a_crash_the_leader_epoch_grows_and_after_a_clean_stop_it_does_not() -> None:
    cluster = cluster_with_topic(1, (1,))
    cluster.start_broker(1, clean=True)
    assert cluster.image.topics["x"].partitions[0].leader_epoch == 0
    cluster.start_broker(1, clean=False)
    partition = cluster.image.topics["x"].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 2)


def test_an_eligible_leader_that_kafka_left_behind_is_elected() -> None:
    cluster = cluster_with_topic(1, (1,))
    topic_id = cluster.image.topics["x"].topic_id
    stopped = r.PartitionChangeRecord(
        topic_id=topic_id, partition_id=0, isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]
    )
    cluster.replay([stopped])
    cluster.start_broker(1)
    partition = cluster.image.topics["x"].partitions[0]
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ())
    assert partition.last_known_eligible == ()


def test_unregistering_lets_the_broker_go() -> None:
    cluster = cluster_with_topic(2, (1, 2))
    cluster.run(cluster.controller.unregister_broker(cluster.image, 1))
    assert list(cluster.image.brokers) == [2]
    assert cluster.image.topics["x"].partitions[0].leader == 2


def test_requests_of_a_previous_life_are_refused() -> None:
    cluster = MetadataCluster()
    old = cluster.image.brokers[1].epoch
    cluster.start_broker(1)
    for decide in (cluster.controller.unfence_broker, cluster.controller.fence_broker,
                   cluster.controller.allocate_producer_ids):  # fmt: skip
        for broker_id, epoch, code in (
            (1, old, ErrorCode.STALE_BROKER_EPOCH),
            (9, 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ):
            with pytest.raises(ApiError) as refusal:
                decide(cluster.image, broker_id, epoch)
            assert refusal.value.code is code


def test_registrations_that_cannot_be() -> None:
    cluster = MetadataCluster()
    request = cluster.registration(1)
    image = dataclasses.replace(cluster.image, cluster_id="this")
    for changed, has_session, code in [
        (dataclasses.replace(request, cluster_id="other"), False, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (request, True, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        (dataclasses.replace(request, features=()), False, ErrorCode.UNSUPPORTED_VERSION),
    ]:
        with pytest.raises(ApiError) as refusal:
            register_broker(image, changed, 5, has_session=has_session)
        assert refusal.value.code is code


def test_fencing_twice_writes_nothing() -> None:
    cluster = MetadataCluster()
    cluster.fence(1)
    assert not cluster.controller.fence_broker(cluster.image, 1, cluster.image.brokers[1].epoch).records


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = MetadataCluster()
    epoch = cluster.image.brokers[1].epoch
    blocks = [
        cluster.run(cluster.controller.allocate_producer_ids(cluster.image, 1, epoch)) for _ in range(3)
    ]
    assert [(block.first, block.end) for block in blocks] == [(0, 1000), (1000, 2000), (2000, 3000)]
    assert cluster.image.next_producer_id == 3000


def test_a_broker_reports_the_directories_of_its_replicas() -> None:
    cluster = cluster_with_topic(2, (1, 2), (2,))
    epoch = cluster.image.brokers[1].epoch
    where = {
        TopicPartition("x", 0): b"d" * 16,
        TopicPartition("x", 1): b"d" * 16,
        TopicPartition("y", 0): b"d" * 16,
    }
    result = cluster.run(cluster.controller.assign_directories(cluster.image, 1, epoch, where))
    assert list(result.values()) == [
        ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]  # fmt: skip
    assert cluster.image.topics["x"].partitions[0].directories == (b"d" * 16, b"\x02" * 16)
    assert not cluster.controller.assign_directories(
        cluster.image, 1, epoch, dict(list(where.items())[:1])
    ).records


@pytest.mark.parametrize(("level", "is_known"), [(6, False), (7, True), (30, True), (31, False)])
def test_a_log_of_an_unknown_metadata_version_is_refused(level: int, is_known: bool) -> None:
    cluster = MetadataCluster()
    cluster.replay([r.FeatureLevelRecord(name="metadata.version", feature_level=level)])
    if is_known:
        check_metadata_version(cluster.image)
    else:
        with pytest.raises(UnsupportedMetadataVersion):
            check_metadata_version(cluster.image)
