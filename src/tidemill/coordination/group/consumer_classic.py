"""Members of a consumer group that still speak the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

While a group moves from one protocol to the other its members speak both. The coordinator treats all alike, with
epochs and reconciliation; for a classic member it translates:

    generation            the member epoch
    JoinGroup             a heartbeat that brings the subscription and what the member owns; answered at once
    SyncGroup             fetches the assignment that the join has decided on; there is no leader, nobody assigns
    REBALANCE_IN_PROGRESS there is something to be had, or to be given up: join again
    LeaveGroup            epoch -1

    consumer B joins      epoch 8, target for 8; classic A is at 7, owning 0-3
    A: Heartbeat          REBALANCE_IN_PROGRESS
    A: JoinGroup, owns 0-3 (cooperative)    generation 7, UNREVOKED; SyncGroup gives 0 1
    A: JoinGroup, owns 0 1                  generation 8; SyncGroup gives 0 1
    B: heartbeat          gets 2 3

A member that was told to join again, or joined and did not sync, has its rebalance time-out for it; then it is out.

Topics that grow are noticed by the heartbeats of the newer protocol. Where all members speak the classic one, and the
group stays a consumer group all the same (`group.consumer.migration.policy`), theirs do it.
"""

from __future__ import annotations

import dataclasses
import uuid

from tidemill.coordination.group.assignor import Assignor
from tidemill.coordination.group.classic_subscription import Subscription, read_subscription
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import (
    ClassicFacts,
    ConsumerGroup,
    ConsumerMember,
    DowngradeTimer,
    MemberState,
    RejoinTimer,
    ResyncTimer,
)
from tidemill.coordination.group.consumer_heartbeat import (
    advance_epoch,
    known_member,
    maybe_make_target,
    settle,
    take_place,
)
from tidemill.coordination.group.consumer_migration import assignment_bytes, by_topic_id
from tidemill.coordination.group.contract import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    ConsumerSettings,
    RequestContext,
    Step,
)
from tidemill.coordination.group.modern import Topics, metadata_hash
from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage
from tidemill.ports.randomness import Randomness
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.messages.leave_group import MemberIdentity
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_REQUIRED_MEMBER_ID = 4


class ClassicJoin:
    """One JoinGroup request to a consumer group that has members."""

    def __init__(
        self, draft: Draft, request: JoinGroupRequest, context: RequestContext, settings: ConsumerSettings
    ) -> None:
        self._draft = draft
        self._request = request
        self._context = context
        self._settings = settings
        self._protocols = tuple((entry.name, bytes(entry.metadata)) for entry in request.protocols)

    def run(self, assignors: dict[str, Assignor], randomness: Randomness) -> JoinGroupResponse:
        request, draft = self._request, self._draft
        self._check()
        if self._needs_id:
            new_id = f"{self._context.client_id}-{uuid.UUID(bytes=randomness.uuid())}"
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id)
        subscription = self._subscription()
        known = self._find(request.member_id or str(uuid.UUID(bytes=randomness.uuid())))
        member = self._updated(known, subscription)
        has_changed = advance_epoch(draft, known, member)
        maybe_make_target(draft, assignors, self._settings)
        owned = {entry.topic: frozenset(entry.partitions) for entry in subscription.owned_partitions}
        member = settle(draft, draft.members[member.member_id], by_topic_id(owned, draft.topics), has_changed)
        self._set_timers(member)
        return JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=self._protocols[0][0],
        )

    # -- checks -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if not (self._settings.allows_upgrade or self._settings.allows_downgrade):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "migration is disabled")
        members = self._draft.members
        if self._request.member_id not in members and len(members) >= self._settings.max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        others = [
            {name for name, _ in member.classic.protocols}
            for member in members.values()
            if member.classic is not None and member.member_id != self._request.member_id
        ]
        common = {name for name, _ in self._protocols}.intersection(*others)
        if self._request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    @property
    def _needs_id(self) -> bool:
        is_unknown = self._request.member_id == NO_MEMBER_ID and self._request.group_instance_id is None
        return is_unknown and self._context.api_version >= FIRST_VERSION_WITH_REQUIRED_MEMBER_ID

    def _subscription(self) -> Subscription:
        try:
            return read_subscription(self._protocols[0][1])
        except MalformedMessage as failure:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from failure

    # -- which member -----------------------------------------------------------------------------------

    def _find(self, member_id: str) -> ConsumerMember:
        draft, instance_id = self._draft, self._request.group_instance_id
        if instance_id is None:
            return draft.members.get(member_id) or ConsumerMember(member_id)
        if self._request.member_id != NO_MEMBER_ID:
            return known_member(draft, member_id, instance_id)
        holder = draft.members.get(draft.group.instances.get(instance_id, ""))
        return ConsumerMember(member_id) if holder is None else take_place(draft, holder, member_id)

    def _updated(self, member: ConsumerMember, subscription: Subscription) -> ConsumerMember:
        request = self._request
        has_timeout = self._context.api_version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
        return dataclasses.replace(
            member,
            instance_id=request.group_instance_id or member.instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
            subscribed_topic_names=frozenset(subscription.topics),
            regex="",
            client_id=self._context.client_id,
            client_host=self._context.client_host,
            classic=ClassicFacts(request.session_timeout_ms, self._protocols),
        )

    def _set_timers(self, member: ConsumerMember) -> None:
        draft, step = self._draft, self._draft.step
        draft.group.waits_for_rejoin.discard(member.member_id)
        step.cancel_timer(RejoinTimer(draft.group_id, member.member_id))
        draft.group.restart_session(member, step)
        step.set_timer(ResyncTimer(draft.group_id, member.member_id), member.rebalance_timeout_ms)
        if all(each.classic is not None for each in draft.members.values()):
            step.set_timer(DowngradeTimer(draft.group_id), 0)


