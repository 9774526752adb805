"""JoinGroup (API 11)."""

from tidemill.wire.schema import Message, array, blob, boolean, int16, int32, string


class JoinGroupRequestProtocol(Message):
    name: str = string()
    metadata: bytes = blob()


class JoinGroupRequest(Message, versions=(0, 9), flexible=6):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(default=-1, since=1)
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=5, nullable_since=5)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(default=None, since=8, nullable_since=8)


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=5, nullable_since=5)
    metadata: bytes = blob()


class JoinGroupResponse(Message, versions=(0, 9), flexible=6):
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(default=None, since=7, nullable_since=7)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
