"""How a group changes its protocol while its members go on reading, in both directions.

*Upgrade.* The first member of the newer protocol that joins a classic group makes it a consumer group, in the records
of that join: the classic group's tombstone, then every member with the assignment it has, then the newcomer. The epoch
goes on from the generation. The old members keep speaking the classic protocol (`consumer_classic`): at their next
heartbeat they are told to join again, and get what the assignor gives them. A cooperative member may just be giving up
what its last assignment lacks: what it said that it owns, and nobody was given since, is its own until it joins again.

*Downgrade.* When the last member of the newer protocol is gone and others are left, the group becomes classic again:
its tombstones and one record of a classic group, with the assignments that the members have. They were not made by a
leader, and the partitions of the member that left are nobody's: the group has to rebalance at once. The record says
so by having members and no leader, so that a broker which crashes in between knows it when it has loaded the record.

    classic (generation 7)  --B joins, newer protocol-->  consumer (epoch 8)  --B leaves-->  classic (generation 8)

The generation is the epoch of before, which members may have: they go on committing until they have joined again.

An empty group of either kind becomes one of the other kind by the first join. `group.consumer.migration.policy` says
which directions are allowed for groups that are not empty.

Limits: a subscription or assignment that is not that of a consumer (Connect, Schema Registry) cannot be upgraded.
"""

from __future__ import annotations

import dataclasses
import functools

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group import consumer_records as records
from tidemill.coordination.group.assignments import minus, plus
from tidemill.coordination.group.assignor import NOTHING, Assignment
from tidemill.coordination.group.classic import ClassicGroup, ReassignTimer, SessionTimer, join_failure
from tidemill.coordination.group.classic_subscription import (
    Subscription,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import (
    ClassicFacts,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    apply,
)
from tidemill.coordination.group.contract import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerSettings,
    GroupSettings,
    Step,
)
from tidemill.coordination.group.members import ClassicMember
from tidemill.coordination.group.modern import Topics
from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage

# -- classic to consumer ----------------------------------------------------------------------------------


def draft_of_upgrade(
    classic: ClassicGroup, group: ConsumerGroup, settings: ConsumerSettings, topics: Topics, step: Step
) -> Draft:
    """A draft of the classic group as a consumer group, and the records that make it one."""
    if classic.is_empty:
        if classic.stored is not None:
            step.records.extend(classic.tombstones())
        return Draft(group, topics, step)
    _check_upgrade(classic, settings)
    try:
        members = _consumer_members(classic, topics)
    except MalformedMessage as failure:
        raise _refusal(classic, "its members are not plain consumers") from failure
    conversion = _conversion(classic, members, step.now_ms)
    for record in conversion:
        apply(group, record)
    step.records.extend([*classic.tombstones(), *conversion])
    draft = Draft(group, topics, step)
    draft.afterwards.append(lambda: _hand_over(classic, group, step))
    return draft


def _check_upgrade(classic: ClassicGroup, settings: ConsumerSettings) -> None:
    if not settings.allows_upgrade:
        raise _refusal(classic, "its migration is disabled")
    if not classic.uses_consumer_protocol:
        raise _refusal(classic, "its members are not consumers")
    if len(classic.members) > settings.max_size:
        raise _refusal(classic, "it has too many members")


