"""The newer group protocol, lived through on our broker and on Kafka: the same answers, and the same records."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from decoded_records import decoded, without_chance
from kafka_peer import KafkaPeer
from kafka_tools import complaints, dump_log, dumped_records
from tidemill_peer import TidemillPeer
from waiting import wait_until

from tidemill.coordination.partitioning import partition_for
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

GROUP, TOPIC, PARTITIONS = "orders", "t", 4
COORDINATOR_IS_BUSY = (14, 15, 16)
SETTINGS: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
KAFKAS_SETTINGS = SETTINGS | {"group.consumer.assignment.interval.ms": 0}
"""Kafka gathers changes of a second before it assigns; here every change is assigned at once."""
CHANCE = ("timestamp", "topicid", "hash", "clienthost", "clientid", "version")


class Life:
    """Heartbeats of several members over one connection; what is answered is kept."""

    def __init__(self, connection: WireClient) -> None:
        self.connection = connection
        self.answers: list[tuple[Any, ...]] = []
        self.topic_id = bytes(16)

    def begin(self) -> None:
        def is_known() -> bool:
            self.connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
            request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="nobody", member_epoch=1)
            return self.connection.call(request).error_code not in COORDINATOR_IS_BUSY

        wait_until(is_known, "a coordinator", 30)
        (topic,) = self.connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])).topics
        self.topic_id = topic.topic_id

    def beat(self, member_id: str, epoch: int, owned: list[int] | None = None, **changes: Any) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch)
        if epoch == 0:
            request.rebalance_timeout_ms = 20_000
            request.subscribed_topic_names = [TOPIC]
            request.server_assignor = "range"
            request.topic_partitions = []
        if owned is not None:
            request.topic_partitions = [TopicPartitions(topic_id=self.topic_id, partitions=owned)]
        for name, value in changes.items():
            setattr(request, name, value)
        reply = self.connection.call(request)
        assigned = None
        if reply.assignment is not None:
            assigned = [index for each in reply.assignment.topic_partitions for index in each.partitions]
        self.answers.append((member_id, reply.error_code, reply.member_id, reply.member_epoch, assigned))

    def commit(self, member_id: str, epoch: int, partition: int, version: int = 9) -> None:
        listed = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=7, committed_leader_epoch=0, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[listed])],
        )
        reply = self.connection.call(request, version=version)
        self.answers.append(("commit", member_id, reply.topics[0].partitions[0].error_code))

    def look(self) -> None:
        (group,) = self.connection.call(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups
        members = sorted((each.member_id, each.member_epoch, each.member_type) for each in group.members)
        self.answers.append((group.error_code, group.group_state, group.group_epoch, group.assignment_epoch))
        self.answers.append((group.assignor_name, members))
        (classic,) = self.connection.call(DescribeGroupsRequest(groups=[GROUP])).groups
        self.answers.append((classic.error_code, classic.group_state))
        listed = self.connection.call(ListGroupsRequest(types_filter=["consumer"])).groups
        self.answers += [(each.group_id, each.group_type, each.group_state) for each in listed]

    def delete(self) -> None:
        (result,) = self.connection.call(DeleteGroupsRequest(groups_names=[GROUP])).results
        self.answers.append(("delete", result.error_code))


def live(life: Life) -> None:
    life.beat("m-1", 0)
    life.beat("m-1", 2, [0, 1, 2, 3])
    life.beat("m-2", 0)
    life.look()
    life.beat("m-1", 2)
    life.look()
    life.beat("m-2", 3)
    life.beat("m-1", 2, [0, 1, 2, 3])
    life.beat("m-1", 2, [0, 1])
    life.beat("m-2", 3)
    life.beat("m-2", 3, [2, 3])
    life.look()
    life.commit("m-1", 3, 0)
    life.commit("m-1", 2, 0)
    life.commit("m-2", 2, 2)
    life.commit("m-2", 4, 2)
    life.commit("m-2", 3, 2, version=8)
    life.commit("nobody", 3, 2)
    life.beat("m-2", 8)
    life.beat("nobody", 3)
    life.beat("m-2", 2, [2, 3])
    life.beat("m-4", 0, server_assignor="sticky")
    life.beat("m-4", 0, subscribed_topic_regex="[")
    life.beat("m-4", 0, rebalance_timeout_ms=-1)
    life.beat("", 0)
    live_statically(life)
    life.delete()
    life.beat("m-1", -1)
    life.beat("m-2", -1)
    life.look()
    life.delete()
    life.look()


def live_statically(life: Life) -> None:
    life.beat("m-3", 0, instance_id="i")
    life.beat("m-9", 0, instance_id="i")
    life.beat("m-3", 4, instance_id="other")
    life.beat("m-9", 4, instance_id="i")
    life.beat("m-3", -2, instance_id="i")
    life.look()
    life.beat("m-5", 0, instance_id="i")
    life.look()
    life.beat("m-5", -1, instance_id="i")
    life.look()


def lived(broker: BrokerProcess) -> tuple[list[tuple[Any, ...]], list[tuple[Any, Any]]]:
    """The answers, and the records as Kafka's decoder prints them, without what chance made."""
    with broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS, {})
        with WireClient(broker.bootstrap) as connection:
            life = Life(connection)
            life.begin()
            live(life)
        broker.stop()
        log = Path(broker.data_directory) / f"__consumer_offsets-{partition_for(GROUP, 50)}"
        text = dump_log(sorted(log.glob("*.log")), "--offsets-decoder")
        assert not complaints(text), text
    return life.answers, [(_plain(record.key), _plain(record.payload)) for record in dumped_records(text)]


