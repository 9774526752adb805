"""A group shard with virtual time: appends and replays what it proposes, fires its timers, keeps its replies.

Every record goes through its bytes, so that what is replayed is what a log would give back.

    driver = GroupDriver()
    driver.join("g", token="A")             # a request; the reply, if there is one, is in driver.replies["A"]
    driver.advance(3000)                    # timers that are due are fired on the way
    driver.crash()                          # a new shard from the records, nobody waits any more
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from tidemill.coordination.core import CancelTimer, CoordinatorRecord, Outcome, Token
from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.contract import GroupSettings, RequestContext
from tidemill.coordination.group.modern import FixedTopics
from tidemill.coordination.group.shard import GroupShard
from tidemill.coordination.record_codec import decode_record, encode_key, encode_value
from tidemill.coordination.records.group_records import RECORD_TYPES
from tidemill.model.errors import ErrorCode
from tidemill.ports.randomness import SeededRandomness
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

CLIENT = RequestContext(client_id="client", client_host="/127.0.0.1", api_version=9)
START_MS = 1_700_000_000_000
NOT_WRITTEN = "not written"
"""The reply to a request whose records could not be appended."""


class Marker(NamedTuple):
    producer_id: int
    is_commit: bool


class GroupDriver:
    def __init__(self, settings: GroupSettings | None = None, seed: int = 0) -> None:
        self.settings = settings or GroupSettings()
        self.topics = FixedTopics()
        self.now_ms = START_MS
        self.log: list[tuple[CoordinatorRecord, int] | Marker] = []
        self.timers: dict[Hashable, int] = {}
        self.replies: dict[Token, Any] = {}
        self.fails_appends = False
        self._randomness = SeededRandomness(seed)
        self._next_token = 0
        self.shard = self._load()

    # -- what a runtime does ----------------------------------------------------------------------------

    def _load(self) -> GroupShard:
        self.shard = GroupShard(self.settings, self._randomness, self.topics)
        replay_into(self.shard, self.log)
        self.run(self.shard.on_loaded(self.now_ms))
        return self.shard

    def crash(self) -> None:
        self.timers.clear()
        self._load()

    def run(self, outcome: Outcome, producer_id: int = -1, token: Token = None) -> None:
        """Whoever asked (`token`) is told if nothing can be written, also if the shard would let it wait."""
        for timer in outcome.timers:
            if isinstance(timer, CancelTimer):
                self.timers.pop(timer.key, None)
            else:
                self.timers[timer.key] = timer.due_ms
        if outcome.records and self.fails_appends:
            self.replies.update((reply.token, NOT_WRITTEN) for reply in outcome.replies)
            self.replies[token] = NOT_WRITTEN
            return
        for record in outcome.records:
            written = through_bytes(record)
            self.log.append((written, producer_id))
            self.shard.replay(written, len(self.log) - 1, producer_id)
        for reply in outcome.replies:
            assert self.replies.get(reply.token) in (None, NOT_WRITTEN), f"{reply.token} is answered twice"
            self.replies.setdefault(reply.token, reply.response)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.log.append(Marker(producer_id, is_commit))
        self.shard.replay_end_of_transaction(producer_id, is_commit)

    def advance(self, elapsed_ms: int) -> None:
        end_ms = self.now_ms + elapsed_ms
        while self.timers:
            key, due_ms = min(self.timers.items(), key=lambda entry: (entry[1], repr(entry[0])))
            if due_ms > end_ms:
                break
            del self.timers[key]
            self.now_ms = max(self.now_ms, due_ms)
            self.run(self.shard.on_timer(key, self.now_ms))
        self.now_ms = end_ms

    def token(self, name: Token = None) -> Token:
        if name is not None:
            self.replies.pop(name, None)
            return name
        self._next_token += 1
        return f"request {self._next_token}"

    def classic(self, group_id: str = "g") -> ClassicGroup:
        group = self.shard.group(group_id)
        assert isinstance(group, ClassicGroup)
        return group

    # -- requests: the reply, or None if it waits -------------------------------------------------------

    def join(
        self,
        group_id: str = "g",
        member_id: str = "",
        *,
        token: Token = None,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
        protocol_type: str = "consumer",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        context: RequestContext = CLIENT,
    ) -> Any:
        request = JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        name = self.token(token)
        self.run(self.shard.join_group(request, context, name, self.now_ms), token=name)
        return self.replies.get(name)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group_id: str = "g",
        token: Token = None,
        instance_id: str | None = None,
        protocol: str | None = None,
        protocol_type: str | None = None,
        version: int = 3,
    ) -> Any:
        request = SyncGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            generation_id=generation,
            protocol_name=protocol,
            protocol_type=protocol_type,
            assignments=[
                SyncGroupRequestAssignment(member_id=id, assignment=assignment)
                for id, assignment in (assignments or {}).items()
            ],
        )
        name = self.token(token)
        context = RequestContext(api_version=version)
        self.run(self.shard.sync_group(request, context, name, self.now_ms), token=name)
        return self.replies.get(name)

    def heartbeat(
        self, member_id: str, generation: int, *, group_id: str = "g", instance_id: str | None = None
    ) -> int:
        request = HeartbeatRequest(
            group_id=group_id, member_id=member_id, generation_id=generation, group_instance_id=instance_id
        )
        name = self.token()
        self.run(self.shard.heartbeat(request, name, self.now_ms))
        return int(self.replies[name].error_code)

    def leave(self, *identities: tuple[str, str | None], group_id: str = "g", version: int = 5) -> Any:
        members = [MemberIdentity(member_id=id, group_instance_id=instance) for id, instance in identities]
        request = LeaveGroupRequest(
            group_id=group_id, members=members, member_id=members[0].member_id if version < 3 else ""
        )
        name = self.token()
        context = RequestContext(api_version=version)
        self.run(self.shard.leave_group(request, context, name, self.now_ms))
        return self.replies[name]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        metadata: str | None = None,
        leader_epoch: int = -1,
        retention_ms: int = -1,
        version: int = 9,
    ) -> list[int]:
        """The error of each partition."""
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                            committed_leader_epoch=leader_epoch,
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        name = self.token()
        context = RequestContext(api_version=version)
        self.run(self.shard.commit_offsets(request, context, name, self.now_ms))
        return self._commit_errors(name)

    def commit_in_transaction(
        self,
        producer_id: int,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        group_id: str = "g",
        metadata: str | None = None,
    ) -> list[int]:
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=group_id,
            producer_id=producer_id,
            member_id=member_id,
            generation_id=generation,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        name = self.token()
        outcome = self.shard.commit_transactional_offsets(request, CLIENT, name, self.now_ms)
        self.run(outcome, producer_id)
        return self._commit_errors(name)

    def _commit_errors(self, token: Token) -> list[int]:
        reply = self.replies[token]
        return [ErrorCode.UNKNOWN_SERVER_ERROR] if reply == NOT_WRITTEN else error_codes(reply.topics)

    def fetch(
        self,
        keys: Sequence[tuple[str, int]] | None = None,
        *,
        group_id: str = "g",
        require_stable: bool = False,
    ) -> dict[tuple[str, int], Any]:
        """The answered partitions; None asks for all."""
        topics = None
        if keys is not None:
            topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[index]) for name, index in keys]
        name = self.token()
        request = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        self.run(self.shard.fetch_offsets(request, require_stable, name, self.now_ms))
        response = self.replies[name]
        assert response.group_id == group_id and not response.error_code
        return {
            (topic.name, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }

    def committed(self, *, group_id: str = "g") -> dict[tuple[str, int], int]:
        return {key: found.committed_offset for key, found in self.fetch(group_id=group_id).items()}

    # -- shortcuts --------------------------------------------------------------------------------------

    def join_known(self, group_id: str = "g", **options: Any) -> tuple[str, Any]:
        """Both steps of a dynamic member: get an id, come back with it."""
        refused = self.join(group_id, **{**options, "token": None})
        return refused.member_id, self.join(group_id, refused.member_id, **options)

    def stable_group(self, count: int = 2, group_id: str = "g", **options: Any) -> list[str]:
        """A stable generation of this many dynamic members; the first leads."""
        tokens = [("member", group_id, index) for index in range(count)]
        members = [self.join_known(group_id, token=token, **options)[0] for token in tokens]
        self.advance(self.settings.initial_rebalance_delay_ms)
        while tokens[0] not in self.replies:
            self.advance(self.settings.initial_rebalance_delay_ms)
        answer = self.replies[tokens[0]]
        assert answer.leader == members[0]
        assignments = {member_id: b"to " + member_id.encode() for member_id in members}
        for member_id in reversed(members):
            mine = assignments if member_id == answer.leader else None
            self.sync(member_id, answer.generation_id, mine, group_id=group_id)
        return members


def through_bytes(record: CoordinatorRecord) -> CoordinatorRecord:
    decoded = decode_record(encode_key(record), encode_value(record), RECORD_TYPES)
    assert decoded is not None
    return decoded


def replay_into(
    shard: GroupShard, log: Sequence[tuple[CoordinatorRecord, int] | Marker], first_offset: int = 0
) -> None:
    for offset, entry in enumerate(log, first_offset):
        if isinstance(entry, Marker):
            shard.replay_end_of_transaction(*entry)
        else:
            shard.replay(entry[0], offset, entry[1])


def error_codes(topics: Sequence[Any]) -> list[int]:
    return [int(partition.error_code) for topic in topics for partition in topic.partitions]


def subscription(*topics: str) -> bytes:
    """A consumer's metadata: version 0, its topics, no user data."""
    data = bytearray(struct.pack(">hi", 0, len(topics)))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    return bytes(data + struct.pack(">i", -1))
