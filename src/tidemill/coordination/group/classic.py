"""A classic consumer group: the state machine in which members agree on a generation.

    state                 | event                                                | next state
    ----------------------+------------------------------------------------------+----------------------
    Empty                 | a member joins                                       | PreparingRebalance
    PreparingRebalance    | all members rejoined, or the time for it is over     | CompletingRebalance
    PreparingRebalance    | nobody is left (record replayed)                     | Empty
    CompletingRebalance   | the leader's assignment is stored (record replayed)  | Stable
    CompletingRebalance   | a member joins, leaves, fails or changes             | PreparingRebalance
    Stable                | a member joins, leaves, fails or changes             | PreparingRebalance
    any                   | the shard is unloaded                                | Dead

Anything absent is illegal and raises. A record that is read while the shard loads makes the group what it says,
Stable with members and Empty without, whatever it was before.

Worked example, two consumers:

    A joins                   Empty -> PreparingRebalance; A waits (initial delay, 3 s)
    B joins                   B waits too; the delay starts again, as long as the rebalance time-out allows
    the delay ends            generation 1, A leads: both are answered, A gets the metadata of both
    B syncs                   B waits for the leader
    A syncs with assignments  a GroupMetadata record holds members and assignments; when it is replayed the group is
                              Stable, when it is committed both are answered
    B leaves                  Stable -> PreparingRebalance; A hears REBALANCE_IN_PROGRESS at its next heartbeat

What is durable: the last GroupMetadata record, kept in `stored`. Between two records everything is soft: members
that join, the generation that is being agreed on, who waits. After a restart the group is again what `stored` says.
Members of a generation that was never stored find their generation illegal and join again.

The rules are next door: `classic_join`, `classic_rebalance`, `classic_sync` (also heartbeats), `classic_leave`.

Limits: a group that was never stable has no record; Kafka writes an empty one at the first join. If it crashes then,
its members join anew either way. A generation number that was never stored may be used again.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.coordination.core import CoordinatorRecord, SetTimer
from tidemill.coordination.group.classic_subscription import subscribed_topics
from tidemill.coordination.group.contract import CONSUMER_PROTOCOL_TYPE, Step
from tidemill.coordination.group.members import ClassicMember, Members, Protocols
from tidemill.coordination.records.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from tidemill.wire.messages.join_group import JoinGroupResponse
from tidemill.wire.messages.list_groups import ListedGroup
from tidemill.wire.messages.sync_group import SyncGroupResponse

GROUP_METADATA = 2
"""The record type; its values are written in version 3, as Kafka does."""
GROUP_METADATA_VERSION = 3


class ClassicState(enum.Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicState

_NEXT: dict[ClassicState, set[ClassicState]] = {
    EMPTY: {PREPARING, DEAD},
    PREPARING: {COMPLETING, EMPTY, DEAD},
    COMPLETING: {STABLE, PREPARING, DEAD},
    STABLE: {PREPARING, DEAD},
    DEAD: set(),
}


class SessionTimer(NamedTuple):
    """A member, or a pending one, was not heard of for its session time-out.

    Looked for with every heartbeat, which a tuple is cheap enough for; the others are none, so that it equals none.
    """

    group_id: str
    member_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class JoinTimer:
    """The time to rejoin, or the initial delay, is over."""

    group_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class SyncTimer:
    """The time to sync is over: who has not done so is out."""

    group_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReassignTimer:
    """The group has an assignment that no leader made: it has to rebalance."""

    group_id: str


@dataclasses.dataclass(slots=True)
class InitialDelay:
    """The first rebalance of an empty group waits for more members, a while each time one comes."""

    delay_ms: int
    remaining_ms: int
    has_new_member: bool = False


class ClassicGroup:
    group_type = "classic"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Members()
        self.not_synced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.initial_delay: InitialDelay | None = None
        """Only in PreparingRebalance after Empty."""
        self.successors: dict[str, ClassicMember] = {}
        """Static members that come back under these ids, once the record that says so is replayed."""
        self.topics: frozenset[str] | None = None
        """What the members subscribe to; None if it cannot be known."""
        self.stored: GroupMetadataValue | None = None

    # -- states -----------------------------------------------------------------------------------------

    def become(self, state: ClassicState) -> None:
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state.value} to {state.value}")
        self.state = state
        if state is not PREPARING:
            self.initial_delay = None

    def begin_generation(self) -> None:
        """All who are here agree on a protocol; they still need their assignments."""
        assert len(self.members)
        self.generation += 1
        self.protocol = self.members.elect()
        self.topics = self._subscribed_topics()
        self.become(COMPLETING)
        self.not_synced = {member.member_id for member in self.members}

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_vacant(self) -> bool:
        """Nothing of it would be missed: neither stored nor joined."""
        return self.state is EMPTY and self.stored is None and not self.members.pending

    @property
    def is_abandoned(self) -> bool:
        """Everybody left and the record that says so could not be written."""
        return self.state is PREPARING and not len(self.members) and not self.members.pending

    @property
    def has_foreign_assignment(self) -> bool:
        """It was a consumer group until its last record, and no leader has assigned anything since."""
        return self.state is STABLE and self.stored is not None and self.stored.leader is None

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # -- the durable state ------------------------------------------------------------------------------

    def record(self, members: list[MemberMetadata], leader: str | None, now_ms: int) -> CoordinatorRecord:
        """The generation as it is to be stored."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=leader,
            current_state_timestamp=now_ms,
            members=members,
        )
        return self._record_of(value)

    def empty_record(self, now_ms: int) -> CoordinatorRecord:
        """The next generation, which has no members."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation + 1,
            protocol=None,
            leader=None,
            current_state_timestamp=now_ms,
        )
        return self._record_of(value)

    def _record_of(self, value: GroupMetadataValue) -> CoordinatorRecord:
        key = GroupMetadataKey(group=self.group_id)
        return CoordinatorRecord(GROUP_METADATA, key, value, GROUP_METADATA_VERSION)

    def stored_form(self, member: ClassicMember, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata_for(self.protocol),
            assignment=assignment,
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(GROUP_METADATA, GroupMetadataKey(group=self.group_id), None)]

    def replay(self, value: GroupMetadataValue) -> None:
        """Become what the record says; members that stay keep what is soft about them."""
        self.stored = value
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self._replay_members(value.members)
        if value.leader is not None and value.leader in self.members:
            self.members.leader = value.leader
        self.not_synced.intersection_update(member.member_id for member in self.members)
        self.topics = self._subscribed_topics()
        self.initial_delay = None
        self.state = STABLE if len(self.members) else EMPTY

    def _replay_members(self, entries: list[MemberMetadata]) -> None:
        recorded = {entry.member_id for entry in entries}
        for member in self.members:
            if member.member_id not in recorded:
                self.members.remove(member.member_id)
        for entry in entries:
            if entry.member_id not in self.members:
                self.members.add(self.successors.get(entry.member_id) or _member_of(entry, self.protocol))
            self._replay_member(self.members[entry.member_id], entry)
        self.successors.clear()

    def _replay_member(self, member: ClassicMember, entry: MemberMetadata) -> None:
        member.assignment = entry.assignment
        member.session_timeout_ms = entry.session_timeout
        member.rebalance_timeout_ms = _rebalance_timeout_ms(entry)
        offered = (self.protocol or "", entry.subscription)
        if offered not in member.protocols:
            self.members.set_protocols(member, (offered,))

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not len(self.members):
            return frozenset()
        return subscribed_topics(member.metadata_for(self.protocol) for member in self.members)

    # -- sessions ---------------------------------------------------------------------------------------

    def restart_session(self, member: ClassicMember, step: Step, timeout_ms: int | None = None) -> None:
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.session_due_ms = due_ms = step.now_ms + delay_ms
        if member.session_timer is None:
            member.session_timer = SessionTimer(self.group_id, member.member_id)
        step.timers.append(SetTimer(member.session_timer, due_ms))

    def keep_session(self, member_id: str, step: Step) -> None:
        member = self.members.get(member_id)
        if member is not None and self.state in (STABLE, PREPARING):
            self.restart_session(member, step)

    def restore_timers(self, step: Step) -> None:
        for member in self.members:
            self.restart_session(member, step)

    def unload(self, step: Step) -> None:
        self.become(DEAD)
        for member_id in list(self.members.join_tokens):
            self.answer_join(member_id, join_failure(ErrorCode.NOT_COORDINATOR, member_id), step)
        self.fail_syncs(ErrorCode.NOT_COORDINATOR, step)

    # -- answers ----------------------------------------------------------------------------------------

    def answer_join(self, member_id: str, response: JoinGroupResponse, step: Step) -> None:
        """If the member waits for it."""
        if member_id in self.members.join_tokens:
            step.reply(self.members.join_tokens.pop(member_id), response)

    def answer_sync(self, member_id: str, response: SyncGroupResponse, step: Step) -> None:
        """If the member waits for it."""
        if member_id in self.members.sync_tokens:
            step.reply(self.members.sync_tokens.pop(member_id), response)

    def fail_syncs(self, code: ErrorCode, step: Step) -> None:
        for member_id in list(self.members.sync_tokens):
            self.answer_sync(member_id, SyncGroupResponse(error_code=code), step)
            if self.state is not DEAD:
                self.restart_session(self.members[member_id], step)

    # -- checks -----------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is not None:
            current = self.members.instances.get(instance_id)
            if current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members.by_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if instance_id is not None or member_id not in self.members.by_id:
            self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        api_version: int = 0,
        partitions: Iterable[tuple[str, int]] = (),
    ) -> None:
        """A commit without generation is that of a consumer that assigns itself: only in an empty group.

        A transactional one may lack generation and member (TxnOffsetCommit before version 3), and may come
        while the group is rebalancing: its fence is the producer's epoch.
        """
        if generation < 0 and self.state is EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.check_generation(member_id, instance_id, generation)
        elif not is_transactional:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state is COMPLETING and not is_transactional:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and not self.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def can_do_one_of(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and self.members.can_all_do_one_of(protocols)

    def is_subscribed_to(self, topic: str) -> bool:
        """If the subscriptions cannot be read, a group of consumers is taken to read everything."""
        return self.uses_consumer_protocol if self.topics is None else topic in self.topics

    def offset_retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """KIP-211: of a group that became empty since then, else since the commit, never while unsure."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is EMPTY:
            since_ms = -1 if self.stored is None else self.stored.current_state_timestamp
            return commit_timestamp_ms if since_ms == -1 else since_ms
        if self.state is STABLE and self.uses_consumer_protocol and self.topics is not None:
            return commit_timestamp_ms
        return None

    # -- for people -------------------------------------------------------------------------------------

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=self.group_type,
        )

    def described(self) -> DescribedGroup:
        """Metadata is shown of a stable generation only; what was assigned is read until there is something else."""
        is_stable = self.state is STABLE
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol or "") if is_stable else "",
            members=[self._described_member(member, is_stable) for member in self.members],
        )

    def _described_member(self, member: ClassicMember, is_stable: bool) -> DescribedGroupMember:
        return DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(self.protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )


def join_failure(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id)


def _member_of(entry: MemberMetadata, protocol: str | None) -> ClassicMember:
    return ClassicMember(
        entry.member_id,
        entry.group_instance_id,
        entry.client_id,
        entry.client_host,
        _rebalance_timeout_ms(entry),
        entry.session_timeout,
        ((protocol or "", entry.subscription),),
    )


def _rebalance_timeout_ms(entry: MemberMetadata) -> int:
    """Records of version 0 have none."""
    return entry.session_timeout if entry.rebalance_timeout == -1 else entry.rebalance_timeout
