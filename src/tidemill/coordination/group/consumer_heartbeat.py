"""ConsumerGroupHeartbeat, versions 0-1: one request to join, to stay, to change one's mind, and to leave.

What the member epoch of a request says:

    0    the member joins, or begins again: it owns nothing
    >0   it stays; it must be at this epoch, or at the one before if an answer was lost on the way
    -1   it leaves
    -2   a static member goes away for a while: its partitions wait for it, until its session is over

Fields that are null have not changed since the last heartbeat. The answer contains the assignment only if it changed
or the request was complete.

    request                     member known as       | answer
    ---------------------------+----------------------+----------------------------------------------------------
    epoch 0, no instance id     unknown               | a new member
    epoch 0, no instance id     known                 | begins again with nothing
    epoch 0, instance id        instance unknown      | a new static member
    epoch 0, instance id        instance went (-2)    | takes its place, without a rebalance
    epoch 0, instance id        instance is here      | UNRELEASED_INSTANCE_ID, unless it is the same member
    epoch > 0                   unknown               | UNKNOWN_MEMBER_ID
    epoch > 0, instance id      by another member id  | FENCED_INSTANCE_ID
    epoch > 0                   at another epoch      | FENCED_MEMBER_EPOCH

Version notes: in version 0 the coordinator gives a joining member its id; from version 1 the member brings one, and
may subscribe by a regular expression.
"""

from __future__ import annotations

import dataclasses
import uuid

from tidemill.coordination.group.assignor import NOTHING, Assignment, Assignor
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import (
    ConsumerMember,
    ConsumerSessionTimer,
    MemberState,
    RejoinTimer,
    ResyncTimer,
    RevocationTimer,
)
from tidemill.coordination.group.consumer_reconciliation import Goal, reconcile
from tidemill.coordination.group.consumer_records import assignment_of
from tidemill.coordination.group.consumer_regex import check_regex
from tidemill.coordination.group.contract import ConsumerSettings, RequestContext, Step
from tidemill.coordination.group.modern import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    existing_topics,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import Randomness
from tidemill.wire.messages.consumer_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from tidemill.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

FIRST_VERSION_WITH_MEMBER_ID = 1
NOT_GIVEN = -1


# -- what can be said without the group -------------------------------------------------------------------


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, settings: ConsumerSettings
) -> None:
    epoch = request.member_epoch
    needs_id = context.api_version >= FIRST_VERSION_WITH_MEMBER_ID or epoch > 0 or epoch == LEAVING_EPOCH
    _refuse_if(needs_id and not request.member_id, "the member id is empty")
    _refuse_if(not request.group_id, "the group id is empty")
    _refuse_if(request.instance_id == "", "the instance id is empty")
    _refuse_if(request.rack_id == "", "the rack id is empty")
    _refuse_if(epoch < STATIC_LEAVING_EPOCH, "there is no such member epoch")
    if epoch == STATIC_LEAVING_EPOCH:
        _refuse_if(not request.member_id, "the member id is empty")
        _refuse_if(request.instance_id is None, "only a member with an instance id can go and come back")
    if epoch == JOINING_EPOCH:
        _check_complete(request)
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        known = ", ".join(settings.assignors)
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.server_assignor} is not one of the assignors: {known}"
        )


def _check_complete(request: ConsumerGroupHeartbeatRequest) -> None:
    _refuse_if(request.rebalance_timeout_ms == NOT_GIVEN, "a joining member says its rebalance time-out")
    _refuse_if(request.topic_partitions is None or bool(request.topic_partitions), "who joins owns nothing")
    says_nothing = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
    _refuse_if(says_nothing, "a joining member says what it subscribes to, be it nothing yet")


def _refuse_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


# -- joining and staying ----------------------------------------------------------------------------------


