"""OffsetFetch (API 9)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Message):
    name: str = string(until=7)
    partition_indexes: list[int] = array(INT32, until=7)


class OffsetFetchRequestTopics(Message):
    name: str = string(since=8, until=9)
    topic_id: bytes = uuid(since=10)
    partition_indexes: list[int] = array(INT32, since=8)


class OffsetFetchRequestGroup(Message):
    group_id: str = string(since=8)
    member_id: str | None = string(default=None, since=9, nullable_since=9)
    member_epoch: int = int32(default=-1, since=9)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, since=8, nullable_since=8)


class OffsetFetchRequest(Message, versions=(1, 10), flexible=6):
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Message):
    partition_index: int = int32(until=7)
    committed_offset: int = int64(until=7)
    committed_leader_epoch: int = int32(default=-1, since=5, until=7)
    metadata: str | None = string(until=7, nullable_since=0)
    error_code: int = int16(until=7)


class OffsetFetchResponseTopic(Message):
    name: str = string(until=7)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, until=7)


class OffsetFetchResponsePartitions(Message):
    partition_index: int = int32(since=8)
    committed_offset: int = int64(since=8)
    committed_leader_epoch: int = int32(default=-1, since=8)
    metadata: str | None = string(since=8, nullable_since=8)
    error_code: int = int16(since=8)


class OffsetFetchResponseTopics(Message):
    name: str = string(since=8, until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, since=8)


class OffsetFetchResponseGroup(Message):
    group_id: str = string(since=8)
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, since=8)
    error_code: int = int16(since=8)


class OffsetFetchResponse(Message, versions=(1, 10), flexible=6):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
