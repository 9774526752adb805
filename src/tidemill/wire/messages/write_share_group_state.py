"""WriteShareGroupState (API 85)."""

from tidemill.wire.schema import Message, array, int8, int16, int32, int64, string, uuid


class StateBatch(Message):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class PartitionData(Message):
    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, since=1)
    state_batches: list[StateBatch] = array(StateBatch)


class WriteStateData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class WriteShareGroupStateRequest(Message, versions=(0, 1), flexible=0):
    group_id: str = string()
    topics: list[WriteStateData] = array(WriteStateData)


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class WriteStateResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class WriteShareGroupStateResponse(Message, versions=(0, 1), flexible=0):
    results: list[WriteStateResult] = array(WriteStateResult)
