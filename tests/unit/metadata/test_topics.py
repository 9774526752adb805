from __future__ import annotations

import pytest
from metadata_cluster import MetadataCluster

from tidemill.metadata import records as r
from tidemill.metadata.topics import NewTopic, TopicDeletion, TopicGrowth, TopicOutcome
from tidemill.model.configs import ConfigSource
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID


def create(cluster: MetadataCluster, *topics: NewTopic) -> list[TopicOutcome]:
    return cluster.run(cluster.controller.create_topics(cluster.image, topics))


def create_one(cluster: MetadataCluster, topic: NewTopic) -> TopicOutcome:
    (outcome,) = create(cluster, topic)
    return outcome


class TestCreate:
    def test_the_records_stand_in_kafkas_order(self) -> None:
        cluster = MetadataCluster()
        topic = NewTopic("orders", 2, 1, configs=(("retention.ms", "1000"),))
        decision = cluster.controller.create_topics(cluster.image, [topic])
        kinds = [type(record) for record in decision.records]
        assert kinds == [r.TopicRecord, r.ConfigRecord, r.PartitionRecord, r.PartitionRecord]

    def test_a_new_partition_is_led_by_its_first_replica_in_epoch_0(self) -> None:
        cluster = MetadataCluster(brokers=3)
        outcome = create_one(cluster, NewTopic("orders", 3, 2))
        assert outcome.is_success and (outcome.partitions, outcome.replication_factor) == (3, 2)
        topic = cluster.image.topics_by_id[outcome.topic_id]
        for partition in topic.partitions.values():
            assert partition.leader == partition.replicas[0] and partition.isr == partition.replicas
            assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
            assert partition.directories == tuple(bytes([id]) * 16 for id in partition.replicas)
        assert {partition.leader for partition in topic.partitions.values()} == {1, 2, 3}

    def test_minus_one_is_what_the_properties_say(self) -> None:
        properties = {"num_partitions": "6", "default_replication_factor": "2"}
        outcome = create_one(MetadataCluster(brokers=2, **properties), NewTopic("orders"))
        assert (outcome.partitions, outcome.replication_factor) == (6, 2)

    def test_the_outcome_carries_every_key_with_its_source(self) -> None:
        cluster = MetadataCluster(log_retention_hours="1")
        outcome = create_one(cluster, NewTopic("orders", configs=(("segment.bytes", "2000000"),)))
        sources = {entry.name: (entry.value, entry.source) for entry in outcome.configs}
        assert sources["segment.bytes"] == ("2000000", ConfigSource.TOPIC)
        assert sources["retention.ms"] == ("3600000", ConfigSource.STATIC_BROKER)
        assert sources["cleanup.policy"] == ("delete", ConfigSource.DEFAULT)
        assert list(sources) == sorted(sources)

    def test_validate_only_answers_and_writes_nothing(self) -> None:
        cluster = MetadataCluster()
        decision = cluster.controller.create_topics(cluster.image, [NewTopic("x", 2)], validate_only=True)
        assert decision.result[0].is_success and not decision.records

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("a" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
            (NewTopic("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (NewTopic("dotted_name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("x", partitions=0), ErrorCode.INVALID_PARTITIONS),
            (NewTopic("x", partitions=-2), ErrorCode.INVALID_PARTITIONS),
            (NewTopic("x", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (NewTopic("x", replication_factor=3), ErrorCode.INVALID_REPLICATION_FACTOR),
            (NewTopic("x", configs=(("no.such.key", "1"),)), ErrorCode.INVALID_CONFIG),
            (NewTopic("x", configs=(("retention.ms", "soon"),)), ErrorCode.INVALID_CONFIG),
            (NewTopic("x", configs=(("retention.ms", None),)), ErrorCode.INVALID_CONFIG),
            (NewTopic("x", 1, -1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST),
            (NewTopic("x", -1, 1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST),
            (NewTopic("x", assignments=((0, (1,)), (0, (2,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("x", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("x", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("x", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("x", assignments=((0, (9,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("x", assignments=((0, (1,)), (1, (1, 2)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_what_kafka_refuses_is_refused_with_its_code(self, topic: NewTopic, code: ErrorCode) -> None:
        cluster = MetadataCluster(brokers=2)
        create(cluster, NewTopic("taken"), NewTopic("dotted.name"))
        before = cluster.image
        outcome = create_one(cluster, topic)
        assert (outcome.error, outcome.topic_id) == (code, ZERO_UUID) and outcome.message
        assert cluster.image.topics == before.topics

    def test_one_bad_topic_does_not_hurt_the_others(self) -> None:
        cluster = MetadataCluster()
        outcomes = create(cluster, NewTopic("good"), NewTopic("b d"), NewTopic("also-good"))
        assert [outcome.is_success for outcome in outcomes] == [True, False, True]
        assert set(cluster.image.topics) == {"good", "also-good"}

    def test_a_name_that_comes_twice_is_refused_once(self) -> None:
        cluster = MetadataCluster()
        outcomes = create(cluster, NewTopic("a"), NewTopic("b"), NewTopic("a"))
        assert [(outcome.name, outcome.error) for outcome in outcomes] == [
            ("a", ErrorCode.INVALID_REQUEST),
            ("b", ErrorCode.NONE),
        ]

    def test_names_that_collide_within_a_request_are_found(self) -> None:
        outcomes = create(MetadataCluster(), NewTopic("a.b"), NewTopic("a_b"))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]

    def test_a_colliding_name_is_free_again_after_deletion(self) -> None:
        cluster = MetadataCluster()
        create(cluster, NewTopic("a.b"))
        cluster.run(cluster.controller.delete_topics(cluster.image, [TopicDeletion("a.b")]))
        assert create_one(cluster, NewTopic("a_b")).is_success

    def test_too_many_partitions_fail_the_whole_request(self) -> None:
        cluster = MetadataCluster()
        with pytest.raises(ApiError) as refusal:
            create(cluster, NewTopic("a", 6_000), NewTopic("b", 4_001))
        assert refusal.value.code is ErrorCode.POLICY_VIOLATION
        assert create_one(cluster, NewTopic("a", 10_000)).is_success

    def test_replicas_by_hand_keep_their_order(self) -> None:
        cluster = MetadataCluster(brokers=3)
        create_one(cluster, NewTopic("x", assignments=((1, (3, 1)), (0, (2, 3)))))
        partitions = cluster.image.topics["x"].partitions
        assert [partitions[0].replicas, partitions[1].replicas] == [(2, 3), (3, 1)]

    def test_a_fenced_replica_is_not_in_sync_and_does_not_lead(self) -> None:
        cluster = MetadataCluster(brokers=2)
        cluster.fence(2)
        create_one(cluster, NewTopic("x", assignments=((0, (2, 1)),)))
        partition = cluster.image.topics["x"].partitions[0]
        assert (partition.isr, partition.leader) == ((1,), 1)
        cluster.fence(1)
        assert create_one(cluster, NewTopic("y")).error is ErrorCode.INVALID_REPLICATION_FACTOR
        by_hand = NewTopic("y", assignments=((0, (1,)),))
        assert create_one(cluster, by_hand).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


class TestGrow:
    def test_partitions_are_added_after_the_last(self) -> None:
        cluster = MetadataCluster(brokers=3)
        create(cluster, NewTopic("x", 2, 2))
        before = cluster.image.topics["x"].partitions
        outcomes = cluster.run(cluster.controller.create_partitions(cluster.image, [TopicGrowth("x", 5)]))
        after = cluster.image.topics["x"].partitions
        assert outcomes["x"].is_success and list(after) == [0, 1, 2, 3, 4]
        assert after[0] is before[0] and {len(partition.replicas) for partition in after.values()} == {2}
        assert [after[n].leader % 3 for n in range(5)] == [(before[0].leader + n) % 3 for n in range(5)]

    @pytest.mark.parametrize(
        ("growth", "code"),
        [
            (TopicGrowth("unknown", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TopicGrowth("x", 2), ErrorCode.INVALID_PARTITIONS),
            (TopicGrowth("x", 1), ErrorCode.INVALID_PARTITIONS),
            (TopicGrowth("x", -1), ErrorCode.INVALID_PARTITIONS),
            (TopicGrowth("x", 4, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TopicGrowth("x", 3, ((1, 2),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TopicGrowth("x", 3, ((7,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_refusals(self, growth: TopicGrowth, code: ErrorCode) -> None:
        cluster = MetadataCluster(brokers=2)
        create(cluster, NewTopic("x", 2))
        decision = cluster.controller.create_partitions(cluster.image, [growth])
        assert decision.result[growth.name].error is code and not decision.records

    def test_by_hand_and_validate_only(self) -> None:
        cluster = MetadataCluster(brokers=2)
        create(cluster, NewTopic("x", 1))
        growth = [TopicGrowth("x", 2, ((2,),))]
        tried = cluster.controller.create_partitions(cluster.image, growth, validate_only=True)
        assert tried.result["x"].is_success and not tried.records
        cluster.run(cluster.controller.create_partitions(cluster.image, growth))
        assert cluster.image.topics["x"].partitions[1].replicas == (2,)

    def test_a_topic_that_comes_twice_and_too_many_partitions(self) -> None:
        cluster = MetadataCluster()
        create(cluster, NewTopic("x"))
        twice = cluster.controller.create_partitions(
            cluster.image, [TopicGrowth("x", 2), TopicGrowth("x", 3)]
        )
        assert twice.result["x"].error is ErrorCode.INVALID_REQUEST
        with pytest.raises(ApiError):
            cluster.controller.create_partitions(cluster.image, [TopicGrowth("x", 20_000)])


class TestDelete:
    def test_by_name_and_by_id(self) -> None:
        cluster = MetadataCluster()
        first, second = create(cluster, NewTopic("a"), NewTopic("b"))
        deletions = [TopicDeletion("a"), TopicDeletion(topic_id=second.topic_id)]
        outcomes = cluster.run(cluster.controller.delete_topics(cluster.image, deletions))
        assert [(outcome.name, outcome.topic_id) for outcome in outcomes] == [
            ("a", first.topic_id),
            ("b", second.topic_id),
        ]
        assert not cluster.image.topics

    def test_refusals(self) -> None:
        cluster = MetadataCluster()
        (topic,) = create(cluster, NewTopic("a"))
        for deletions, code in [
            ([TopicDeletion("x")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ([TopicDeletion(topic_id=b"x" * 16)], ErrorCode.UNKNOWN_TOPIC_ID),
            ([TopicDeletion()], ErrorCode.INVALID_REQUEST),
            ([TopicDeletion("a", topic.topic_id)], ErrorCode.INVALID_REQUEST),
            ([TopicDeletion("a"), TopicDeletion("a")], ErrorCode.INVALID_REQUEST),
            ([TopicDeletion("a"), TopicDeletion(topic_id=topic.topic_id)], ErrorCode.INVALID_REQUEST),
        ]:
            decision = cluster.controller.delete_topics(cluster.image, deletions)
            assert {outcome.error for outcome in decision.result} == {code} and not decision.records

    def test_deletion_can_be_switched_off(self) -> None:
        cluster = MetadataCluster(delete_topic_enable="false")
        with pytest.raises(ApiError) as refusal:
            cluster.controller.delete_topics(cluster.image, [TopicDeletion("a")])
        assert refusal.value.code is ErrorCode.TOPIC_DELETION_DISABLED