def _refusal(classic: ClassicGroup, reason: str) -> ApiError:
    message = f"{classic.group_id} is a classic group and cannot become a consumer group: {reason}"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_members(classic: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    subscriptions = [_subscription(classic, member) for member in classic.members]
    members = [
        _consumer_member(classic, member, subscription, topics)
        for member, subscription in zip(classic.members, subscriptions, strict=True)
    ]
    taken: Assignment = functools.reduce(plus, (member.assigned for member in members), NOTHING)
    for number, subscription in enumerate(subscriptions):
        owned = {entry.topic: frozenset(entry.partitions) for entry in subscription.owned_partitions}
        pending = minus(by_topic_id(owned, topics), taken)
        if pending:
            taken = plus(taken, pending)
            members[number] = dataclasses.replace(
                members[number], state=MemberState.UNREVOKED, pending_revocation=pending
            )
    return members


def _subscription(classic: ClassicGroup, member: ClassicMember) -> Subscription:
    return read_subscription(member.metadata_for(classic.protocol) or member.protocols[0][1])


def _consumer_member(
    classic: ClassicGroup, member: ClassicMember, subscription: Subscription, topics: Topics
) -> ConsumerMember:
    assigned = by_topic_id(read_assignment(member.assignment), topics)
    return ConsumerMember(
        member.member_id,
        classic.generation,
        classic.generation,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        frozenset(subscription.topics),
        assigned,
        instance_id=member.instance_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicFacts(member.session_timeout_ms, member.protocols),
    )


def _conversion(classic: ClassicGroup, members: list[ConsumerMember], now_ms: int) -> list[CoordinatorRecord]:
    group_id, epoch = classic.group_id, classic.generation
    return [
        *(records.member_record(group_id, member) for member in members),
        records.epoch_record(group_id, epoch, 0),
        *(records.target_record(group_id, member.member_id, member.assigned) for member in members),
        records.target_epoch_record(group_id, epoch, now_ms),
        *(records.current_record(group_id, member) for member in members),
    ]


def _hand_over(classic: ClassicGroup, group: ConsumerGroup, step: Step) -> None:
    """Who waits joins again; timers of the classic group find it gone and do nothing."""
    code = ErrorCode.REBALANCE_IN_PROGRESS
    for member_id in list(classic.members.join_tokens):
        classic.answer_join(member_id, join_failure(code, member_id), step)
    classic.fail_syncs(code, step)
    for member in group.members.values():
        group.restart_session(member, step)


# -- consumer to classic ----------------------------------------------------------------------------------


def downgrade(group: ConsumerGroup, settings: GroupSettings, topics: Topics, step: Step) -> None:
    """If only members of the classic protocol are left, and it is allowed."""
    fits = len(group.members) <= settings.max_size
    if not (group.has_only_classic_members and settings.consumer.allows_downgrade and fits):
        return
    classic = ClassicGroup(group.group_id)
    known_epochs = [member.member_epoch for member in group.members.values()]
    before_the_last_left = group.epoch - 1
    classic.generation = max(before_the_last_left, *known_epochs)
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member in group.members.values():
        classic.members.add(_classic_member(member, topics))
        step.set_timer(SessionTimer(group.group_id, member.member_id), _facts(member).session_timeout_ms)
    classic.protocol = classic.members.elect()
    stored = [classic.stored_form(member, member.assignment) for member in classic.members]
    step.records.extend(group.tombstones())
    step.append(classic.record(stored, None, step.now_ms))
    step.set_timer(ReassignTimer(group.group_id), 0)


def _facts(member: ConsumerMember) -> ClassicFacts:
    assert member.classic is not None
    return member.classic


def _classic_member(member: ConsumerMember, topics: Topics) -> ClassicMember:
    facts = _facts(member)
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        facts.session_timeout_ms,
        facts.protocols,
        assignment_bytes(member, topics),
    )


# -- names and ids ----------------------------------------------------------------------------------------


def by_topic_id(named: dict[str, frozenset[int]], topics: Topics) -> Assignment:
    """Without topics that do not exist."""
    found = ((topics.by_name(name), indexes) for name, indexes in named.items())
    return {topic.topic_id: indexes for topic, indexes in found if topic is not None and indexes}


def assignment_bytes(member: ConsumerMember, topics: Topics) -> bytes:
    """The member's assignment as a classic leader would have sent it, in the version that the member speaks."""
    found = ((topics.by_id(topic_id), indexes) for topic_id, indexes in member.assigned.items())
    named = {topic.name: indexes for topic, indexes in found if topic is not None}
    return write_assignment(named, version_of(_facts(member).protocols[0][1]))
