"""Consumer groups of the classic protocol with real clients: joining, sharing, leaving, dying, coming back.

What a group makes of its offsets is shown with the newer protocol too; the rest of that one is in
test_consumer_groups.py.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from clients import CONFLUENT, Client, Sent
from cluster_under_test import Cluster
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource
from group_members import SESSION_TIMEOUT_MS, STRATEGIES, Member, member, mortal_member
from raw import batch_of, produce_request
from raw_groups import committed_offsets
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

PARTITIONS = 4
EVERYWHERE = set(range(PARTITIONS))
ALL_STRATEGIES = [(client, strategy) for client, offered in STRATEGIES.items() for strategy in offered]
PROTOCOLS = ("classic", "consumer")
OwnBroker = Callable[..., SubprocessBroker]


@pytest.fixture
def group() -> str:
    """A name that no group has."""
    return f"group-{uuid.uuid4().hex[:12]}"


def fill(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS, start: int = 0) -> None:
    """`count` messages to each partition, their values their numbers."""
    for partition in range(partitions):
        messages = [Sent(b"%d" % number) for number in range(start, start + count)]
        CONFLUENT.produce(bootstrap, topic, messages, partition=partition)


def share_evenly(members: list[Member]) -> bool:
    """All partitions, each once, and nobody idle."""
    held = [partition for each in members for partition in each.assigned]
    return sorted(held) == sorted(EVERYWHERE) and all(each.assigned for each in members)


def positions(bootstrap: str, group: str, topic: str, partitions: int = PARTITIONS) -> list[int]:
    """The committed offsets, -1001 where there is none."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [TopicPartition(topic, partition) for partition in range(partitions)]
        return [found.offset for found in consumer.committed(asked, 20)]
    finally:
        consumer.close()


# -- members come and go ----------------------------------------------------------------------------------


def test_a_group_reads_everything_and_goes_on_where_it_stopped(
    cluster: Cluster, client: Client, group: str
) -> None:
    topic = cluster.topic(PARTITIONS)
    fill(cluster.bootstrap, topic, 50)
    with member(client.name, cluster.bootstrap, group, topic) as first:
        wait_until(lambda: len(first.received) == 200, "all messages")
    assert positions(cluster.bootstrap, group, topic) == [50] * PARTITIONS
    fill(cluster.bootstrap, topic, 5, start=50)
    with member(client.name, cluster.bootstrap, group, topic) as second:
        wait_until(lambda: len(second.received) >= 20, "the new messages")
    assert sorted(second.received) == [
        (partition, offset, b"%d" % offset) for partition in range(PARTITIONS) for offset in range(50, 55)
    ]


@pytest.mark.parametrize(("name", "strategy"), ALL_STRATEGIES)
def test_members_share_the_partitions_and_take_over_from_who_leaves(
    cluster: Cluster, group: str, name: str, strategy: str
) -> None:
    topic = cluster.topic(PARTITIONS)
    with member(name, cluster.bootstrap, group, topic, strategy=strategy) as first:
        wait_until(lambda: first.assigned == EVERYWHERE, "the first assignment")
        with member(name, cluster.bootstrap, group, topic, strategy=strategy) as second:
            wait_until(lambda: share_evenly([first, second]), "two members that share", 30)
        wait_until(lambda: first.assigned == EVERYWHERE, "the first to have all again", 30)


def test_members_of_different_clients_form_one_group(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(PARTITIONS)
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(member(name, cluster.bootstrap, group, topic))
            for name in ("confluent-kafka", "aiokafka")
        ]
        wait_until(lambda: share_evenly(members), "two clients that share", 30)


