from __future__ import annotations

import dataclasses

import pytest
from metadata_cluster import MetadataCluster, replayed

from tidemill.metadata import records as r
from tidemill.metadata.conversions import image_records
from tidemill.metadata.delta import Delta
from tidemill.metadata.image import (
    EMPTY_IMAGE,
    ConfigResource,
    MetadataImage,
    ResourceType,
    is_internal_topic,
)
from tidemill.metadata.topics import NewTopic, TopicDeletion, TopicGrowth
from tidemill.model.errors import CorruptLog
from tidemill.model.ids import TopicPartition
from tidemill.wire.schema import Message

A, B = b"a" * 16, b"b" * 16


def topic_records(name: str = "orders", topic_id: bytes = A, partitions: int = 2) -> list[Message]:
    return [
        r.TopicRecord(name=name, topic_id=topic_id),
        *(
            r.PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0,
                partition_epoch=0, directories=[A, B],
            )
            for index in range(partitions)
        ),
    ]  # fmt: skip


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = replayed(topic_records())
    assert image.topics["orders"] is image.topics_by_id[A]
    assert list(image.topics["orders"].partitions) == [0, 1]
    assert image.offset == 2


def test_partitions_that_come_out_of_order_are_put_in_order() -> None:
    topic, first, second = topic_records()
    assert list(replayed([topic, second, first]).topics["orders"].partitions) == [0, 1]


def test_an_image_shares_what_did_not_change() -> None:
    before = replayed(topic_records())
    after = replayed([r.FeatureLevelRecord(name="metadata.version", feature_level=30)], before)
    assert after.topics is before.topics and after.configs is before.configs
    grown = replayed(topic_records("other", B), before)
    assert grown.topics["orders"] is before.topics["orders"]
    assert "other" not in before.topics


def test_an_image_cannot_be_written_to() -> None:
    image = replayed(topic_records())
    with pytest.raises(TypeError):
        image.topics["x"] = image.topics["orders"]  # type: ignore[index]
    with pytest.raises(TypeError):
        del image.topics["orders"].partitions[0]  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        image.offset = 3  # type: ignore[misc]


def test_naming_a_leader_is_an_election_even_of_the_same_one() -> None:
    image = replayed(topic_records())
    change = r.PartitionChangeRecord(topic_id=A, partition_id=1, leader=1)
    after = replayed([change], image).topics["orders"].partitions[1]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 1, 1)


def test_a_change_without_a_leader_keeps_the_leader_epoch() -> None:
    image = replayed(topic_records())
    after = replayed([r.PartitionChangeRecord(topic_id=A, partition_id=0, isr=[1])], image)
    partition = after.topics["orders"].partitions[0]
    assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((1,), 0, 1)
    assert partition.replicas == (1, 2) and partition.directories == (A, B)


def test_deleting_a_topic_takes_its_configuration_along() -> None:
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    config = r.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1")
    image = replayed([*topic_records(), config])
    assert image.configs[resource] == {"retention.ms": "1"}
    delta = Delta(image)
    delta.replay(r.RemoveTopicRecord(topic_id=A))
    after = delta.apply(4, 1, 0)
    assert not after.topics and not after.topics_by_id and not after.configs
    assert delta.changes.topics_deleted == {"orders": A}
    assert delta.changes.partitions == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert delta.changes.configs == {resource}


def test_a_topic_created_and_deleted_in_one_delta_leaves_no_trace_but_its_partitions() -> None:
    delta = Delta(EMPTY_IMAGE)
    for record in [*topic_records(), r.RemoveTopicRecord(topic_id=A)]:
        delta.replay(record)
    assert not delta.apply(3, 1, 0).topics
    assert not delta.changes.topics_created and not delta.changes.topics_deleted


def test_a_topic_deleted_and_created_again_is_in_both_lists() -> None:
    delta = Delta(replayed(topic_records()))
    for record in [r.RemoveTopicRecord(topic_id=A), *topic_records("orders", B)]:
        delta.replay(record)
    image = delta.apply(6, 1, 0)
    assert image.topics["orders"].topic_id == B and A not in image.topics_by_id
    assert delta.changes.topics_created == {"orders"} and delta.changes.topics_deleted == {"orders": A}


def test_the_last_setting_that_goes_takes_the_resource_with_it() -> None:
    config = r.ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="1")
    image = replayed([config])
    assert image.config_of(ResourceType.BROKER, "") == {"log.retention.ms": "1"}
    gone = r.ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value=None)
    assert not replayed([gone], image).configs
    assert replayed([gone], image).config_of(ResourceType.BROKER, "") == {}


