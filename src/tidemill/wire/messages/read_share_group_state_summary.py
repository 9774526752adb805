"""ReadShareGroupStateSummary (API 87)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string, uuid


class PartitionData(Message):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateSummaryData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class ReadShareGroupStateSummaryRequest(Message, versions=(0, 1), flexible=0):
    group_id: str = string()
    topics: list[ReadStateSummaryData] = array(ReadStateSummaryData)


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, since=1)


class ReadStateSummaryResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class ReadShareGroupStateSummaryResponse(Message, versions=(0, 1), flexible=0):
    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)