def test_a_killed_member_is_replaced_when_its_session_is_over(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(PARTITIONS)
    with (
        mortal_member("confluent-kafka", cluster.bootstrap, group, topic) as process,
        member("confluent-kafka", cluster.bootstrap, group, topic) as survivor,
    ):
        wait_until(lambda: len(survivor.assigned) == PARTITIONS // 2, "two members that share", 30)
        killed_at = time.monotonic()
        process.kill()
        wait_until(lambda: survivor.assigned == EVERYWHERE, "the survivor to take over", 30)
        assert time.monotonic() - killed_at > SESSION_TIMEOUT_MS / 1000 - 2


def test_nothing_is_skipped_while_members_come_and_go(cluster: Cluster, client: Client, group: str) -> None:
    topic = cluster.topic(PARTITIONS)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(90)}
    members: list[Member] = []
    with contextlib.ExitStack() as stack:
        for round_number in range(3):
            members.append(stack.enter_context(member(client.name, cluster.bootstrap, group, topic)))
            fill(cluster.bootstrap, topic, 30, start=30 * round_number)
            if round_number == 1:
                members[0].stop()
        wait_until(lambda: _read_by(members) == everything, "every message", 30)
    assert positions(cluster.bootstrap, group, topic) == [90] * PARTITIONS


def _read_by(members: list[Member]) -> set[tuple[int, int]]:
    return {(partition, offset) for each in members for partition, offset, _ in list(each.received)}


def test_a_static_member_comes_back_without_a_rebalance(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(PARTITIONS)
    with member("confluent-kafka", cluster.bootstrap, group, topic, instance="stays") as stays:
        wait_until(lambda: stays.assigned == EVERYWHERE, "the first assignment")
        with member("confluent-kafka", cluster.bootstrap, group, topic, instance="restarts") as before:
            wait_until(lambda: share_evenly([stays, before]), "two members that share", 30)
            held, told = before.assigned, stays.assignments
        with member("confluent-kafka", cluster.bootstrap, group, topic, instance="restarts") as after:
            wait_until(lambda: after.assigned, "the restarted member to be back", 30)
            assert after.assigned == held
            assert stays.assignments == told


# -- crashes of the broker --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_groups_and_offsets_survive_the_broker(own_broker: OwnBroker, group: str, how: str) -> None:
    broker = own_broker(settings={"group.initial.rebalance.delay.ms": "0"})
    topic = broker.create_topic("survivors", partitions=PARTITIONS)
    fill(broker.bootstrap, topic, 20)
    with member("confluent-kafka", broker.bootstrap, group, topic) as running:
        wait_until(lambda: len(running.received) == 80, "all messages")
        wait_until(
            lambda: positions(broker.bootstrap, group, topic) == [20] * PARTITIONS, "all offsets committed"
        )
        if how == "kill":
            broker.kill()
        broker.restart()
        assert positions(broker.bootstrap, group, topic) == [20] * PARTITIONS
        fill(broker.bootstrap, topic, 5, start=20)
        wait_until(lambda: len(running.received) >= 100, "the member to go on", 30)
    assert sorted(set(running.received)) == sorted(running.received), "nothing was read twice"


# -- offsets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commit_seek_and_metadata(cluster: Cluster, group: str, protocol: str) -> None:
    topic = cluster.topic(1)
    fill(cluster.bootstrap, topic, 10, partitions=1)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        first = _next_message(consumer)
        assert first.offset() == 0
        consumer.commit(
            offsets=[TopicPartition(topic, 0, 7, metadata="half way", leader_epoch=0)], asynchronous=False
        )
        (found,) = consumer.committed([TopicPartition(topic, 0)], 20)
        assert (found.offset, found.metadata, found.leader_epoch) == (7, "half way", 0)
        consumer.seek(TopicPartition(topic, 0, 3))
        assert _next_message(consumer).offset() == 3
        assert _listed(cluster, group) == (ConsumerGroupState.STABLE, ConsumerGroupType[protocol.upper()])
    finally:
        consumer.close()
    assert positions(cluster.bootstrap, group, topic, 1) == [7]


def _next_message(consumer: confluent_kafka.Consumer) -> confluent_kafka.Message:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            return message
    raise TimeoutError("no message")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 10)])
def test_where_a_group_without_offsets_begins(
    cluster: Cluster, group: str, reset: str, expected: int, protocol: str
) -> None:
    topic = cluster.topic(1)
    fill(cluster.bootstrap, topic, 10, partitions=1)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": reset,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.subscribe([topic])
        if reset == "latest":
            wait_until(lambda: _is_at_end(consumer.poll(0.1)), "the end of the partition")
            fill(cluster.bootstrap, topic, 1, partitions=1, start=10)
        assert _next_message(consumer).offset() == expected
    finally:
        consumer.close()


def _is_at_end(message: confluent_kafka.Message | None) -> bool:
    return message is not None and message.error() is not None


# -- administration ---------------------------------------------------------------------------------------


