"""One sensible request for every API of groups, for `sample_requests.py`.

Members are those that the coordinator does not know, so nothing waits for a rebalance; offsets are committed, because
a commit without a group is what simple consumers do.
"""

from __future__ import annotations

from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.consumer_group_heartbeat import TopicPartitions as HeartbeatPartitions
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.schema import Message

GROUP, STRANGER = "sample-group", "a-stranger"


def group_requests(topic: str, topic_id: bytes) -> list[Message]:
    return [*_membership(), *_offsets(topic, topic_id), *_administration()]


def _membership() -> list[Message]:
    return [
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=STRANGER,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"metadata")],
            reason="a sample",
        ),
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=1,
            member_id=STRANGER,
            assignments=[SyncGroupRequestAssignment(member_id=STRANGER, assignment=b"assignment")],
        ),
        HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=STRANGER),
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=STRANGER,
            member_epoch=3,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["a-topic"],
            subscribed_topic_regex="a.*",
            server_assignor="uniform",
            topic_partitions=[HeartbeatPartitions(topic_id=bytes(range(16)), partitions=[0, 1])],
        ),
        LeaveGroupRequest(
            group_id=GROUP,
            member_id=STRANGER,
            members=[MemberIdentity(member_id=STRANGER, reason="a sample")],
        ),
    ]


def _offsets(topic: str, topic_id: bytes) -> list[Message]:
    committed = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata="a sample"
    )
    asked = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 1])
    deleted = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition()])
    return [
        OffsetCommitRequest(
            group_id=GROUP,
            topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[committed])],
        ),
        OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])],
            groups=[
                OffsetFetchRequestGroup(group_id=GROUP, topics=[asked]),
                OffsetFetchRequestGroup(group_id=GROUP, topics=None),
            ],
        ),
        OffsetDeleteRequest(group_id=GROUP, topics=[deleted]),
    ]


def _administration() -> list[Message]:
    return [
        ListGroupsRequest(states_filter=["Stable", "Empty"], types_filter=["classic"]),
        DescribeGroupsRequest(groups=[GROUP, "another"], include_authorized_operations=True),
        ConsumerGroupDescribeRequest(group_ids=[GROUP, "another"], include_authorized_operations=True),
        DeleteGroupsRequest(groups_names=["no-such-group"]),
    ]
