"""Produce (API 0)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, records, string, struct, uuid


class PartitionProduceData(Message):
    index: int = int32()
    records: bytes | None = records(nullable_since=0)


class TopicProduceData(Message):
    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message, versions=(3, 13), flexible=9):
    transactional_id: str | None = string(default=None, nullable_since=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Message):
    batch_index: int = int32(since=8)
    batch_index_error_message: str | None = string(default=None, since=8, nullable_since=8)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1, since=10)
    leader_epoch: int = int32(default=-1, since=10)


class PartitionProduceResponse(Message):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(default=-1, since=5)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(default=None, since=8, nullable_since=8)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Message):
    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Message):
    node_id: int = int32(since=10)
    host: str = string(since=10)
    port: int = int32(since=10)
    rack: str | None = string(default=None, since=10, nullable_since=10)


class ProduceResponse(Message, versions=(3, 13), flexible=9):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
