"""The records of the group coordinator in `__consumer_offsets`, in Kafka's schemas."""

from tidemill.wire.schema import INT32, STRING, Message, array, blob, int8, int32, int64, string, struct, uuid


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)
    assignment_epochs: list[int] | None = array(INT32, nullable_since=0, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Message):
    name: str = string()
    metadata: bytes = blob()


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    instance_id: str | None = string(nullable_since=0)
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = string(nullable_since=0)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable_since=0)
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, nullable_since=0, tag=0
    )


class ConsumerGroupMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class PartitionMetadata(Message):
    partition: int = int32()
    racks: list[str] = array(STRING)


class TopicMetadata(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible=0):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupRegularExpressionKey(Message, versions=(0, 0)):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible=0):
    topics: list[str] = array(STRING)
    version: int = int64()
    timestamp: int = int64()


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartition] = array(TopicPartition)


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class GroupMetadataKey(Message, versions=(0, 0)):
    group: str = string()


class MemberMetadata(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(default=-1, since=1)
    session_timeout: int = int32()
    subscription: bytes = blob()
    assignment: bytes = blob()


class GroupMetadataValue(Message, versions=(0, 4), flexible=4):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0)
    leader: str | None = string(nullable_since=0)
    current_state_timestamp: int = int64(default=-1, since=2)
    members: list[MemberMetadata] = array(MemberMetadata)


class LegacyOffsetCommitKey(Message, versions=(0, 0)):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class LegacyOffsetCommitValue(Message, versions=(0, 0)):
    offset: int = int64()
    metadata: str = string()
    commit_timestamp: int = int64()


class OffsetCommitKey(Message, versions=(0, 0)):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    offset: int = int64()
    leader_epoch: int = int32(default=-1, since=3)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(default=-1, since=1, until=1)
    topic_id: bytes = uuid(since=4, tag=0)


class ShareGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class TopicPartitionsResponse(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)


class ShareGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitionsResponse] = array(TopicPartitionsResponse)


class ShareGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class ShareGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)


class ShareGroupMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ShareGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()
    metadata_hash: int = int64()


class ShareGroupStatePartitionMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class TopicPartitionsInfo(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(INT32)


class TopicInfo(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()


class ShareGroupStatePartitionMetadataValue(Message, versions=(0, 0), flexible=0):
    initializing_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo)
    initialized_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo)
    deleting_topics: list[TopicInfo] = array(TopicInfo)


class ShareGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class ShareGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartition] = array(TopicPartition)


class ShareGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ShareGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


RECORD_TYPES: dict[int, tuple[type[Message], type[Message]]] = {
    0: (LegacyOffsetCommitKey, LegacyOffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    10: (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    11: (ShareGroupMetadataKey, ShareGroupMetadataValue),
    12: (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    13: (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    14: (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    15: (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
"""Record type (the version number in front of a key) to its key and value."""
