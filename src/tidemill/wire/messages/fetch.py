"""Fetch (API 1)."""

from tidemill.wire.schema import (
    INT32,
    Message,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ReplicaState(Message):
    replica_id: int = int32(default=-1, since=15)
    replica_epoch: int = int64(default=-1, since=15)


class FetchPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, since=9)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(default=-1, since=12)
    log_start_offset: int = int64(default=-1, since=5)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(since=17, tag=0)
    high_watermark: int = int64(default=9223372036854775807, since=18, tag=1)


class FetchTopic(Message):
    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Message):
    topic: str = string(since=7, until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[int] = array(INT32, since=7)


class FetchRequest(Message, versions=(4, 18), flexible=12):
    cluster_id: str | None = string(default=None, since=12, nullable_since=12, tag=0)
    replica_id: int = int32(default=-1, until=14)
    replica_state: ReplicaState = struct(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2147483647)
    isolation_level: int = int8()
    session_id: int = int32(since=7)
    session_epoch: int = int32(default=-1, since=7)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


class EpochEndOffset(Message):
    epoch: int = int32(default=-1, since=12)
    end_offset: int = int64(default=-1, since=12)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1, since=12)
    leader_epoch: int = int32(default=-1, since=12)


class SnapshotId(Message):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Message):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(default=-1, since=5)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable_since=4)
    preferred_read_replica: int = int32(default=-1, since=11)
    records: bytes | None = records(nullable_since=0)


class FetchableTopicResponse(Message):
    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Message):
    node_id: int = int32(since=16)
    host: str = string(since=16)
    port: int = int32(since=16)
    rack: str | None = string(default=None, since=16, nullable_since=16)


class FetchResponse(Message, versions=(4, 18), flexible=12):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