def test_list_describe_and_delete(cluster: Cluster, group: str) -> None:
    topic, admin = cluster.topic(PARTITIONS), cluster.admin()
    with member("confluent-kafka", cluster.bootstrap, group, topic) as only:
        wait_until(lambda: only.assigned == EVERYWHERE, "the assignment")
        assert _listed(cluster, group) == (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC)
        described = admin.describe_consumer_groups([group])[group].result(20)
        assert described.partition_assignor == "range"
        (found,) = described.members
        assert {each.partition for each in found.assignment.topic_partitions} == EVERYWHERE
        assert found.client_id and found.host.lstrip("/") == "127.0.0.1"
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(20)
    assert _listed(cluster, group) == (ConsumerGroupState.EMPTY, ConsumerGroupType.CLASSIC)
    admin.delete_consumer_groups([group])[group].result(20)
    assert _listed(cluster, group) is None
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(20)


def _listed(cluster: Cluster, group: str) -> tuple[ConsumerGroupState, ConsumerGroupType] | None:
    listed = cluster.admin().list_consumer_groups().result(20)
    assert not listed.errors
    return next(((each.state, each.type) for each in listed.valid if each.group_id == group), None)


def test_offsets_are_altered_listed_and_deleted(cluster: Cluster, group: str) -> None:
    topic, admin = cluster.topic(PARTITIONS), cluster.admin()
    wanted = [TopicPartition(topic, partition, 5 + partition) for partition in range(PARTITIONS)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(20)
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    assert {(each.topic, each.partition, each.offset) for each in listed.topic_partitions} == {
        (topic, partition, 5 + partition) for partition in range(PARTITIONS)
    }
    listed = [OffsetDeleteRequestPartition(partition_index=index) for index in (1, 99)]
    asked = OffsetDeleteRequestTopic(name=topic, partitions=listed)
    with connected_to_coordinator(cluster, group) as connection:
        response = connection.call(OffsetDeleteRequest(group_id=group, topics=[asked]))
    (answer,) = response.topics
    codes = {partition.partition_index: partition.error_code for partition in answer.partitions}
    assert (response.error_code, codes) == (0, {1: 0, 99: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert positions(cluster.bootstrap, group, topic) == [5, -1001, 7, 8]


def test_offsets_go_with_their_topic(cluster: Cluster, group: str) -> None:
    topic, admin = cluster.topic(1), cluster.admin()
    wanted = [TopicPartition(topic, 0, 5)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(20)
    admin.delete_topics([topic])[topic].result(20)

    def listed() -> list[TopicPartition]:
        request = [ConsumerGroupTopicPartitions(group)]
        found: list[TopicPartition] = (
            admin.list_consumer_group_offsets(request)[group].result(20).topic_partitions
        )
        return found

    wait_until(lambda: not listed(), "the offsets to be gone")


# -- single messages --------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected_to_coordinator(cluster: Cluster, group: str) -> Iterator[WireClient]:
    """A connection, once the group has a coordinator."""
    with cluster.connect() as connection:

        def is_known() -> bool:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            (found,) = connection.call(request).coordinators
            if found.error_code:
                return False
            heartbeat = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
            return connection.call(heartbeat).error_code not in (14, 15, 16)

        wait_until(is_known, "a coordinator")
        yield connection


@pytest.mark.parametrize("version", range(7))
def test_every_version_of_find_coordinator(cluster: Cluster, group: str, version: int) -> None:
    with connected_to_coordinator(cluster, group) as connection:
        request = FindCoordinatorRequest(key=group, coordinator_keys=[group, "another"])
        response = connection.call(request, version=version)
    found = response.coordinators if version >= 4 else [response]
    assert [each.error_code for each in found] == [0] * (2 if version >= 4 else 1)
    assert {f"{each.host}:{each.port}" for each in found} == {cluster.bootstrap}


def test_the_topic_of_the_offsets_is_kafkas(cluster: Cluster, group: str) -> None:
    with connected_to_coordinator(cluster, group):
        described = cluster.admin().list_topics("__consumer_offsets", timeout=20).topics["__consumer_offsets"]
    assert len(described.partitions) == 50
    resource = ConfigResource(ConfigResource.Type.TOPIC, "__consumer_offsets")
    configs = cluster.admin().describe_configs([resource])[resource].result(20)
    set_here = {name: entry.value for name, entry in configs.items() if not entry.is_default}
    expected = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
    assert expected.items() <= set_here.items()


def joining(group: str, member_id: str = "", **changes: object) -> JoinGroupRequest:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def test_errors_of_joining(cluster: Cluster, group: str) -> None:
    with connected_to_coordinator(cluster, group) as connection:
        assert connection.call(joining("")).error_code == ErrorCode.INVALID_GROUP_ID
        short = connection.call(joining(group, session_timeout_ms=10))
        assert short.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        unknown = connection.call(joining(group, "somebody"))
        assert (unknown.error_code, unknown.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "somebody")
        first = connection.call(joining(group))
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED and first.member_id
        joined = connection.call(joining(group, first.member_id))
        assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, first.member_id)
        other = connection.call(joining(group, protocol_type="connect"))
        assert other.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_old_versions_of_joining(cluster: Cluster, group: str) -> None:
    with connected_to_coordinator(cluster, group) as connection:
        joined = connection.call(joining(group), version=0)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        request = SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        )
        synced = connection.call(request, version=0)
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        late = HeartbeatRequest(group_id=group, generation_id=0, member_id=joined.member_id)
        assert connection.call(late, version=0).error_code == ErrorCode.ILLEGAL_GENERATION
        left = connection.call(LeaveGroupRequest(group_id=group, member_id=joined.member_id), version=0)
        assert left.error_code == 0


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_of_offset_commit_and_fetch(cluster: Cluster, group: str, version: int) -> None:
    topic = cluster.topic(1)
    with connected_to_coordinator(cluster, group) as connection:
        (described,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
        topic_id = described.topic_id
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=3, committed_metadata="note"
        )
        commit = OffsetCommitRequest(
            group_id=group,
            topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[partition])],
        )
        (answered,) = connection.call(commit, version=version).topics
        assert [each.error_code for each in answered.partitions] == [0]
        assert (answered.topic_id if version >= 10 else answered.name) == (
            topic_id if version >= 10 else topic
        )
        fetched = connection.call(_fetch(group, topic, topic_id, version), version=version)
        source = fetched.groups[0] if version >= 8 else fetched
        assert source.error_code == 0
        (found,) = source.topics[0].partitions
        assert (found.committed_offset, found.metadata, found.error_code) == (3, "note", 0)