# -- the other requests -----------------------------------------------------------------------------------


def classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int | None = None
) -> ConsumerMember:
    """The member that speaks the classic protocol, at this generation."""
    member = _identified(group, member_id, instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation is not None and generation != member.member_epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _identified(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        holder = group.instances.get(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
    return group.member_or_refuse(member_id)


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, topics: Topics, step: Step) -> ErrorCode:
    member = classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    group.restart_session(member, step)
    is_released = member.state is MemberState.UNRELEASED and not group.waits_for_others(member)
    is_behind = member.member_epoch != group.epoch or member.state is MemberState.UNREVOKED or is_released
    if not is_behind and not _has_unseen_topics(group, topics):
        return ErrorCode.NONE
    _expect_rejoin(group, member, step)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _has_unseen_topics(group: ConsumerGroup, topics: Topics) -> bool:
    """Whether topics changed, and there is nobody but members of the classic protocol to notice it."""
    if not (group.is_metadata_stale and group.has_only_classic_members):
        return False
    group.is_metadata_stale = metadata_hash(group.subscribed_topic_names(), topics) != group.metadata_hash
    return group.is_metadata_stale


def _expect_rejoin(group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
    """From the first time on that it is told."""
    if member.member_id not in group.waits_for_rejoin:
        group.waits_for_rejoin.add(member.member_id)
        step.set_timer(RejoinTimer(group.group_id, member.member_id), member.rebalance_timeout_ms)


def sync(group: ConsumerGroup, request: SyncGroupRequest, topics: Topics, step: Step) -> SyncGroupResponse:
    member = classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol_name = member.classic.protocols[0][0]
    named = (request.protocol_type, request.protocol_name)
    expected = (CONSUMER_PROTOCOL_TYPE, protocol_name)
    if any(given not in (None, wanted) for given, wanted in zip(named, expected, strict=True)):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED:
        _expect_rejoin(group, member, step)
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    step.cancel_timer(ResyncTimer(group.group_id, member.member_id))
    group.restart_session(member, step)
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignment=assignment_bytes(member, topics),
    )


def leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> str:
    """An administrator removes members of either protocol, static ones by their instance id alone."""
    if identity.member_id != NO_MEMBER_ID:
        return _identified(group, identity.member_id, identity.group_instance_id).member_id
    holder = group.instances.get(identity.group_instance_id or "")
    if holder is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return holder
