"""OffsetCommit (API 8)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=6)
    committed_metadata: str | None = string(nullable_since=0)


class OffsetCommitRequestTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message, versions=(2, 10), flexible=8):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=7, nullable_since=7)
    retention_time_ms: int = int64(default=-1, until=4)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message, versions=(2, 10), flexible=8):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
