"""TxnOffsetCommit (API 28)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string


class TxnOffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=2)
    committed_metadata: str | None = string(nullable_since=0)


class TxnOffsetCommitRequestTopic(Message):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Message, versions=(0, 5), flexible=3):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(default=-1, since=3)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Message):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Message, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
