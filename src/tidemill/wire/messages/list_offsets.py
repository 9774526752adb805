"""ListOffsets (API 2)."""

from tidemill.wire.schema import Message, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Message):
    partition_index: int = int32()
    current_leader_epoch: int = int32(default=-1, since=4)
    timestamp: int = int64()


class ListOffsetsTopic(Message):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Message, versions=(1, 11), flexible=6):
    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


class ListOffsetsPartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(default=-1, since=4)


class ListOffsetsTopicResponse(Message):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message, versions=(1, 11), flexible=6):
    throttle_time_ms: int = int32(since=2)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
