"""CreateTopics (API 19)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Message):
    partition_index: int = int32()
    broker_ids: list[int] = array(INT32)


class CreatableTopicConfig(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)


class CreatableTopic(Message):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Message, versions=(2, 7), flexible=5):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class CreatableTopicConfigs(Message):
    name: str = string(since=5)
    value: str | None = string(since=5, nullable_since=5)
    read_only: bool = boolean(since=5)
    config_source: int = int8(default=-1, since=5)
    is_sensitive: bool = boolean(since=5)


class CreatableTopicResult(Message):
    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(default=-1, since=5)
    replication_factor: int = int16(default=-1, since=5)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable_since=5)


class CreateTopicsResponse(Message, versions=(2, 7), flexible=5):
    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
