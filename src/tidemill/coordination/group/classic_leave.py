"""LeaveGroup to a classic group: versions 0-5.

From version 3 a request may name several members, each by member id, by instance id, or by both; an administrator
removes static members by instance id alone. Each is answered by itself. Before version 3 there is one member, and
its error is the error of the response.

    members: [(m-1, none), ("", instance-2), (m-9, none)]  ->  [NONE, NONE, UNKNOWN_MEMBER_ID], then one rebalance

A static member that closes does not leave: it wants to come back. It goes when its session ends, or is removed here.
"""

from __future__ import annotations

from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.classic_rebalance import after_members_left, drop_member
from tidemill.coordination.group.contract import NO_MEMBER_ID, GroupSettings, RequestContext, Step
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

FIRST_VERSION_WITH_MEMBERS = 3


def leaving_members(request: LeaveGroupRequest, context: RequestContext) -> list[MemberIdentity]:
    if context.api_version < FIRST_VERSION_WITH_MEMBERS:
        return [MemberIdentity(member_id=request.member_id)]
    return request.members


def unknown_members(leaving: list[MemberIdentity], code: ErrorCode) -> list[MemberResponse]:
    """Of a group that does not exist, or is of another kind."""
    return [
        MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
        )
        for identity in leaving
    ]


def leave_response(results: list[MemberResponse], context: RequestContext) -> LeaveGroupResponse:
    if context.api_version >= FIRST_VERSION_WITH_MEMBERS:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)


def leave(
    group: ClassicGroup,
    leaving: list[MemberIdentity],
    settings: GroupSettings,
    step: Step,
) -> list[MemberResponse]:
    results = [_leave_one(group, identity, step) for identity in leaving]
    if any(result.error_code == ErrorCode.NONE for result in results):
        after_members_left(group, settings, step)
    return results


def _leave_one(group: ClassicGroup, identity: MemberIdentity, step: Step) -> MemberResponse:
    result = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
    try:
        drop_member(group, _leaving_id(group, identity), step)
    except ApiError as failure:
        result.error_code = failure.code
    return result


def _leaving_id(group: ClassicGroup, identity: MemberIdentity) -> str:
    if identity.member_id in group.members.pending:
        return identity.member_id
    if identity.member_id != NO_MEMBER_ID:
        group.check_member(identity.member_id, identity.group_instance_id)
        return identity.member_id
    if identity.group_instance_id not in group.members.instances:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    assert identity.group_instance_id is not None
    return group.members.instances[identity.group_instance_id]
