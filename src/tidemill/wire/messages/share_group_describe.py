"""ShareGroupDescribe (API 77)."""

from tidemill.wire.schema import INT32, STRING, Message, array, boolean, int16, int32, string, struct, uuid


class ShareGroupDescribeRequest(Message, versions=(1, 1), flexible=0):
    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = boolean()


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(INT32)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Member(Message):
    member_id: str = string()
    rack_id: str | None = string(default=None, nullable_since=0)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)
    assignment: Assignment = struct(Assignment)


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-2147483648)


class ShareGroupDescribeResponse(Message, versions=(1, 1), flexible=0):
    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
