"""DeleteShareGroupState (API 86)."""

from tidemill.wire.schema import Message, array, int16, int32, string, uuid


class PartitionData(Message):
    partition: int = int32()


class DeleteStateData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class DeleteShareGroupStateRequest(Message, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[DeleteStateData] = array(DeleteStateData)


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class DeleteStateResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class DeleteShareGroupStateResponse(Message, versions=(0, 0), flexible=0):
    results: list[DeleteStateResult] = array(DeleteStateResult)
