"""What several members of groups say to a broker and hear of it, written down so that two brokers can be compared.

    talk = Talk(broker.bootstrap)
    first = talk.join("ann", "orders")                 # a connection of her own; the answer, when it comes at once
    talk.say("ben", join_request("orders"), 3)         # and an answer that must wait for others:
    talk.waits("ben")
    talk.join("ann", "orders", first.member_id)
    talk.hears("ben")
    talk.lines                                         # one for each request and each answer, ids replaced by numbers

A line is the request or the answer as Python prints it, without what is as declared by default.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections.abc import Mapping
from typing import Any, Protocol, Self

from raw import topic_id
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.testing.apis import APIS
from tidemill.testing.wire_client import ConnectionLost
from tidemill.wire.messages.delete_groups import DeleteGroupsResponse
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.list_groups import ListGroupsResponse
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import OffsetDeleteResponse
from tidemill.wire.messages.offset_fetch import OffsetFetchResponse
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.schema import Message

COORDINATOR_IS_BUSY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
MADE_BY_CHANCE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHORT_ID = re.compile(r"[A-Za-z0-9_-]{22}")
"""Kafka's, for members of the classic protocol in a consumer group."""
SETTLES_SECONDS = 0.1
"""A request that has no answer by then waits for something."""
TIMEOUT_MS = 30_000
NEWEST_WITH_NAMES = 9
"""Of OffsetCommit; later ones carry topic ids."""


