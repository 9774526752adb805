"""DescribeTopicPartitions (API 75)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Message):
    name: str = string()


class Cursor(Message):
    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message, versions=(0, 0), flexible=0):
    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, default=None, nullable_since=0)


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    eligible_leader_replicas: list[int] | None = array(INT32, default=None, nullable_since=0)
    last_known_elr: list[int] | None = array(INT32, default=None, nullable_since=0)
    offline_replicas: list[int] = array(INT32)


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable_since=0)
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=-2147483648)


class DescribeTopicPartitionsResponse(Message, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, default=None, nullable_since=0)