class Heartbeat:
    """One request of a member that joins or stays, on its way through the rules."""

    def __init__(
        self,
        draft: Draft,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        settings: ConsumerSettings,
    ) -> None:
        self._draft = draft
        self._request = request
        self._context = context
        self._settings = settings
        partitions = request.topic_partitions
        self._owned: Assignment | None = None if partitions is None else assignment_of(partitions)

    def run(self, assignors: dict[str, Assignor], randomness: Randomness) -> ConsumerGroupHeartbeatResponse:
        request = self._request
        if request.subscribed_topic_regex:
            check_regex(request.subscribed_topic_regex)
        known = self._find(request.member_id or str(uuid.UUID(bytes=randomness.uuid())))
        member = self._updated(known)
        has_changed = advance_epoch(self._draft, known, member)
        maybe_make_target(self._draft, assignors, self._settings)
        member = settle(self._draft, self._draft.members[member.member_id], self._owned, has_changed)
        self._draft.group.restart_session(member, self._draft.step)
        return self._response(known, member)

    # -- which member -----------------------------------------------------------------------------------

    def _find(self, member_id: str) -> ConsumerMember:
        members = self._draft.members
        if member_id not in members and len(members) >= self._settings.max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group is full")
        if self._request.member_epoch == JOINING_EPOCH:
            return self._joining(member_id)
        member = known_member(self._draft, member_id, self._request.instance_id)
        self._check_epoch(member)
        return member

    def _joining(self, member_id: str) -> ConsumerMember:
        draft, instance_id = self._draft, self._request.instance_id
        before = draft.members.get(member_id)
        if instance_id is None:
            return ConsumerMember(member_id) if before is None else self._begin_again(before)
        holder = draft.members.get(draft.group.instances.get(instance_id, ""))
        if holder is None:
            return ConsumerMember(member_id)
        if holder.member_id == member_id:
            return self._begin_again(holder)
        if holder.classic is None and holder.member_epoch != STATIC_LEAVING_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"{instance_id} is in use by the member {holder.member_id}"
            )
        return take_place(draft, dataclasses.replace(holder, classic=None), member_id)

    def _begin_again(self, member: ConsumerMember) -> ConsumerMember:
        """It says that it owns nothing, and is believed; what waited for it (-2) it may have back at once."""
        is_back = member.member_epoch == STATIC_LEAVING_EPOCH
        return dataclasses.replace(
            member,
            member_epoch=JOINING_EPOCH,
            previous_member_epoch=JOINING_EPOCH,
            state=MemberState.STABLE,
            assigned=member.assigned if is_back else NOTHING,
            assignment_epochs=member.assignment_epochs if is_back else {},
            pending_revocation=NOTHING,
        )

    def _check_epoch(self, member: ConsumerMember) -> None:
        received = self._request.member_epoch
        if received == member.member_epoch:
            return
        is_repeated = received == member.previous_member_epoch and _is_within(self._owned, member.assigned)
        if received > member.member_epoch or not is_repeated:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"the member says epoch {received} and is at {member.member_epoch}: it must rejoin",
            )

    # -- what it wants ----------------------------------------------------------------------------------

    def _updated(self, member: ConsumerMember) -> ConsumerMember:
        request = self._request
        names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        timeout_ms = request.rebalance_timeout_ms
        return dataclasses.replace(
            member,
            instance_id=member.instance_id if request.instance_id is None else request.instance_id,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NOT_GIVEN else timeout_ms,
            server_assignor=request.server_assignor or member.server_assignor,
            subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
            regex=member.regex if regex is None else regex,
            client_id=self._context.client_id,
            client_host=self._context.client_host,
            classic=None,
        )

    # -- the answer -------------------------------------------------------------------------------------

    def _response(self, before: ConsumerMember, member: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
        request = self._request
        names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        is_complete = (
            request.rebalance_timeout_ms != NOT_GIVEN
            and (names is not None or regex is not None)
            and self._owned is not None
        )
        is_joining = request.member_epoch == JOINING_EPOCH
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
        )
        if is_joining or is_complete or before.assigned != member.assigned:
            response.assignment = AssignmentMessage(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                    for topic_id, indexes in sorted(member.assigned.items())
                ]
            )
        return response