def _fetch(group: str, topic: str, topic_id: bytes, version: int) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(
            group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        )
    topics = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])


def test_offsets_of_topics_that_do_not_exist(cluster: Cluster, group: str) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
    by_name = OffsetCommitRequestTopic(name=cluster.topic_name(), partitions=[partition])
    by_id = OffsetCommitRequestTopic(topic_id=uuid.uuid4().bytes, partitions=[partition])
    with connected_to_coordinator(cluster, group) as connection:
        request = OffsetCommitRequest(group_id=group, topics=[by_name])
        (answered,) = connection.call(request, version=9).topics
        assert answered.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = OffsetCommitRequest(group_id=group, topics=[by_id])
        (answered,) = connection.call(request, version=10).topics
        assert answered.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert answered.topic_id == by_id.topic_id
        fetch = _fetch(group, "", by_id.topic_id, 10)
        (found,) = connection.call(fetch, version=10).groups[0].topics[0].partitions
        assert (found.committed_offset, found.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", [9, 10])
def test_offsets_of_partitions_that_do_not_exist(cluster: Cluster, group: str, version: int) -> None:
    """Only the others are kept: nobody could ever describe or reset such a group otherwise."""
    topic = cluster.topic(2)
    with connected_to_coordinator(cluster, group) as connection:
        (described,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=3, committed_metadata="")
            for index in (77, 1)
        ]
        wanted = OffsetCommitRequestTopic(name=topic, topic_id=described.topic_id, partitions=partitions)
        (answered,) = connection.call(
            OffsetCommitRequest(group_id=group, topics=[wanted]), version=version
        ).topics
        codes = {each.partition_index: each.error_code for each in answered.partitions}
        assert codes == {77: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1: 0}
    assert committed_offsets(cluster.bootstrap, group, topic, 2) == {1: 3}


def test_describe_of_a_group_that_does_not_exist(cluster: Cluster, group: str) -> None:
    with connected_to_coordinator(cluster, group) as connection:
        (old,) = connection.call(DescribeGroupsRequest(groups=[group]), version=5).groups
        assert (old.error_code, old.group_state) == (0, "Dead")
        (new,) = connection.call(DescribeGroupsRequest(groups=[group]), version=6).groups
        assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_nobody_else_writes_to_the_topic_of_the_offsets(cluster: Cluster, group: str) -> None:
    with connected_to_coordinator(cluster, group) as connection:
        response = connection.call(produce_request("__consumer_offsets", batch_of(b"damage")), version=9)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
