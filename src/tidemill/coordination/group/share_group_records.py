"""The records of share groups in `__consumer_offsets`, made and read: types 10 to 15.

10   a member: who it is, its subscription     13   a member's target
11   group epoch, hash of the topics           14   what a member has now, and at which epoch
12   target epoch                              15   which partitions have state at the share coordinator
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.group.modern import ModernMember
from tidemill.coordination.group.share_state_partitions import StatePartitions
from tidemill.coordination.records.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartition,
    TopicPartitionsInfo,
    TopicPartitionsResponse,
)

MEMBER, EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATE_PARTITIONS = 10, 11, 12, 13, 14, 15


# -- the group --------------------------------------------------------------------------------------------


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(EPOCH, ShareGroupMetadataKey(group_id=group_id), value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return CoordinatorRecord(TARGET_EPOCH, ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def state_partitions_record(group_id: str, state: StatePartitions) -> CoordinatorRecord:
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_infos(state.initializing, state.names),
        initialized_topics=_infos(state.initialized, state.names),
        deleting_topics=[
            TopicInfo(topic_id=topic_id, topic_name=state.names.get(topic_id, ""))
            for topic_id in sorted(state.deleting)
        ],
    )
    key = ShareGroupStatePartitionMetadataKey(group_id=group_id)
    return CoordinatorRecord(STATE_PARTITIONS, key, value)


def group_tombstones(group_id: str) -> list[CoordinatorRecord]:
    """The last records of a group."""
    return [
        CoordinatorRecord(TARGET_EPOCH, ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        CoordinatorRecord(STATE_PARTITIONS, ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        CoordinatorRecord(EPOCH, ShareGroupMetadataKey(group_id=group_id), None),
    ]


def read_state_partitions(value: ShareGroupStatePartitionMetadataValue) -> StatePartitions:
    every: list[Any] = [*value.initializing_topics, *value.initialized_topics, *value.deleting_topics]
    return StatePartitions(
        initializing=_partitions(value.initializing_topics),
        initialized=_partitions(value.initialized_topics),
        deleting=frozenset(info.topic_id for info in value.deleting_topics),
        names={info.topic_id: info.topic_name for info in every},
    )


def _infos(topics: Assignment, names: Mapping[bytes, str]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=names.get(topic_id, ""), partitions=sorted(indexes))
        for topic_id, indexes in sorted(topics.items())
    ]


def _partitions(entries: Iterable[Any]) -> dict[bytes, frozenset[int]]:
    return {entry.topic_id: frozenset(entry.partitions) for entry in entries}


# -- members ----------------------------------------------------------------------------------------------


def member_record(group_id: str, member: ModernMember) -> CoordinatorRecord:
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
    )
    key = ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(MEMBER, key, value)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    value = ShareGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in sorted(assignment.items())
        ]
    )
    key = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(TARGET, key, value)


def current_record(group_id: str, member: ModernMember) -> CoordinatorRecord:
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        assigned_partitions=[
            TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in sorted(member.assigned.items())
        ],
    )
    key = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(CURRENT, key, value)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """What it has, what it was to have, and who it was."""
    whose = {"group_id": group_id, "member_id": member_id}
    return [
        CoordinatorRecord(CURRENT, ShareGroupCurrentMemberAssignmentKey(**whose), None),
        CoordinatorRecord(TARGET, ShareGroupTargetAssignmentMemberKey(**whose), None),
        CoordinatorRecord(MEMBER, ShareGroupMemberMetadataKey(**whose), None),
    ]


def read_target(value: ShareGroupTargetAssignmentMemberValue) -> Assignment:
    return _partitions(value.topic_partitions)


def read_assigned(value: ShareGroupCurrentMemberAssignmentValue) -> Assignment:
    return _partitions(value.assigned_partitions)
