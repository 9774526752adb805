"""What a cluster says of itself."""

from __future__ import annotations

import kafka.admin
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from raw import batch_of, new_producer_id, produce

from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidemill.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest


def test_describe_cluster(cluster: Cluster) -> None:
    described = cluster.admin().describe_cluster().result(20)
    addresses = {f"{node.host}:{node.port}" for node in described.nodes}
    assert cluster.bootstrap in addresses
    assert described.controller.id in {node.id for node in described.nodes}
    assert len(described.cluster_id) == 22


def test_every_partition_has_a_leader_that_the_cluster_knows(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    described = cluster.admin().describe_cluster().result(20)
    addresses = {f"{node.host}:{node.port}" for node in described.nodes}
    for partition in range(3):
        assert cluster.leader_of(topic, partition) in addresses
        with cluster.connect(topic, partition) as leader:
            assert produce(leader, topic, batch_of(b"x"), partition=partition).error_code == 0
    assert not cluster.serves(topic, 4), "there is no fourth partition"


def test_describe_cluster_in_every_version(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        answers = [connection.call(DescribeClusterRequest(), version) for version in range(3)]
    assert len({answer.cluster_id for answer in answers}) == 1
    assert all(answer.error_code == 0 and answer.brokers for answer in answers)


def test_the_controllers_endpoint_is_not_ours_to_describe(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        answer = connection.call(DescribeClusterRequest(endpoint_type=2), 1)
    assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_describe_log_dirs(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"x" * 1_000) for _ in range(10)])
    asked = [DescribableLogDirTopic(topic=topic, partitions=[0])]
    with cluster.connect(topic) as connection:
        answer = connection.call(DescribeLogDirsRequest(topics=asked))
    found = [(d, t) for d in answer.results for t in d.topics if t.name == topic]
    ((directory, described),) = found
    assert directory.error_code == 0
    assert directory.log_dir.startswith("/")
    assert directory.total_bytes >= directory.usable_bytes > 0
    (partition,) = described.partitions
    assert 10_000 < partition.partition_size < 12_000
    assert (partition.offset_lag, partition.is_future_key) == (0, False)


def test_describe_log_dirs_by_kafka_python(cluster: Cluster, topic: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        (answer,) = admin.describe_log_dirs()
    finally:
        admin.close()
    assert topic in {t["name"] for directory in answer["log_dirs"] for t in directory["topics"]}


def test_describe_producers(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        producer_id, epoch = new_producer_id(connection)
        batch = batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        assert produce(connection, topic, batch).error_code == 0
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 9])])
        (described,) = connection.call(request).topics
    partitions = {p.partition_index: p for p in described.partitions}
    (state,) = partitions[0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer_id, epoch, 1)
    assert partitions[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_producer_ids_are_never_given_twice(cluster: Cluster) -> None:
    with cluster.connect() as first, cluster.connect() as second:
        given = [new_producer_id(connection)[0] for connection in (first, second) * 20]
    assert len(set(given)) == 40
    assert min(given) >= 0


def test_find_coordinator_answers_in_every_version(cluster: Cluster) -> None:
    """A coordinator's address, or an error that says there is none; never silence."""
    oldest, newest = FindCoordinatorRequest.VERSIONS
    with cluster.connect() as connection:
        for version in range(oldest, newest + 1):
            answer = connection.call(FindCoordinatorRequest(key="group", coordinator_keys=["group"]), version)
            places = answer.coordinators if version >= 4 else [answer]
            (place,) = places
            assert place.error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            assert place.error_code or place.port > 0
