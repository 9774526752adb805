"""JoinGroup to a classic group: versions 0-9.

Who joins, and what happens:

    member id | instance id | known?                  | outcome
    ----------+-------------+-------------------------+--------------------------------------------------------------
    empty     | none        |                         | from version 4 an id to come back with (MEMBER_ID_REQUIRED), so
              |             |                         | that a client which retries leaves no ghosts; before: a member
    empty     | given       | instance unknown        | a new member
    empty     | given       | instance known          | takes the place of its predecessor, which is fenced; in a Stable
              |             |                         | group without a rebalance, if the protocol stays the same
    given     | none        | pending                 | a member
    given     | any         | no                      | UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID
    given     | any         | yes, PreparingRebalance | waits with the others
    given     | any         | yes, same metadata      | the current generation once more, unless it is the leader of a
              |             |                         | Stable group: that one asks for a rebalance
    given     | any         | yes, other metadata     | a rebalance

Version notes: 0 has no rebalance time-out (the session time-out counts); before 7 a protocol name is never null; from 9
a static leader that came back may be told to skip the assignment: nothing has changed, the stored one holds.
"""

from __future__ import annotations

import uuid

from tidemill.coordination.core import Token
from tidemill.coordination.group.classic import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    SessionTimer,
    join_failure,
)
from tidemill.coordination.group.classic_rebalance import (
    drop_member,
    join_answer,
    maybe_complete_join,
    members_for_leader,
    prepare_rebalance,
    rebalance,
)
from tidemill.coordination.group.contract import NO_MEMBER_ID, GroupSettings, RequestContext, Step
from tidemill.coordination.group.members import ClassicMember, Protocols
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import Randomness
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.messages.sync_group import SyncGroupResponse

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_REQUIRED_MEMBER_ID = 4
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9


