"""The newer group protocol in corners that no client goes to, on our broker and on Kafka: the same answers.

`test_consumer_group_records.py` lives an ordinary life and compares the records too. What differs on purpose is in
decisions 0011: Kafka matches expressions some time after the heartbeat, so members here settle before one looks.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from group_life import SETTINGS, GroupLife, live_all
from kafka_peer import KafkaPeer
from tidemill_peer import TidemillPeer
from waiting import wait_until

from tidemill.wire.messages import offset_commit, offset_fetch
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

BY_NAME, BY_ID = 9, 10
"""The last version of OffsetCommit and OffsetFetch that names topics, and the first with their ids."""
NO_TOPICS = b"\0\1\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"
"""A subscription of the classic protocol."""
PATIENCE_MS = 1500


class ConsumerLife(GroupLife):
    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(bootstrap, name)
        self.held: dict[str, dict[str, list[int]]] = {}
        """By member, what it was last told to have."""

    def beat(self, member: str, *arguments: Any, **fields: Any) -> Any:
        answer = self.consumer_beat("readers", member, *arguments, **fields)
        if answer.assignment is not None:
            told = answer.assignment.topic_partitions
            self.held[member] = {self.names[topic.topic_id]: topic.partitions for topic in told}
        return answer

    def look(self, *groups: str, version: int | None = None, operations: bool = False) -> None:
        names = [self.full(group) for group in groups or ("readers",)]
        request = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=operations)
        answer = self.connection.call(request, version)
        for group in answer.groups:
            group.members.sort(key=lambda member: member.member_id)
            for member in group.members:
                for assignment in (member.assignment, member.target_assignment):
                    assignment.topic_partitions.sort(key=lambda topic: topic.topic_name)
        self.note(f"look {groups}", answer)

    def settle(self, epochs: dict[str, int], state: str = "Stable") -> None:
        """All beat and do as they are told until the group has this state; `epochs` are those of the members."""
        written = len(self.answers)

        def is_settled() -> bool:
            for member, epoch in epochs.items():
                epochs[member] = self.beat(member, epoch, None, self.held[member]).member_epoch
            request = ConsumerGroupDescribeRequest(group_ids=[self.full("readers")])
            (group,) = self.connection.call(request).groups
            return bool(group.group_state == state)

        wait_until(is_settled, f"that the group is {state}")
        del self.answers[written:]
        self.look()

    def commit(
        self,
        member: str,
        epoch: int,
        topic: str = "jobs",
        partition: int = 0,
        version: int = BY_NAME,
        **fields: Any,
    ) -> None:
        listed = offset_commit.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=3, committed_leader_epoch=0, committed_metadata=""
        )
        request = offset_commit.OffsetCommitRequest(
            group_id=self.full("readers"),
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=self.full(topic), topic_id=self.id_of(topic), partitions=[listed]
                )
            ],
            **fields,
        )
        self.call(f"commit {member} {epoch} {topic} {partition} {version} {fields}", request, version)

    def committed(
        self,
        member: str | None,
        epoch: int,
        version: int = BY_NAME,
        group: str = "readers",
        topic: str = "jobs",
    ) -> None:
        wanted = offset_fetch.OffsetFetchRequestTopics(
            name=self.full(topic), topic_id=self.id_of(topic), partition_indexes=[0, 1]
        )
        asked = offset_fetch.OffsetFetchRequestGroup(
            group_id=self.full(group), member_id=member, member_epoch=epoch, topics=[wanted]
        )
        request = offset_fetch.OffsetFetchRequest(groups=[asked])
        self.call(f"committed {member} {epoch} {version} {group} {topic}", request, version)


def identities(life: ConsumerLife) -> None:
    life.topic("jobs", 4)
    for fields in (
        {"group_id": ""}, {"member_id": ""}, {"instance_id": ""}, {"rack_id": ""}, {"member_epoch": -3},
        {"member_epoch": -2}, {"member_epoch": -2, "instance_id": "i"}, {"member_epoch": -1}, {"member_epoch": 5},
        {"topic_partitions": None}, {"subscribed_topic_names": None}, {"rebalance_timeout_ms": -1},
        {"server_assignor": "sticky"}, {"server_assignor": ""}, {"subscribed_topic_regex": "["},
    ):  # fmt: skip
        life.beat("ann", 0, ["jobs"], **fields)
    life.beat("ann", 0, ["jobs"], {"jobs": [0]})
    for epoch in (2, -1, -2):
        life.beat("", epoch, version=0)
    life.beat("ann", 0, ["jobs"], version=0)
    life.beat("ann", 1, version=0)
    life.beat("ann", 2, version=0)
    life.beat(50 * "b", 0, ["jobs"], rebalance_timeout_ms=0)
    life.beat("cas", 0, ["jobs"], rebalance_timeout_ms=-5)
    life.beat("dora", 0, ["jobs"])
    life.beat("dora", 3)
    life.beat("dora", -1)
    life.beat("dora", -2, instance_id="i")
    life.look("readers", "nobody", "", operations=True)
    life.look(version=0)


def subscriptions(life: ConsumerLife) -> None:
    for topic, partitions in (("jobs", 4), ("mail", 2), ("news", 1)):
        life.topic(topic, partitions)
    life.beat("ann", 0, ["news"])
    epochs = {"ann": 2}
    life.settle(epochs)
    for changes in (
        {"topics": ["jobs", "mail"]}, {"topics": ["jobs", "nowhere"]}, {"topics": []}, {"topics": ["news"]},
        {"server_assignor": "range"}, {"server_assignor": "uniform", "rack_id": "rack"},
        {"topics": ["news"], "rebalance_timeout_ms": 5000},
    ):  # fmt: skip
        epochs["ann"] = life.beat("ann", epochs["ann"], **changes).member_epoch
        life.settle(epochs)
    life.beat("ann", epochs["ann"], server_assignor="sticky")
    life.beat("ann", epochs["ann"], subscribed_topic_regex="(")
    life.beat("bob", 0, ["jobs"])
    epochs["bob"] = epochs["ann"] + 1
    life.settle(epochs)
    life.beat("ann", -1)
    life.look()
    life.settle({"bob": epochs["bob"]})
    life.list(types_filter=["consumer"])


def an_expression(life: ConsumerLife) -> None:
    life.topic("jobs", 2)
    life.topic("jobs-late", 1)
    life.topic("mail", 2)
    life.consumer_beat("readers", "ann", 0, subscribed_topic_regex=life.full("jobs") + ".*")
    life.answers.pop()
    epochs = {"ann": 0}

    def is_assigned() -> bool:
        answer = life.beat("ann", epochs["ann"], subscribed_topic_regex=life.full("jobs") + ".*")
        life.answers.pop()
        epochs["ann"] = answer.member_epoch
        return bool(answer.assignment and answer.assignment.topic_partitions)

    wait_until(is_assigned, "that the expression is matched")
    life.settle(epochs)
    life.beat("bob", 0, ["mail"])
    epochs["bob"] = epochs["ann"] + 1
    life.settle(epochs)
    life.beat("ann", epochs["ann"], ["mail"], subscribed_topic_regex="")
    life.settle(epochs)


def revocation(life: ConsumerLife) -> None:
    """A member that does not give up what it should is thrown out, and what it had goes to the other."""
    life.topic("jobs", 4)
    life.beat("ann", 0, ["jobs"], rebalance_timeout_ms=PATIENCE_MS)
    life.beat("ann", 2, None, {"jobs": [0, 1, 2, 3]})
    life.beat("bob", 0, ["jobs"])
    life.beat("ann", 2)
    life.look()
    for member, epoch in (
        ("ann", 2),
        ("ann", 3),
        ("ann", 1),
        ("bob", 3),
        ("bob", 2),
        ("nobody", 3),
        ("", -1),
    ):
        life.commit(member, epoch)
        life.committed(member, epoch)
    life.commit("ann", 2, partition=9)
    life.commit("ann", 2, topic="nowhere")
    for version in (8, BY_ID):
        life.commit("ann", 2, version=version)
        life.committed("ann", 2, version)
    life.commit("ann", 2, topic="nowhere", version=BY_ID)
    life.committed("ann", 2, BY_ID, topic="nowhere")
    life.commit("bob", 3, group_instance_id="i")
    life.committed("ann", -1)
    for member, epoch in (("ann", 2), ("ann", -1), (None, -1), ("", 0)):
        life.committed(member, epoch, group="nobody")
    time.sleep(PATIENCE_MS / 1000 + 0.5)
    life.look()
    life.beat("ann", 2)
    life.commit("ann", 2)
    life.beat("bob", 3)
    life.beat("ann", 0, ["jobs"])
    life.look()
    life.beat("ann", -1)
    life.settle({"bob": 4})
    life.beat("bob", -1)
    life.commit("", -1)
    life.commit("bob", 6)
    life.delete("readers")
    life.committed("", -1)


def static_members(life: ConsumerLife) -> None:
    life.topic("jobs", 4)
    life.beat("ann", 0, ["jobs"], instance_id="i")
    life.beat("bob", 0, ["jobs"], instance_id="j")
    life.beat("ann", 2)
    life.beat("ann", 2, None, {"jobs": [0, 1]})
    for instance in ("j", "nobody", "i"):
        life.beat("ann", 3, instance_id=instance)
    life.beat("bob", 3, instance_id="j")
    life.look()
    life.beat("ann", -2, instance_id="i")
    life.look()
    for epoch in (3, -2, -1):
        life.beat("ann", epoch, instance_id="i")
    life.look()
    life.beat("bob", -2, instance_id="j")
    for epoch in (3, -2):
        life.commit("bob", epoch, group_instance_id="j")
    life.beat("cas", 0, ["jobs"], instance_id="j")
    life.commit("bob", 3, group_instance_id="j")
    life.commit("cas", 4)
    life.look()
    for epoch in (4, -1, -2):
        life.beat("bob", epoch, instance_id="j")
    life.beat("bob", -1)
    life.beat("cas", -2, instance_id="nobody")
    life.beat("cas", -2, instance_id="j")
    life.delete("readers")
    life.beat("cas", -1, instance_id="j")
    life.look()
    life.delete("readers")


def other_kinds(life: ConsumerLife) -> None:
    """A group of the classic protocol whose member is not there yet, then is."""
    life.topic("jobs")
    request = JoinGroupRequest(
        group_id=life.full("readers"),
        session_timeout_ms=30_000,
        rebalance_timeout_ms=3000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=NO_TOPICS)],
    )
    request.member_id = life.connection.call(request).member_id
    life.names[request.member_id] = "ann"
    for _ in range(2):
        life.look()
        for epoch in (3, -1):
            life.beat("bob", epoch)
        life.beat("bob", -2, instance_id="i")
        life.call("join", request)
    life.list()


LIVES = (identities, subscriptions, an_expression, revocation, static_members, other_kinds)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, ConsumerLife]]:
    directory = tmp_path_factory.mktemp("consumer-lives")
    brokers = (
        TidemillPeer(data_directory=directory / "ours", settings=SETTINGS),
        KafkaPeer(data_directory=directory / "theirs", settings=SETTINGS),
    )
    return [live_all(broker, ConsumerLife, LIVES) for broker in brokers]


@pytest.mark.parametrize("name", [live.__name__ for live in LIVES])
def test_the_answers_are_kafkas(both: list[dict[str, ConsumerLife]], name: str) -> None:
    ours, theirs = (lives[name].answers for lives in both)
    assert len(theirs) > 3
    assert ours == theirs
