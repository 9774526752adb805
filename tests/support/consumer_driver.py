"""Members of the newer group protocol with virtual time: a `GroupDriver` that also sends their heartbeats.

    driver = ConsumerDriver({"orders": 4})          # topics and their partition counts
    one = driver.member("m-1", topics=["orders"])   # a member that remembers its epoch and what it owns
    one.beat()                                      # joins; later beats stay, and acknowledge what was revoked
    one.owned                                       # {("orders", 0), ...}

A member does what a client does: it gives up what is not in its assignment at once, takes what is new, and says what it
owns with its next heartbeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from group_driver import NOT_WRITTEN, GroupDriver

from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.contract import GroupSettings, RequestContext
from tidemill.coordination.group.modern import Topic
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

VERSION_1 = RequestContext(client_id="client", client_host="/127.0.0.1", api_version=1)
REBALANCE_TIMEOUT_MS = 30_000


def topic_id(name: str, incarnation: int = 0) -> bytes:
    return hashlib.blake2b(f"{name} {incarnation}".encode(), digest_size=16).digest()


class ConsumerDriver(GroupDriver):
    def __init__(
        self, counts: Mapping[str, int], settings: GroupSettings | None = None, seed: int = 0
    ) -> None:
        super().__init__(settings, seed)
        for name, count in counts.items():
            self.set_topic(name, count)

    def set_topic(self, name: str, count: int, incarnation: int = 0) -> None:
        self.topics.put(Topic(topic_id(name, incarnation), name, count))
        self.run(self.shard.on_topics_changed({name}, self.now_ms))

    def delete_topic(self, name: str) -> None:
        self.topics.remove(name)
        self.run(self.shard.on_topics_deleted([name], self.now_ms))

    def consumer(self, group_id: str = "g") -> ConsumerGroup:
        group = self.shard.group(group_id)
        assert isinstance(group, ConsumerGroup), group
        return group

    def member(self, member_id: str, **options: Any) -> DrivenMember:
        return DrivenMember(self, member_id, **options)

    def heartbeat_raw(self, context: RequestContext = VERSION_1, **fields: Any) -> Any:
        """Whatever the fields say; the reply."""
        request = ConsumerGroupHeartbeatRequest(**{"group_id": "g", **fields})
        name = self.token()
        self.run(self.shard.consumer_group_heartbeat(request, context, name, self.now_ms))
        return self.replies[name]

    def describe(self, group_id: str = "g") -> Any:
        name = self.token()
        self.run(self.shard.describe_consumer_groups([group_id], name, self.now_ms))
        return self.replies[name][0]


class DrivenMember:
    def __init__(
        self,
        driver: ConsumerDriver,
        member_id: str,
        *,
        topics: Iterable[str] | None = ("orders",),
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        group_id: str = "g",
    ) -> None:
        self.driver = driver
        self.member_id = member_id
        self.topics = None if topics is None else list(topics)
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.group_id = group_id
        self.epoch = 0
        self.assigned: set[tuple[bytes, int]] = set()

    @property
    def owned(self) -> set[tuple[str, int]]:
        known = {self._name(topic): topic for topic, _ in self.assigned}
        names = {topic: name for name, topic in known.items()}
        return {(names[topic], index) for topic, index in self.assigned}

    def _name(self, wanted: bytes) -> str:
        found = self.driver.topics.by_id(wanted)
        return wanted.hex() if found is None else found.name

    @property
    def partitions(self) -> list[int]:
        """Of the only topic."""
        return sorted(index for _, index in self.assigned)

    def request(self, *, complete: bool = True) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
        }
        if complete:
            fields.update(
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                subscribed_topic_names=self.topics,
                subscribed_topic_regex=self.regex,
                server_assignor=self.assignor,
                topic_partitions=self._owned_message(),
            )
        return fields

    def _owned_message(self) -> list[TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic, index in sorted(self.assigned):
            by_topic.setdefault(topic, []).append(index)
        return [TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in by_topic.items()]

    def beat(self, *, complete: bool = True) -> Any:
        """One heartbeat; what it brings is taken over."""
        reply = self.driver.heartbeat_raw(**self.request(complete=complete))
        self.take(reply)
        return reply

    def take(self, reply: Any) -> None:
        if reply == NOT_WRITTEN:
            return
        if reply.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.assigned = 0, set()
        if reply.error_code:
            return
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.assigned = {
                (entry.topic_id, index)
                for entry in reply.assignment.topic_partitions
                for index in entry.partitions
            }

    def leave(self, *, for_good: bool = True) -> Any:
        epoch = -1 if for_good else -2
        reply = self.driver.heartbeat_raw(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        if reply != NOT_WRITTEN and not reply.error_code:
            self.epoch, self.assigned = 0, set()
        return reply


def settle(*members: DrivenMember, rounds: int = 4) -> None:
    """Heartbeats until nothing moves any more."""
    for _ in range(rounds):
        for member in members:
            member.beat()