def check_join(request: JoinGroupRequest, settings: GroupSettings) -> ErrorCode:
    """What can be said without the group."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


class Join:
    """One JoinGroup request on its way through the rules."""

    def __init__(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        context: RequestContext,
        token: Token,
        step: Step,
    ) -> None:
        self._group = group
        self._members = group.members
        self._request = request
        self._context = context
        self._token = token
        self._step = step
        self._protocols: Protocols = tuple([(entry.name, entry.metadata) for entry in request.protocols])

    def run(self, settings: GroupSettings, randomness: Randomness) -> None:
        """The request is answered, or waits."""
        request = self._request
        is_unknown = request.member_id == NO_MEMBER_ID
        if not self._has_room(settings.max_size):
            drop_member(self._group, request.member_id, self._step)
            self._refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
            maybe_complete_join(self._group, self._step)
        elif not self._group.can_do_one_of(request.protocol_type, self._protocols):
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not is_unknown:
            self._known(settings)
        elif request.group_instance_id is not None:
            self._static(self._new_id(request.group_instance_id, randomness), settings)
        else:
            self._dynamic(self._new_id(self._context.client_id, randomness), settings)

    def _has_room(self, max_size: int) -> bool:
        """In a rebalance those count who have rejoined: if the limit was lowered, the last to come are out."""
        member_id = self._request.member_id
        if self._group.state is EMPTY:
            return True
        if self._group.state is PREPARING:
            return member_id in self._members.join_tokens or len(self._members.join_tokens) < max_size
        return member_id in self._members or len(self._members) < max_size

    def _new_id(self, prefix: str, randomness: Randomness) -> str:
        return f"{prefix}-{uuid.UUID(bytes=randomness.uuid())}"

    # -- new members ------------------------------------------------------------------------------------

    def _dynamic(self, member_id: str, settings: GroupSettings) -> None:
        if self._context.api_version < FIRST_VERSION_WITH_REQUIRED_MEMBER_ID:
            self._add(member_id, settings)
            return
        self._members.pending.add(member_id)
        self._step.set_timer(SessionTimer(self._group.group_id, member_id), self._request.session_timeout_ms)
        self._refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _static(self, member_id: str, settings: GroupSettings) -> None:
        assert self._request.group_instance_id is not None
        predecessor = self._members.instances.get(self._request.group_instance_id)
        if predecessor is None:
            self._add(member_id, settings)
        else:
            self._succeed(predecessor, self._member(member_id), settings)

    def _add(self, member_id: str, settings: GroupSettings) -> None:
        """A new member has no session yet: it cannot send heartbeats while it waits."""
        group = self._group
        member = self._member(member_id)
        member.is_new = True
        if not len(self._members):
            group.protocol_type = self._request.protocol_type
        if group.initial_delay is not None:
            group.initial_delay.has_new_member = True
        self._members.add(member)
        self._wait(member_id)
        group.restart_session(member, self._step, settings.new_member_join_timeout_ms)
        rebalance(group, settings, self._step)

    def _member(self, member_id: str) -> ClassicMember:
        request = self._request
        return ClassicMember(
            member_id,
            request.group_instance_id,
            self._context.client_id,
            self._context.client_host,
            self._rebalance_timeout_ms,
            request.session_timeout_ms,
            self._protocols,
        )

    @property
    def _rebalance_timeout_ms(self) -> int:
        if self._context.api_version < FIRST_VERSION_WITH_REBALANCE_TIMEOUT:
            return self._request.session_timeout_ms
        return self._request.rebalance_timeout_ms

    # -- a static member comes back ---------------------------------------------------------------------

    def _succeed(self, old_member_id: str, successor: ClassicMember, settings: GroupSettings) -> None:
        successor.assignment = self._members[old_member_id].assignment
        if self._group.state is STABLE and self._keeps_protocol(old_member_id, successor):
            self._store_successor(old_member_id, successor)
            return
        self._replace(old_member_id, successor)
        self._wait(successor.member_id)
        if self._group.state is PREPARING:
            maybe_complete_join(self._group, self._step)
        else:
            prepare_rebalance(self._group, settings, self._step)

    def _keeps_protocol(self, old_member_id: str, successor: ClassicMember) -> bool:
        """Would the group, with the successor in it, choose the protocol that it has?"""
        member = self._members[old_member_id]
        before = member.protocols
        self._members.set_protocols(member, successor.protocols)
        chosen = self._members.elect()
        self._members.set_protocols(member, before)
        return chosen == self._group.protocol

    def _store_successor(self, old_member_id: str, successor: ClassicMember) -> None:
        """No rebalance: the new id is stored with the old assignment, and counts when that is replayed.

        The session of the old id is left to end: until the record is replayed that is the member.
        """
        group, step = self._group, self._step
        was_leader = self._members.leader == old_member_id
        leader = successor.member_id if was_leader else self._members.leader
        heirs = [successor if member.member_id == old_member_id else member for member in self._members]
        group.successors[successor.member_id] = successor
        step.append(
            group.record([group.stored_form(heir, heir.assignment) for heir in heirs], leader, step.now_ms)
        )
        group.restart_session(successor, step)
        step.reply(self._token, self._successor_answer(successor, heirs, was_leader))

    def _successor_answer(
        self, successor: ClassicMember, heirs: list[ClassicMember], is_leader: bool
    ) -> JoinGroupResponse:
        """It must not assign: if it led, an old client is told its old id as leader, a new one to skip it."""
        response = JoinGroupResponse(
            generation_id=self._group.generation,
            protocol_type=self._group.protocol_type,
            protocol_name=self._group.protocol,
            leader=self._members.leader or NO_MEMBER_ID,
            member_id=successor.member_id,
        )
        if is_leader and self._context.api_version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
            response.leader = successor.member_id
            response.skip_assignment = True
            response.members = members_for_leader(self._group, heirs)
        return response

    def _replace(self, old_member_id: str, successor: ClassicMember) -> None:
        """Whoever waits under the old id is a zombie."""
        group, step = self._group, self._step
        code = ErrorCode.FENCED_INSTANCE_ID
        group.answer_join(old_member_id, join_failure(code, old_member_id), step)
        group.answer_sync(old_member_id, SyncGroupResponse(error_code=code), step)
        step.cancel_timer(SessionTimer(group.group_id, old_member_id))
        self._members.replace(old_member_id, successor)
        group.not_synced.discard(old_member_id)
        group.restart_session(successor, step)

    # -- members that we know ---------------------------------------------------------------------------

    def _known(self, settings: GroupSettings) -> None:
        member_id, instance_id = self._request.member_id, self._request.group_instance_id
        if member_id in self._members.pending:
            if instance_id is not None:
                self._refuse(ErrorCode.UNKNOWN_SERVER_ERROR, NO_MEMBER_ID)
            else:
                self._add(member_id, settings)
            return
        try:
            self._group.check_member(member_id, instance_id)
        except ApiError as failure:
            self._refuse(failure.code)
            return
        self._rejoin(self._members.by_id[member_id], settings)

    def _rejoin(self, member: ClassicMember, settings: GroupSettings) -> None:
        group = self._group
        is_stable_leader = group.state is STABLE and self._members.leader == member.member_id
        is_same = member.protocols == self._protocols
        if group.state in (COMPLETING, STABLE) and is_same and not is_stable_leader:
            self._step.reply(self._token, join_answer(group, member))
            return
        self._members.set_protocols(member, self._protocols)
        member.rebalance_timeout_ms = self._rebalance_timeout_ms
        member.session_timeout_ms = self._request.session_timeout_ms
        self._wait(member.member_id)
        rebalance(group, settings, self._step)

    # -- answers ----------------------------------------------------------------------------------------

    def _wait(self, member_id: str) -> None:
        """A member that asks twice waits once: the older request is sent back."""
        waiting = self._members.join_tokens
        if member_id in waiting:
            failure = join_failure(ErrorCode.REBALANCE_IN_PROGRESS, member_id)
            self._step.reply(waiting[member_id], failure)
        waiting[member_id] = self._token

    def _refuse(self, code: ErrorCode, member_id: str | None = None) -> None:
        answer_to = self._request.member_id if member_id is None else member_id
        self._step.reply(self._token, join_failure(code, answer_to))
