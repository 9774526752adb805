"""How a classic group gets from one generation to the next.

A rebalance has two halves. In the first (PreparingRebalance) the coordinator waits until all members have joined
again, at most for the longest rebalance time-out among them; who has not come by then is out, unless it is a static
member: that one may be restarting and is given until its session ends. In the second (CompletingRebalance) it waits
for the leader's assignment, and for every member to ask for its own, again at most for the rebalance time-out.

The first rebalance of an empty group is different: the first member is there at once and alone. It waits
`group.initial.rebalance.delay.ms` for others, and as much again whenever somebody came meanwhile, in all no longer
than the rebalance time-out. Worked example, delay 3 s, rebalance time-out 10 s:

    0.0 s  A joins; due at 3 s (7 s remain)
    1.0 s  B joins
    3.0 s  somebody came: due at 6 s (4 s remain)
    6.0 s  nobody came: generation 1 with A and B
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.group.classic import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    InitialDelay,
    JoinTimer,
    SessionTimer,
    SyncTimer,
    join_failure,
)
from tidemill.coordination.group.contract import NO_MEMBER_ID, GroupSettings, Step
from tidemill.coordination.group.members import ClassicMember
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidemill.wire.messages.sync_group import SyncGroupResponse

# -- the first half: everybody joins ----------------------------------------------------------------------


def rebalance(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    """Something changed: begin a rebalance, or go on with the one that is under way."""
    if group.state in (EMPTY, COMPLETING, STABLE):
        prepare_rebalance(group, settings, step)
    else:
        maybe_complete_join(group, step)


def prepare_rebalance(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    if group.state is COMPLETING:
        group.fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, step)
    group.not_synced.clear()
    step.cancel_timer(SyncTimer(group.group_id))
    if group.state is EMPTY:
        _begin_initial_delay(group, settings, step)
        return
    group.become(PREPARING)
    if group.members.have_all_joined:
        complete_join(group, step)
    else:
        step.set_timer(JoinTimer(group.group_id), group.members.rebalance_timeout_ms)


def _begin_initial_delay(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    delay_ms = settings.initial_rebalance_delay_ms
    group.become(PREPARING)
    group.initial_delay = InitialDelay(delay_ms, max(group.members.rebalance_timeout_ms - delay_ms, 0))
    step.set_timer(JoinTimer(group.group_id), delay_ms)


def on_join_due(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    if group.state is not PREPARING:
        return
    initial = group.initial_delay
    if initial is None or not initial.has_new_member or initial.remaining_ms == 0:
        complete_join(group, step)
        return
    delay_ms = min(settings.initial_rebalance_delay_ms, initial.remaining_ms)
    group.initial_delay = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
    step.set_timer(JoinTimer(group.group_id), delay_ms)


def maybe_complete_join(group: ClassicGroup, step: Step) -> None:
    """If everybody is there; the initial delay is waited for to its end."""
    if group.state is PREPARING and group.initial_delay is None and group.members.have_all_joined:
        complete_join(group, step)


def complete_join(group: ClassicGroup, step: Step) -> None:
    """The time to join is over: who is here makes the next generation."""
    step.cancel_timer(JoinTimer(group.group_id))
    for member in group.members.not_rejoined():
        if not member.is_static:
            drop_member(group, member.member_id, step)
    if not len(group.members):
        step.append(group.empty_record(step.now_ms))
    elif not group.members.choose_rejoined_leader():
        step.set_timer(JoinTimer(group.group_id), group.members.rebalance_timeout_ms)
    else:
        group.begin_generation()
        for member in group.members:
            token = group.members.join_tokens.pop(member.member_id, None)
            if token is not None:
                step.reply(token, join_answer(group, member))
            group.restart_session(member, step)
            member.is_new = False
        step.set_timer(SyncTimer(group.group_id), group.members.rebalance_timeout_ms)


def join_answer(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """The leader alone is told who the others are."""
    is_leader = group.members.leader == member.member_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.members.leader or NO_MEMBER_ID,
        member_id=member.member_id,
        members=members_for_leader(group, group.members) if is_leader else [],
    )


def members_for_leader(
    group: ClassicGroup, members: Iterable[ClassicMember]
) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata_for(group.protocol),
        )
        for member in members
    ]


# -- the second half: everybody syncs ---------------------------------------------------------------------


def on_sync_due(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    """Members that never asked for their assignment are out, and the others start again."""
    if group.state not in (COMPLETING, STABLE) or not group.not_synced:
        return
    for member_id in list(group.not_synced):
        drop_member(group, member_id, step)
    prepare_rebalance(group, settings, step)


# -- members that go --------------------------------------------------------------------------------------


def drop_member(group: ClassicGroup, member_id: str, step: Step) -> None:
    """Without a rebalance: that is for the caller. Who waits is told that it is no member any more."""
    group.answer_join(member_id, join_failure(ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID), step)
    group.answer_sync(member_id, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), step)
    group.members.remove(member_id)
    group.not_synced.discard(member_id)
    step.cancel_timer(SessionTimer(group.group_id, member_id))


def on_session_due(group: ClassicGroup, member_id: str, settings: GroupSettings, step: Step) -> None:
    """Who waits for us is alive, as far as we know, except in its first join."""
    if member_id in group.members.pending:
        group.members.remove(member_id)
        maybe_complete_join(group, step)
        return
    member = group.members.get(member_id)
    if member is None:
        maybe_complete_join(group, step)  # it was the last one, and the record that says so was not written
        return
    if group.members.is_waiting(member_id) and not member.is_new:
        return
    if step.now_ms < member.session_due_ms:
        step.set_timer(SessionTimer(group.group_id, member_id), member.session_due_ms - step.now_ms)
        return
    drop_member(group, member_id, step)
    after_members_left(group, settings, step)


def after_members_left(group: ClassicGroup, settings: GroupSettings, step: Step) -> None:
    if group.state in (STABLE, COMPLETING):
        prepare_rebalance(group, settings, step)
    else:
        maybe_complete_join(group, step)
