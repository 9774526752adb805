"""OffsetForLeaderEpoch (API 23)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string


class OffsetForLeaderPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Message):
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Message, versions=(2, 4), flexible=4):
    replica_id: int = int32(default=-2, since=3)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class EpochEndOffset(Message):
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Message):
    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Message, versions=(2, 4), flexible=4):
    throttle_time_ms: int = int32()
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
