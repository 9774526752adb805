"""Consumer groups of the newer protocol (KIP-848) with confluent-kafka, the client of the three that speaks it."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from group_members import NEWER_PROTOCOL, Member, member, mortal_member
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest

PARTITIONS = 4
EVERYWHERE = set(range(PARTITIONS))
SESSION_TIMEOUT_MS = 4000
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.initial.rebalance.delay.ms": "0",
}
OwnBroker = Callable[..., SubprocessBroker]


@pytest.fixture(scope="module")
def broker() -> Iterator[SubprocessBroker]:
    """Members hear of changes within a fifth of a second."""
    with SubprocessBroker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def prompt(broker: SubprocessBroker) -> Cluster:
    return Cluster(broker.bootstrap)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def fill(bootstrap: str, topic: str, count: int, start: int = 0) -> None:
    for partition in range(PARTITIONS):
        messages = [Sent(b"%d" % number) for number in range(start, start + count)]
        CONFLUENT.produce(bootstrap, topic, messages, partition=partition)


def share_evenly(*members: Member) -> bool:
    held = [partition for each in members for partition in each.assigned]
    return sorted(held) == sorted(EVERYWHERE) and all(each.assigned for each in members)


def described(bootstrap: str, group: str) -> DescribedGroup:
    with WireClient(bootstrap) as connection:
        (found,) = connection.call(ConsumerGroupDescribeRequest(group_ids=[group])).groups
    answer: DescribedGroup = found
    return answer


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return [found.offset for found in consumer.committed(asked, 20)]
    finally:
        consumer.close()


# -- members come and go ----------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_take_over_from_who_leaves(prompt: Cluster, group: str, assignor: str) -> None:
    topic = prompt.topic(PARTITIONS)
    with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic, strategy=assignor) as first:
        wait_until(lambda: first.assigned == EVERYWHERE, "the first assignment")
        with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic, strategy=assignor) as second:
            wait_until(lambda: share_evenly(first, second), "two members that share")
            assert described(prompt.bootstrap, group).assignor_name == assignor
        wait_until(lambda: first.assigned == EVERYWHERE, "the first to have all again")


def test_nothing_is_skipped_while_members_come_and_go(prompt: Cluster, group: str) -> None:
    topic = prompt.topic(PARTITIONS)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(90)}
    members: list[Member] = []

    def read() -> set[tuple[int, int]]:
        return {(partition, offset) for each in members for partition, offset, _ in list(each.received)}

    with contextlib.ExitStack() as stack:
        for number in range(3):
            members.append(stack.enter_context(member(NEWER_PROTOCOL, prompt.bootstrap, group, topic)))
            fill(prompt.bootstrap, topic, 30, start=30 * number)
            if number == 1:
                members[0].stop()
        wait_until(lambda: read() == everything, "every message", 30)
    assert committed(prompt.bootstrap, group, topic) == [90] * PARTITIONS


def test_killed_and_stalled_members_are_replaced(prompt: Cluster, group: str) -> None:
    topic = prompt.topic(PARTITIONS)
    with (
        mortal_member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as killed,
        mortal_member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as stalled,
        member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as survivor,
    ):
        wait_until(lambda: 1 <= len(survivor.assigned) <= 2, "three members that share")
        killed_at = time.monotonic()
        killed.kill()
        stalled.send_signal(signal.SIGSTOP)
        wait_until(lambda: survivor.assigned == EVERYWHERE, "the survivor to take over", 30)
        assert time.monotonic() - killed_at > SESSION_TIMEOUT_MS / 1000 - 1
        stalled.send_signal(signal.SIGCONT)
        wait_until(lambda: len(survivor.assigned) == 2, "the stalled member to be back", 30)


def test_a_static_member_comes_back_without_a_rebalance(prompt: Cluster, group: str) -> None:
    topic = prompt.topic(PARTITIONS)
    with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic, instance="stays") as stays:
        wait_until(lambda: stays.assigned == EVERYWHERE, "the first assignment")
        with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic, instance="restarts") as before:
            wait_until(lambda: share_evenly(stays, before), "two members that share")
            held, epoch = before.assigned, described(prompt.bootstrap, group).group_epoch
        with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic, instance="restarts") as after:
            wait_until(lambda: after.assigned, "the restarted member to be back")
            assert after.assigned == held
            assert described(prompt.bootstrap, group).group_epoch == epoch


# -- topics -----------------------------------------------------------------------------------------------


def test_new_partitions_are_read(prompt: Cluster, group: str) -> None:
    topic = prompt.topic(2)
    with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as only:
        wait_until(lambda: only.assigned == {0, 1}, "the first assignment")
        grown = confluent_kafka.admin.NewPartitions(topic, PARTITIONS)
        prompt.admin().create_partitions([grown])[topic].result(20)
        wait_until(lambda: only.assigned == EVERYWHERE, "the new partitions", 30)


def test_a_subscription_by_expression_follows_the_topics(prompt: Cluster, group: str) -> None:
    family = f"family-{uuid.uuid4().hex[:6]}"
    names = [f"{family}-{number}" for number in range(3)]
    new = [confluent_kafka.admin.NewTopic(name, 1) for name in names]
    for future in prompt.admin().create_topics(new[:2]).values():
        future.result(20)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": prompt.bootstrap, "group.id": group, "group.protocol": "consumer"}
    )

    def assigned(count: int) -> bool:
        consumer.poll(0.1)
        return {each.topic for each in consumer.assignment()} == set(names[:count])

    try:
        consumer.subscribe([f"^{family}-[0-9]+"])
        wait_until(lambda: assigned(2), "two topics")
        prompt.admin().create_topics(new[2:])[names[2]].result(20)
        wait_until(lambda: assigned(3), "the third topic", 30)
        (found,) = described(prompt.bootstrap, group).members
        assert found.subscribed_topic_regex and not found.subscribed_topic_names
    finally:
        consumer.close()


# -- crashes of the broker --------------------------------------------------------------------------------


def test_groups_and_offsets_survive_the_broker(own_broker: OwnBroker, group: str) -> None:
    broker = own_broker(settings=SETTINGS)
    topic = broker.create_topic("survivors", partitions=PARTITIONS)
    fill(broker.bootstrap, topic, 20)
    with member(NEWER_PROTOCOL, broker.bootstrap, group, topic) as running:
        wait_until(lambda: len(running.received) == 80, "all messages")
        wait_until(lambda: committed(broker.bootstrap, group, topic) == [20] * PARTITIONS, "all offsets")
        epoch = described(broker.bootstrap, group).group_epoch
        broker.kill()
        broker.restart()
        assert committed(broker.bootstrap, group, topic) == [20] * PARTITIONS
        fill(broker.bootstrap, topic, 5, start=20)
        wait_until(lambda: len(running.received) >= 100, "the member to go on", 30)
        assert described(broker.bootstrap, group).group_epoch == epoch, "the member is still the same"
    assert sorted(set(running.received)) == sorted(running.received), "nothing was read twice"


# -- from one protocol to the other, and back -------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_reads(prompt: Cluster, group: str, strategy: str) -> None:
    topic = prompt.topic(PARTITIONS)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(60)}
    with member("confluent-kafka", prompt.bootstrap, group, topic, strategy=strategy) as old:
        wait_until(lambda: old.assigned == EVERYWHERE, "the classic group")
        fill(prompt.bootstrap, topic, 20)
        with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as new:
            wait_until(lambda: share_evenly(old, new), "members of both protocols that share", 30)
            fill(prompt.bootstrap, topic, 20, start=20)
            kinds = {each.member_type for each in described(prompt.bootstrap, group).members}
            assert kinds == {0, 1} and _listed(prompt, group)[0] is ConsumerGroupType.CONSUMER
        wait_until(lambda: old.assigned == EVERYWHERE, "the classic group again", 30)
        assert _listed(prompt, group)[0] is ConsumerGroupType.CLASSIC
        fill(prompt.bootstrap, topic, 20, start=40)

        def read() -> set[tuple[int, int]]:
            return {(p, offset) for each in (old, new) for p, offset, _ in list(each.received)}

        wait_until(lambda: read() == everything, "every message", 30)
    assert committed(prompt.bootstrap, group, topic) == [60] * PARTITIONS


def test_a_classic_group_is_taken_over_completely(prompt: Cluster, group: str) -> None:
    topic = prompt.topic(PARTITIONS)
    fill(prompt.bootstrap, topic, 10)
    with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as new:
        with member("confluent-kafka", prompt.bootstrap, group, topic) as old:
            wait_until(lambda: share_evenly(old, new), "members of both protocols that share", 30)
        wait_until(lambda: new.assigned == EVERYWHERE, "the newer protocol alone", 30)
        assert _listed(prompt, group) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)


def _listed(cluster: Cluster, group: str) -> tuple[ConsumerGroupType, ConsumerGroupState]:
    listed = cluster.admin().list_consumer_groups().result(20)
    (found,) = [each for each in listed.valid if each.group_id == group]
    return found.type, found.state


# -- administration ---------------------------------------------------------------------------------------


def test_list_describe_and_delete(prompt: Cluster, group: str) -> None:
    topic, admin = prompt.topic(PARTITIONS), prompt.admin()
    with member(NEWER_PROTOCOL, prompt.bootstrap, group, topic) as only:
        wait_until(lambda: only.assigned == EVERYWHERE, "the assignment")
        assert _listed(prompt, group) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
        found = admin.describe_consumer_groups([group])[group].result(20)
        assert found.type is ConsumerGroupType.CONSUMER and found.partition_assignor == "range"
        (one,) = found.members
        assert {each.partition for each in one.assignment.topic_partitions} == EVERYWHERE
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(20)
    assert _listed(prompt, group) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.EMPTY)
    admin.delete_consumer_groups([group])[group].result(20)
    assert described(prompt.bootstrap, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_features_are_finalised(prompt: Cluster) -> None:
    with prompt.connect() as connection:
        answer = connection.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert (levels["group.version"], levels["transaction.version"], levels["share.version"]) == (1, 2, 1)


# -- single messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_every_version_of_the_heartbeat(prompt: Cluster, group: str, version: int) -> None:
    topic = prompt.topic(1)
    with prompt.connect() as connection:
        connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))

        def beat(**changes: Any) -> Any:
            request = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id="me" if version else "",
                rebalance_timeout_ms=5000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            for name, value in changes.items():
                setattr(request, name, value)
            return connection.call(request, version=version)

        joined = beat()
        assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 2, 200)
        assert joined.assignment.topic_partitions[0].partitions == [0]
        assert beat(member_id=joined.member_id, member_epoch=9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert beat(server_assignor="none").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert beat(group_id="").error_code == ErrorCode.INVALID_REQUEST
        if version:
            refused = beat(member_id="other", subscribed_topic_regex="[")
            assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert beat(member_id=joined.member_id, member_epoch=-1).member_epoch == -1
