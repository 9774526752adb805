"""How one member of a consumer group gets from what it has to what it is to have: revoke first, then assign.

The rule that nothing may break: a partition is given to a member only when no other member owns it. Who has to give
a partition up keeps its epoch until it says, by listing what it owns, that it has done so.

    member A has 0 1 2 3 at epoch 4; the target of epoch 5 gives 2 3 to B, which has just joined

    heartbeat   state       epoch  assigned  pending   told
    ----------  ----------  -----  --------  -------   -------------------------------------------
    B joins     UNRELEASED  5      -         -         nothing: 2 and 3 are A's
    A           UNREVOKED   4      0 1       2 3       read 0 1 only
    A owns 0 1  STABLE      5      0 1       -         (nothing changed)
    B           STABLE      5      2 3       -         read 2 3

`reconcile` is a pure function: the member as it is, in; the member as it is to be, out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set

from tidemill.coordination.group.assignments import NO_PARTITIONS, minus, nonempty, plus
from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.group.consumer_group import ConsumerMember, MemberState
from tidemill.model.errors import ApiError, ErrorCode


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """What a member is to get to, and what it is allowed to take on the way."""

    epoch: int
    target: Assignment
    subscribed_ids: Set[bytes]
    """Of the topics that it subscribes to now, which may be ahead of the target."""
    is_free: Callable[[bytes, int], bool]
    """Whether nobody else owns the partition."""


def reconcile(
    member: ConsumerMember, goal: Goal, owned: Assignment | None, *, has_subscription_changed: bool
) -> ConsumerMember:
    """The next state of the member; `owned` is what it says that it owns, None if it says nothing."""
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH, "the state of the member is unknown: it must rejoin"
            )
        return _advance(member, goal, owned)
    if member.state is MemberState.STABLE and member.member_epoch == goal.epoch:
        return _strip(member, goal, owned) if has_subscription_changed else member
    if member.state is MemberState.UNREVOKED and _overlaps(owned, member.pending_revocation):
        return _strip(member, goal, owned) if has_subscription_changed else member
    return _advance(member, goal, owned)


def _overlaps(owned: Assignment | None, revoked: Assignment) -> bool:
    """Whether the member still owns some of these; who says nothing still does."""
    if owned is None:
        return bool(revoked)
    return any(owned.get(topic_id, NO_PARTITIONS) & indexes for topic_id, indexes in revoked.items())


def _advance(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    wanted = {
        topic_id: indexes for topic_id, indexes in goal.target.items() if topic_id in goal.subscribed_ids
    }
    kept = nonempty({topic: member.assigned.get(topic, NO_PARTITIONS) & wanted[topic] for topic in wanted})
    revoked = minus(member.assigned, kept)
    if revoked and _overlaps(owned, revoked):
        return _changed(member, goal, member.member_epoch, MemberState.UNREVOKED, kept, revoked)
    missing = minus(wanted, kept)
    taken = nonempty(
        {
            topic_id: frozenset(index for index in indexes if goal.is_free(topic_id, index))
            for topic_id, indexes in missing.items()
        }
    )
    state = MemberState.UNRELEASED if taken != missing else MemberState.STABLE
    return _changed(member, goal, goal.epoch, state, plus(kept, taken), {})


def _strip(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    """Topics that it does not subscribe to any more have to go, whatever the target says."""
    kept = {topic: indexes for topic, indexes in member.assigned.items() if topic in goal.subscribed_ids}
    if len(kept) == len(member.assigned):
        return member
    revoked = plus(member.pending_revocation, minus(member.assigned, kept))
    if _overlaps(owned, revoked):
        return _changed(member, goal, member.member_epoch, MemberState.UNREVOKED, kept, revoked)
    return _changed(member, goal, member.member_epoch, member.state, kept, {})


def _changed(
    member: ConsumerMember,
    goal: Goal,
    epoch: int,
    state: MemberState,
    assigned: Assignment,
    pending: Assignment,
) -> ConsumerMember:
    """Partitions that are new to it are its own from the goal's epoch on."""
    known = member.assignment_epochs
    epochs = {
        (topic_id, index): known.get((topic_id, index), goal.epoch)
        for assignment in (assigned, pending)
        for topic_id, indexes in assignment.items()
        for index in indexes
    }
    return dataclasses.replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending,
        assignment_epochs=epochs,
    )
