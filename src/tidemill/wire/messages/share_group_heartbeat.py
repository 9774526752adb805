"""ShareGroupHeartbeat (API 76)."""

from tidemill.wire.schema import INT32, STRING, Message, array, int16, int32, string, struct, uuid


class ShareGroupHeartbeatRequest(Message, versions=(1, 1), flexible=0):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(default=None, nullable_since=0)
    subscribed_topic_names: list[str] | None = array(STRING, default=None, nullable_since=0)


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ShareGroupHeartbeatResponse(Message, versions=(1, 1), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    member_id: str | None = string(default=None, nullable_since=0)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, default=None, nullable_since=0)