def _is_within(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(indexes <= assigned.get(topic_id, frozenset()) for topic_id, indexes in owned.items())


# -- rules that members of both protocols share -----------------------------------------------------------


def known_member(draft: Draft, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        holder = draft.group.instances.get(instance_id)
        if holder is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member with the instance id {instance_id}"
            )
        if holder != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} belongs to the member {holder} by now"
            )
    return draft.group.member_or_refuse(member_id)


def take_place(draft: Draft, holder: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member is back under another id: it has what its holder had, and no timer of it runs on."""
    heir = dataclasses.replace(
        holder,
        member_id=member_id,
        member_epoch=JOINING_EPOCH,
        previous_member_epoch=JOINING_EPOCH,
        pending_revocation=NOTHING,
    )
    draft.replace(holder, heir)
    cancel_timers(holder.member_id, draft)
    return heir


def advance_epoch(draft: Draft, before: ConsumerMember, member: ConsumerMember) -> bool:
    """Save the member; a new epoch if that changes what is to be read by whom. Whether its subscription changed."""
    draft.describe(member)
    has_changed = (before.subscribed_topic_names, before.regex) != (
        member.subscribed_topic_names,
        member.regex,
    )
    is_stale = draft.group.is_metadata_stale
    is_resolved_anew = draft.resolve_regexes(again=is_stale)
    has_news = has_changed or is_resolved_anew or draft.epoch == 0
    if has_news or (is_stale and draft.has_metadata_changed()):
        draft.bump()
    if is_stale and draft.epoch == draft.group.epoch:
        draft.group.is_metadata_stale = False
    return has_changed or is_resolved_anew


def maybe_make_target(draft: Draft, assignors: dict[str, Assignor], settings: ConsumerSettings) -> None:
    if draft.epoch > draft.target_epoch:
        chosen = draft.group.preferred_assignor(draft.members.values(), settings.assignors[0])
        draft.make_target(assignors[chosen])


def settle(
    draft: Draft, member: ConsumerMember, owned: Assignment | None, has_subscription_changed: bool
) -> ConsumerMember:
    """Bring the member as near to its target as possible, and time what it has to do for it."""
    subscribed = existing_topics(draft.subscription_of(member), draft.topics)
    goal = Goal(
        draft.target_epoch,
        draft.target.get(member.member_id, NOTHING),
        {topic.topic_id for topic in subscribed},
        lambda topic_id, index: draft.is_free_for(member.member_id, topic_id, index),
    )
    settled = reconcile(member, goal, owned, has_subscription_changed=has_subscription_changed)
    draft.settle(settled)
    if settled is not member and settled.classic is None:
        time_revocation(settled, draft.group_id, draft.step)
    return settled


def time_revocation(member: ConsumerMember, group_id: str, step: Step) -> None:
    timer = RevocationTimer(group_id, member.member_id)
    if member.state is MemberState.UNREVOKED:
        step.set_timer(timer, member.rebalance_timeout_ms)
    else:
        step.cancel_timer(timer)


def cancel_timers(member_id: str, draft: Draft) -> None:
    for kind in (ConsumerSessionTimer, RevocationTimer, RejoinTimer, ResyncTimer):
        draft.step.cancel_timer(kind(draft.group_id, member_id))


# -- leaving ----------------------------------------------------------------------------------------------


def leave_for_a_while(draft: Draft, member: ConsumerMember) -> None:
    """Its partitions wait for it; its session goes on, and ends the wait."""
    draft.settle(
        dataclasses.replace(
            member,
            member_epoch=STATIC_LEAVING_EPOCH,
            pending_revocation=NOTHING,
        )
    )
    draft.step.cancel_timer(RevocationTimer(draft.group_id, member.member_id))


def remove(draft: Draft, member_ids: list[str]) -> None:
    """These are no members any more: what they had is free, and the next heartbeat makes a new target."""
    for member_id in member_ids:
        draft.drop(member_id)
        cancel_timers(member_id, draft)
    draft.resolve_regexes(again=False)
    draft.bump()