class Talk:
    """What a broker has made up, such as ids, is written by numbers, in the order in which it was heard of."""

    def __init__(self, bootstrap: str) -> None:
        self.lines: list[str] = []
        self._bootstrap = bootstrap
        self._connections: dict[str, WireClient] = {}
        self._names: dict[str, str] = {}
        self._topic_ids: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Who speaks next has a new connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- plain requests ---------------------------------------------------------------------------------

    def connection(self, who: str) -> WireClient:
        if who not in self._connections:
            self._connections[who] = WireClient(self._bootstrap, client_id=who.split()[0])
        return self._connections[who]

    def say(self, who: str, request: Message, version: int | None = None) -> None:
        version = APIS[type(request)].max_version if version is None else version
        self._note(f"{who}, v{version}: {request}")
        self.connection(who).send(request, version)

    def hears(self, who: str) -> Any:
        try:
            answer = self.connection(who).receive()
        except ConnectionLost:
            self._connections.pop(who).close()
            answer = None
        if isinstance(answer, JoinGroupResponse) and SHORT_ID.fullmatch(answer.member_id):
            self._names.setdefault(answer.member_id, f"id-{len(self._names)}")
        self._note(f"{who} hears {self._comparable(answer)}")
        return answer

    def waits(self, who: str) -> None:
        """No answer comes to what was said last."""
        readable, _, _ = select.select([self.connection(who).socket], [], [], SETTLES_SECONDS)
        assert not readable, f"{who} is answered: {self.hears(who)}"

    def ask(self, who: str, request: Message, version: int | None = None) -> Any:
        self.say(who, request, version)
        return self.hears(who)

    def title(self, text: str) -> None:
        self._note(f"-- {text}")

    def plain(self, text: str) -> str:
        for chance in MADE_BY_CHANCE.findall(text):
            self._names.setdefault(chance, f"id-{len(self._names)}")
        for chance, name in self._names.items():
            text = text.replace(chance, name)
        return text

    def _note(self, text: str) -> None:
        self.lines.append(self.plain(text))

    def topic_id(self, name: str) -> bytes:
        """A topic that nobody has named yet does not exist, and has an id all the same."""
        return self._topic_ids.get(name) or hashlib.md5(name.encode()).digest()

    def prepare(self, *topics: str) -> None:
        """Wait for the coordinator, and know these topics; the transcript has nothing of it."""
        connection = self.connection("nobody")

        def is_coordinated() -> bool:
            connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
            request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="nobody")])
            return connection.call(request).error_code not in COORDINATOR_IS_BUSY

        wait_until(is_coordinated, "a coordinator", 30)
        for name in topics:
            self._topic_ids[name] = found = topic_id(connection, name)
            self._names[repr(found)] = f"<{name}>"
        self._names[f"port={self._bootstrap.rsplit(':')[-1]}"] = "port=..."

    def _comparable(self, answer: Any) -> Any:
        """Members and offsets come in the order of a hash table from Kafka, and as they came to the group from us.

        What a coordinator says about itself in words is its own affair.
        """
        if isinstance(answer, FindCoordinatorResponse):
            for found in [answer, *answer.coordinators]:
                found.error_message = None
        elif isinstance(answer, JoinGroupResponse):
            answer.members.sort(key=lambda member: member.member_id)
        elif isinstance(answer, ListGroupsResponse):
            answer.groups.sort(key=lambda group: group.group_id)
        elif isinstance(answer, DeleteGroupsResponse):
            answer.results.sort(key=lambda result: result.group_id)
        elif isinstance(answer, DescribeGroupsResponse):
            answer.groups.sort(key=lambda group: group.group_id)
            for group in answer.groups:
                group.members.sort(key=lambda member: member.member_id)
        elif isinstance(answer, OffsetFetchResponse):
            for answered in [answer, *answer.groups]:
                for topic in answered.topics:
                    topic.partitions.sort(key=lambda partition: partition.partition_index)
                answered.topics.sort(key=lambda topic: self.plain(repr(topic)))
        elif isinstance(answer, OffsetDeleteResponse):
            answer.topics.sort(key=lambda topic: topic.name)
        return answer

    # -- members ----------------------------------------------------------------------------------------

    def join(self, who: str, group: str, member_id: str = "", version: int = 9, **changes: Any) -> Any:
        return self.ask(who, join_request(group, member_id, **changes), version)

    def enter(self, who: str, group: str, version: int = 9, **changes: Any) -> str:
        """Ask for a member id, and say the second join with it, which may wait."""
        member_id: str = self.join(who, group, version=version, **changes).member_id
        self.say(who, join_request(group, member_id, **changes), version)
        return member_id

    def sync(
        self,
        who: str,
        group: str,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        version: int = 5,
        **changes: Any,
    ) -> Any:
        return self.ask(who, sync_request(group, member_id, generation, assignments, **changes), version)

    def beat(self, who: str, group: str, member_id: str, generation: int, instance: str | None = None) -> Any:
        return self.ask(
            who,
            HeartbeatRequest(
                group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
            ),
        )

    def leave(self, who: str, group: str, *members: tuple[str, str | None], version: int = 5) -> Any:
        listed = [MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in members]
        return self.ask(who, LeaveGroupRequest(group_id=group, members=listed), version)

    def look(self, *groups: str, version: int = 6, who: str = "somebody") -> Any:
        return self.ask(who, DescribeGroupsRequest(groups=list(groups)), version)

    def commit(
        self,
        who: str,
        group: str,
        member_id: str = "",
        generation: int = -1,
        version: int = NEWEST_WITH_NAMES,
        **changes: Any,
    ) -> Any:
        request = commit_request(group, member_id, generation, **changes)
        for topic in request.topics:
            topic.topic_id = self.topic_id(topic.name)
        return self.ask(who, request, version)


class Life(Protocol):
    """What is said, in its order; the function's name is that of the life."""

    __name__: str

    def __call__(self, talk: Talk) -> None: ...


def join_request(group: str, member_id: str = "", **changes: Any) -> JoinGroupRequest:
    protocols = changes.pop("protocols", {"range": b"plain"})
    fields: dict[str, Any] = {
        "session_timeout_ms": TIMEOUT_MS,
        "rebalance_timeout_ms": TIMEOUT_MS,
        "protocol_type": "consumer",
    }
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        **(fields | changes),
    )


def sync_request(
    group: str,
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> SyncGroupRequest:
    listed = [
        SyncGroupRequestAssignment(member_id=name, assignment=data)
        for name, data in (assignments or {}).items()
    ]
    fields: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        assignments=listed,
        **(fields | changes),
    )


def commit_request(
    group: str, member_id: str = "", generation: int = -1, **changes: Any
) -> OffsetCommitRequest:
    """Of offset 7 in partition 0 of topic `t`, unless `offsets` by topic and partition says otherwise."""
    offsets: dict[str, dict[int, int]] = changes.pop("offsets", {"t": {0: 7}})
    metadata, ids = changes.pop("metadata", ""), changes.pop("ids", {})
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            topic_id=ids.get(name, bytes(16)),
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
                for index, offset in partitions.items()
            ],
        )
        for name, partitions in offsets.items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=topics,
        **changes,
    )
