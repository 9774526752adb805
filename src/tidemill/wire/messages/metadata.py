"""Metadata (API 3)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Message):
    topic_id: bytes = uuid(since=10)
    name: str | None = string(nullable_since=10)


class MetadataRequest(Message, versions=(0, 13), flexible=9):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(default=True, since=4)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(default=None, since=1, nullable_since=1)


class MetadataResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, since=7)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    offline_replicas: list[int] = array(INT32, since=5)


class MetadataResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(default=-2147483648, since=8)


class MetadataResponse(Message, versions=(0, 13), flexible=9):
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(default=None, since=2, nullable_since=2)
    controller_id: int = int32(default=-1, since=1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(default=-2147483648, since=8, until=10)
    error_code: int = int16(since=13)
