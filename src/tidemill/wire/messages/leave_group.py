"""LeaveGroup (API 13)."""

from tidemill.wire.schema import Message, array, int16, int32, string


class MemberIdentity(Message):
    member_id: str = string(since=3)
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)
    reason: str | None = string(default=None, since=5, nullable_since=5)


class LeaveGroupRequest(Message, versions=(0, 5), flexible=4):
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Message):
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_since=3)
    error_code: int = int16(since=3)


class LeaveGroupResponse(Message, versions=(0, 5), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