def _plain(text: str | None) -> Any:
    return without_chance(decoded(text), CHANCE)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    directory = tmp_path_factory.mktemp("lives")
    ours = lived(TidemillPeer(data_directory=directory / "ours", settings=SETTINGS))
    theirs = lived(KafkaPeer(data_directory=directory / "theirs", settings=KAFKAS_SETTINGS))
    return ours, theirs


def test_the_answers_are_kafkas(both: tuple[Any, Any]) -> None:
    (ours, _), (theirs, _) = both
    assert ours == theirs


def test_kafkas_decoder_sees_the_same_records(both: tuple[Any, Any]) -> None:
    (_, ours), (_, theirs) = both
    assert len(theirs) > 40
    assert _targets_in_order(ours) == _targets_in_order(theirs)


def _targets_in_order(records: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Targets that were made together come in the order of a hash table there, of member ids here."""
    ordered: list[tuple[Any, Any]] = []
    for is_target, run in itertools.groupby(records, key=lambda record: record[0]["type"] == "7"):
        together = list(run)
        ordered += sorted(together, key=lambda record: str(record[0])) if is_target else together
    return ordered


@pytest.mark.parametrize(("writer", "reader"), [(KafkaPeer, TidemillPeer), (TidemillPeer, KafkaPeer)])
def test_groups_move_with_the_directory(
    writer: type[BrokerProcess], reader: type[BrokerProcess], tmp_path: Path
) -> None:
    """The other broker knows the members, their epochs, and what they read: they go on where they were."""
    with writer(data_directory=tmp_path / "data", settings=SETTINGS) as first:
        create_topic(first.bootstrap, TOPIC, PARTITIONS, {})
        with WireClient(first.bootstrap) as connection:
            life = Life(connection)
            life.begin()
            life.beat("m-1", 0)
    with (
        reader(data_directory=tmp_path / "data", settings=SETTINGS) as second,
        WireClient(second.bootstrap) as connection,
    ):
        life = Life(connection)
        life.begin()
        (group,) = connection.call(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups
        (found,) = group.members
        assert (found.member_id, found.member_epoch, found.member_type) == ("m-1", 2, 1)
        assert found.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
        life.beat("m-1", 2, [0, 1, 2, 3])
        assert life.answers[0][1] == 0
