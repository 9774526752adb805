"""SyncGroup (API 14)."""

from tidemill.wire.schema import Message, array, blob, int16, int32, string


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = blob()


class SyncGroupRequest(Message, versions=(0, 5), flexible=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)
    protocol_type: str | None = string(default=None, since=5, nullable_since=5)
    protocol_name: str | None = string(default=None, since=5, nullable_since=5)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, versions=(0, 5), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(default=None, since=5, nullable_since=5)
    protocol_name: str | None = string(default=None, since=5, nullable_since=5)
    assignment: bytes = blob()
