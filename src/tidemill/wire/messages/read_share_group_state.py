"""ReadShareGroupState (API 84)."""

from tidemill.wire.schema import Message, array, int8, int16, int32, int64, string, uuid


class PartitionData(Message):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class ReadShareGroupStateRequest(Message, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)


class StateBatch(Message):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    state_epoch: int = int32()
    start_offset: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)


class ReadStateResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class ReadShareGroupStateResponse(Message, versions=(0, 0), flexible=0):
    results: list[ReadStateResult] = array(ReadStateResult)
