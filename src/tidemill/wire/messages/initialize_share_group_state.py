"""InitializeShareGroupState (API 83)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string, uuid


class PartitionData(Message):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeStateData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class InitializeShareGroupStateRequest(Message, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[InitializeStateData] = array(InitializeStateData)


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class InitializeStateResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class InitializeShareGroupStateResponse(Message, versions=(0, 0), flexible=0):
    results: list[InitializeStateResult] = array(InitializeStateResult)
