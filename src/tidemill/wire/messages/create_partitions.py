"""CreatePartitions (API 37)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Message):
    broker_ids: list[int] = array(INT32)


class CreatePartitionsTopic(Message):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable_since=0)


class CreatePartitionsRequest(Message, versions=(0, 3), flexible=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Message):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class CreatePartitionsResponse(Message, versions=(0, 3), flexible=2):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
