"""The records of consumer groups in `__consumer_offsets`, made and read: types 3 and 5-8, and 16 for expressions.

    3   group epoch, hash of the topics          6   target epoch        16   topics that an expression matches
    5   a member: who it is, its subscription    7   a member's target
                                                 8   what a member owns now, and at which epoch

Type 4, the partition counts of subscribed topics, was written by older brokers: the hash in type 3 took its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.records.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

if TYPE_CHECKING:
    from tidemill.coordination.group.consumer_group import ConsumerMember, ResolvedRegex

TYPES = (EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX) = (3, 4, 5, 6, 7, 8, 16)


# -- the group --------------------------------------------------------------------------------------------


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(EPOCH, ConsumerGroupMetadataKey(group_id=group_id), value)


def epoch_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(EPOCH, ConsumerGroupMetadataKey(group_id=group_id), None)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    return CoordinatorRecord(TARGET_EPOCH, key, value)


def target_epoch_tombstone(group_id: str) -> CoordinatorRecord:
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    return CoordinatorRecord(TARGET_EPOCH, key, None)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """For what an older broker may have written."""
    key = ConsumerGroupPartitionMetadataKey(group_id=group_id)
    return CoordinatorRecord(PARTITION_METADATA, key, None)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(REGEX, key, value)


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(REGEX, key, None)


# -- members ----------------------------------------------------------------------------------------------


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
            ],
        ),
    )
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(MEMBER, key, value)


def member_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(
        MEMBER, ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None
    )


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in sorted(assignment.items())
        ]
    )
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(TARGET, key, value)


def target_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(TARGET, key, None)


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=_with_epochs(member.assigned, member),
        partitions_pending_revocation=_with_epochs(member.pending_revocation, member),
    )
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(CURRENT, key, value)


def current_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(CURRENT, key, None)


def _with_epochs(assignment: Assignment, member: ConsumerMember) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(indexes),
            assignment_epochs=[
                member.assignment_epochs.get((topic_id, index), member.member_epoch)
                for index in sorted(indexes)
            ],
        )
        for topic_id, indexes in sorted(assignment.items())
    ]


def read_partitions(
    listed: Iterable[TopicPartitions], member_epoch: int, epochs: dict[tuple[bytes, int], int]
) -> Assignment:
    """The assignment; `epochs` is filled with those of its partitions, which older records do not have."""
    assignment: dict[bytes, frozenset[int]] = {}
    for entry in listed:
        assignment[entry.topic_id] = frozenset(entry.partitions)
        since = entry.assignment_epochs or [member_epoch] * len(entry.partitions)
        epochs.update(
            ((entry.topic_id, index), epoch) for index, epoch in zip(entry.partitions, since, strict=False)
        )
    return assignment


def read_target(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return {entry.topic_id: frozenset(entry.partitions) for entry in value.topic_partitions}


def assignment_of(listed: Iterable[object]) -> Mapping[bytes, frozenset[int]]:
    """What a request calls topic partitions."""
    found: dict[bytes, frozenset[int]] = {}
    for entry in listed:
        topic_id: bytes = entry.topic_id  # type: ignore[attr-defined]
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(entry.partitions)  # type: ignore[attr-defined]
    return found
