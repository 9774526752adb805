"""SyncGroup (versions 0-5) and Heartbeat (versions 0-4) to a classic group.

In CompletingRebalance everybody asks for its assignment; only the leader brings them. With the leader's request the
generation is stored in one record, and all who wait are answered when that record is committed, so that nobody acts
on an assignment that a restart would forget. Who asks later finds the group Stable and is answered at once.

Members that the leader forgot get an empty assignment; assignments for strangers are dropped.

If the record cannot be written, those who waited get the error, and the group stays in CompletingRebalance: they join
again, are told the same generation, and sync again.
"""

from __future__ import annotations

from tidemill.coordination.core import Token
from tidemill.coordination.group.classic import COMPLETING, EMPTY, PREPARING, ClassicGroup
from tidemill.coordination.group.contract import RequestContext, Step
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL = 5
"""From here on both protocol type and name are mandatory in a SyncGroup request."""


def lacks_protocol(request: SyncGroupRequest, context: RequestContext) -> bool:
    is_mandatory = context.api_version >= FIRST_VERSION_WITH_PROTOCOL
    return is_mandatory and None in (request.protocol_type, request.protocol_name)


def sync(group: ClassicGroup, request: SyncGroupRequest, token: Token, step: Step) -> None:
    try:
        _check_sync(group, request)
    except ApiError as failure:
        step.reply(token, SyncGroupResponse(error_code=failure.code))
        return
    member_id, waiting = request.member_id, group.members.sync_tokens
    group.not_synced.discard(member_id)
    if group.state is not COMPLETING:
        step.reply(token, _assigned(group, group.members[member_id].assignment))
        return
    if member_id in waiting:  # it asks twice: the older request is sent back
        step.reply(waiting[member_id], SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    waiting[member_id] = token
    if group.members.leader == member_id:
        _store_assignments(group, request, step)


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> None:
    group.check_generation(request.member_id, request.group_instance_id, request.generation_id)
    if request.protocol_type not in (None, group.protocol_type):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name not in (None, group.protocol):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is PREPARING:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)


def _store_assignments(group: ClassicGroup, request: SyncGroupRequest, step: Step) -> None:
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    stored = [group.stored_form(member, assignments.get(member.member_id, b"")) for member in group.members]
    step.append(group.record(stored, group.members.leader, step.now_ms))
    for entry in stored:
        token = group.members.sync_tokens.pop(entry.member_id, None)
        if token is not None:
            step.reply(token, _assigned(group, entry.assignment))
            group.restart_session(group.members.by_id[entry.member_id], step)


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


_ALL_IS_WELL = HeartbeatResponse()
_REBALANCE = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)


def heartbeat(group: ClassicGroup, request: HeartbeatRequest, token: Token, step: Step) -> None:
    try:
        group.check_generation(request.member_id, request.group_instance_id, request.generation_id)
    except ApiError as failure:
        step.reply(token, HeartbeatResponse(error_code=failure.code))
        return
    assert group.state is not EMPTY, "an empty group has no member that could pass the check"
    group.restart_session(group.members.by_id[request.member_id], step)
    step.reply(token, _REBALANCE if group.state is PREPARING else _ALL_IS_WELL)
