"""Heartbeat (API 12)."""

from tidemill.wire.schema import Message, int16, int32, string


class HeartbeatRequest(Message, versions=(0, 4), flexible=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)


class HeartbeatResponse(Message, versions=(0, 4), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
