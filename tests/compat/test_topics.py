"""Administration of topics, as the three clients' administrators do it."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka.admin
import kafka.admin
import pytest
from clients import CLIENTS, CONFLUENT, Sent
from cluster_under_test import Cluster
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, NewPartitions, NewTopic
from raw import batch_of, produce, topic_id
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


def topic_names(cluster: Cluster) -> set[str]:
    return set(cluster.admin().list_topics(timeout=20).topics)


def partition_count(cluster: Cluster, topic: str) -> int:
    described = cluster.admin().describe_topics(TopicCollection([topic]))[topic].result(20)
    return len(described.partitions)


def delete(cluster: Cluster, topic: str) -> None:
    cluster.admin().delete_topics([topic])[topic].result(20)


# -- each administrator -----------------------------------------------------------------------------


def test_confluent_creates_describes_grows_and_deletes(cluster: Cluster) -> None:
    admin, name = cluster.admin(), cluster.topic_name()
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(20)
    wait_until(lambda: cluster.serves(name, 3), "the new topic")
    described = admin.describe_topics(TopicCollection([name]))[name].result(20)
    assert (described.name, len(described.partitions), described.is_internal) == (name, 3, False)
    assert [len(partition.replicas) for partition in described.partitions] == [1, 1, 1]
    assert AclOperation.READ in (described.authorized_operations or [AclOperation.READ])
    admin.create_partitions([NewPartitions(name, 5)])[name].result(20)
    wait_until(lambda: partition_count(cluster, name) == 5, "five partitions")
    delete(cluster, name)
    wait_until(lambda: name not in topic_names(cluster), "the end of the topic")


def test_kafka_python_creates_describes_grows_and_deletes(cluster: Cluster) -> None:
    name = cluster.topic_name()
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        configs = {"retention.ms": "1000000"}
        admin.create_topics({name: {"num_partitions": 2, "configs": configs}}, wait_for_metadata=True)
        (described,) = admin.describe_topics([name])
        assert (described["name"], len(described["partitions"])) == (name, 2)
        admin.create_partitions({name: 4})
        wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 4, "four partitions")
        assert name in admin.list_topics()
        admin.delete_topics([name])
        wait_until(lambda: name not in admin.list_topics(), "the end of the topic")
    finally:
        admin.close()


def test_aiokafka_creates_describes_grows_and_deletes(cluster: Cluster) -> None:
    name = cluster.topic_name()

    async def administer() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
            wait_until(lambda: cluster.serves(name, 2), "the new topic")
            (described,) = await admin.describe_topics([name])
            assert (described["topic"], len(described["partitions"])) == (name, 2)
            await admin.create_partitions({name: aiokafka.admin.NewPartitions(4)})
            await admin.delete_topics([name])
        finally:
            await admin.close()

    asyncio.run(administer())
    wait_until(lambda: name not in topic_names(cluster), "the end of the topic")


# -- creation ---------------------------------------------------------------------------------------


def create_error(cluster: Cluster, name: str, **options: Any) -> KafkaError:
    """The error with which a creation is refused."""
    with pytest.raises(KafkaException) as refused:
        cluster.admin().create_topics([NewTopic(name, **options)])[name].result(20)
    error: KafkaError = refused.value.args[0]
    return error


def test_a_topic_that_exists_is_refused(cluster: Cluster, topic: str) -> None:
    assert create_error(cluster, topic, num_partitions=1).code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["has space", "..", "x" * 250, "slash/name"])
def test_a_name_kafka_forbids_is_refused(cluster: Cluster, name: str) -> None:
    assert create_error(cluster, name, num_partitions=1).code() == KafkaError.TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"num_partitions": 1, "replication_factor": 99}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 1, "config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "config": {"no.such.setting": "1"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "config": {"cleanup.policy": "burn"}}, KafkaError.INVALID_CONFIG),
    ],
)
def test_a_wrong_topic_is_refused(cluster: Cluster, options: dict[str, Any], code: int) -> None:
    name = cluster.topic_name()
    assert create_error(cluster, name, **options).code() == code
    assert name not in topic_names(cluster)


def test_validate_only_creates_nothing(cluster: Cluster) -> None:
    name = cluster.topic_name()
    cluster.admin().create_topics([NewTopic(name, 1)], validate_only=True)[name].result(20)
    assert name not in topic_names(cluster)


def test_the_answer_describes_the_new_topic(cluster: Cluster) -> None:
    name = cluster.topic_name()
    configs = [CreatableTopicConfig(name="retention.ms", value="5000")]
    wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, configs=configs)
    with cluster.connect() as connection:
        (made,) = connection.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)).topics
        wait_until(lambda: cluster.serves(name, 1), "the new topic")
        assert made.topic_id == topic_id(connection, name) != ZERO_UUID
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 1, 1)
    assert {config.name: config.value for config in made.configs}["retention.ms"] == "5000"
    assert "segment.bytes" in {config.name for config in made.configs}


def test_partitions_placed_by_hand(cluster: Cluster) -> None:
    name = cluster.topic_name()
    with cluster.connect() as connection:
        (broker,) = connection.call(MetadataRequest(topics=[])).brokers
        places = [
            CreatableReplicaAssignment(partition_index=n, broker_ids=[broker.node_id]) for n in range(2)
        ]
        wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=places)
        assert connection.call(CreateTopicsRequest(topics=[wanted])).topics[0].error_code == 0
        wait_until(lambda: cluster.serves(name, 2), "the new topic")
        elsewhere = CreatableTopic(
            name=cluster.topic_name(),
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[broker.node_id + 77])],
        )
        refused = connection.call(CreateTopicsRequest(topics=[elsewhere])).topics[0]
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition_count(cluster, name) == 2


def test_one_name_twice_in_a_request_is_refused(cluster: Cluster) -> None:
    wanted = CreatableTopic(name=cluster.topic_name(), num_partitions=1, replication_factor=1)
    with cluster.connect() as connection:
        answer = connection.call(CreateTopicsRequest(topics=[wanted, wanted]))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}


# -- growth and deletion ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_partitions_only_grow(cluster: Cluster, count: int) -> None:
    topic = cluster.topic(partitions=3)
    with pytest.raises(KafkaException) as refused:
        cluster.admin().create_partitions([NewPartitions(topic, count)])[topic].result(20)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_old_messages_stay_when_partitions_grow(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"old")])
    cluster.admin().create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    wait_until(lambda: partition_count(cluster, topic) == 2, "two partitions")
    CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"new")], partition=1)
    assert CONFLUENT.consume(cluster.bootstrap, topic, 1)[0].value == b"old"
    assert CONFLUENT.consume(cluster.bootstrap, topic, 1, partition=1)[0].value == b"new"


def test_deleting_what_is_not_there_is_refused(cluster: Cluster) -> None:
    with pytest.raises(KafkaException) as refused:
        delete(cluster, cluster.topic_name())
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_delete_by_topic_id(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as connection:
        doomed = DeleteTopicState(name=None, topic_id=topic_id(connection, topic))
        (result,) = connection.call(DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000)).responses
        assert (result.error_code, result.name) == (0, topic)
        (again,) = connection.call(DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000)).responses
        assert again.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_made_again_is_another_topic(cluster: Cluster) -> None:
    name = cluster.topic(partitions=2)
    with cluster.connect() as connection:
        first_id = topic_id(connection, name)
        CONFLUENT.produce(cluster.bootstrap, name, [Sent(b"%d" % n) for n in range(10)])
        delete(cluster, name)
        wait_until(lambda: name not in topic_names(cluster), "the end of the topic")
        cluster.admin().create_topics([NewTopic(name, 1)])[name].result(20)
        wait_until(lambda: cluster.serves(name, 1), "the new topic")
        assert topic_id(connection, name) != first_id
    assert partition_count(cluster, name) == 1
    for client in CLIENTS:
        assert client.watermarks(cluster.bootstrap, name) == (0, 0)
    CONFLUENT.produce(cluster.bootstrap, name, [Sent(b"new")])
    assert CONFLUENT.consume(cluster.bootstrap, name, 1)[0].value == b"new"


# -- metadata ---------------------------------------------------------------------------------------


def test_auto_create_by_produce(cluster: Cluster) -> None:
    for client in CLIENTS:
        name = cluster.topic_name()
        assert client.produce(cluster.bootstrap, name, [Sent(b"first")]) == [0]
        assert client.consume(cluster.bootstrap, name, 1)[0].value == b"first"


def test_no_auto_create_when_the_client_forbids_it(cluster: Cluster) -> None:
    name = cluster.topic_name()
    with cluster.connect() as connection:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        assert connection.call(request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert produce(connection, name, batch_of(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert name not in topic_names(cluster)


def test_metadata_by_topic_id(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as connection:
        known, unknown = topic_id(connection, topic), b"0123456789abcdef"
        asked = [
            MetadataRequestTopic(topic_id=known, name=None),
            MetadataRequestTopic(topic_id=unknown, name=None),
        ]
        answers = {t.topic_id: t for t in connection.call(MetadataRequest(topics=asked)).topics}
    assert (answers[known].error_code, answers[known].name) == (0, topic)
    assert answers[unknown].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_metadata_in_every_version(cluster: Cluster, topic: str) -> None:
    oldest, newest = MetadataRequest.VERSIONS
    with cluster.connect() as connection:
        for version in range(oldest, newest + 1):
            answer = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), version)
            (found,) = answer.topics
            (partition,) = found.partitions
            assert (found.error_code, found.name, partition.partition_index) == (0, topic, 0)
            assert partition.leader_id in {broker.node_id for broker in answer.brokers}


def test_describe_topic_partitions_in_pages(cluster: Cluster) -> None:
    names = sorted(cluster.topic(partitions=3) for _ in range(2))
    asked = [TopicRequest(name=name) for name in names]
    seen, cursor = [], None
    with cluster.connect() as connection:
        while True:
            request = DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=2, cursor=cursor)
            answer = connection.call(request)
            seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
            cursor = answer.next_cursor
            if cursor is None:
                break
    assert seen == [(name, number) for name in names for number in range(3)]