class TestTransactions:
    def test_records_inside_have_no_effect_until_the_end(self) -> None:
        begun = replayed([r.BeginTransactionRecord(name="x"), *topic_records()])
        assert not begun.topics and len(begun.open_transaction or ()) == 3
        ended = replayed([r.EndTransactionRecord()], begun)
        assert "orders" in ended.topics and ended.open_transaction is None

    def test_an_abort_drops_them(self) -> None:
        image = replayed([r.BeginTransactionRecord(), *topic_records(), r.AbortTransactionRecord()])
        assert not image.topics and image.open_transaction is None

    @pytest.mark.parametrize(
        "records",
        [
            [r.EndTransactionRecord()], [r.AbortTransactionRecord()],
            [r.BeginTransactionRecord(), r.BeginTransactionRecord()],
        ],
    )  # fmt: skip
    def test_what_is_absent_from_the_table_is_illegal(self, records: list[Message]) -> None:
        with pytest.raises(CorruptLog):
            replayed(records)


JOE = r.EntityData(entity_type="user", entity_name="joe")
CARRIED: list[tuple[Message, Message]] = [
    (r.AccessControlEntryRecord(id=A), r.RemoveAccessControlEntryRecord(id=A)),
    (
        r.UserScramCredentialRecord(name="joe", mechanism=1),
        r.RemoveUserScramCredentialRecord(name="joe", mechanism=1),
    ),
    (r.DelegationTokenRecord(token_id="t"), r.RemoveDelegationTokenRecord(token_id="t")),
    (
        r.ClientQuotaRecord(entity=[JOE], key="k", value=1.5),
        r.ClientQuotaRecord(entity=[JOE], key="k", remove=True),
    ),
]


@pytest.mark.parametrize(("record", "removal"), CARRIED)
def test_records_without_meaning_are_carried_until_removed(record: Message, removal: Message) -> None:
    image = replayed([record])
    assert list(image_records(image)) == [record]
    assert not replayed([removal], image).carried


@pytest.mark.parametrize(
    "record",
    [
        r.PartitionRecord(topic_id=A), r.PartitionChangeRecord(topic_id=A, partition_id=0),
        r.RemoveTopicRecord(topic_id=A), r.ClearElrRecord(topic_name="x"), r.UnfenceBrokerRecord(id=1),
        r.BrokerRegistrationChangeRecord(broker_id=1), r.UnregisterBrokerRecord(broker_id=1),
    ],
)  # fmt: skip
def test_a_record_that_contradicts_the_image_is_never_guessed_at(record: Message) -> None:
    with pytest.raises(CorruptLog):
        replayed([record])


def test_a_change_under_an_old_broker_epoch_is_refused() -> None:
    image = replayed([r.RegisterBrokerRecord(broker_id=1, broker_epoch=9)])
    assert not replayed([r.UnfenceBrokerRecord(id=1, epoch=9)], image).brokers[1].fenced
    with pytest.raises(CorruptLog):
        replayed([r.FenceBrokerRecord(id=1, epoch=8)], image)


def test_clearing_eligible_leaders_touches_only_those_who_have_some() -> None:
    change = r.PartitionChangeRecord(
        topic_id=A, partition_id=0, isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]
    )
    image = replayed([*topic_records(), change])
    assert image.topics["orders"].partitions[0].eligible_leader_replicas == (1,)
    after = replayed([r.ClearElrRecord()], image).topics["orders"]
    assert after.partitions[0].eligible_leader_replicas == () == after.partitions[0].last_known_eligible
    assert after.partitions[1] is image.topics["orders"].partitions[1]


def test_the_records_of_an_image_make_it_again() -> None:
    cluster = MetadataCluster(brokers=3, racks=["a", "b", "c"])
    cluster.run(
        cluster.controller.create_topics(
            cluster.image,
            [
                NewTopic("orders", 4, 3, configs=(("retention.ms", "5"),)),
                NewTopic("a.b", 1, 1),
                NewTopic("gone"),
            ],
        )
    )
    cluster.run(cluster.controller.delete_topics(cluster.image, [TopicDeletion("gone")]))
    cluster.run(cluster.controller.create_partitions(cluster.image, [TopicGrowth("a.b", 2)]))
    cluster.run(cluster.controller.allocate_producer_ids(cluster.image, 1, cluster.image.brokers[1].epoch))
    cluster.fence(2)
    again = replayed(list(image_records(cluster.image)))
    assert same_content(again, cluster.image)


def same_content(one: MetadataImage, other: MetadataImage) -> bool:
    place = {"offset": 0, "epoch": 0, "timestamp_ms": 0}
    return dataclasses.replace(one, **place) == dataclasses.replace(other, **place)


def test_internal_topics_are_known() -> None:
    assert is_internal_topic("__consumer_offsets") and not is_internal_topic("__other")
    assert replayed(topic_records("__transaction_state")).topics["__transaction_state"].is_internal
