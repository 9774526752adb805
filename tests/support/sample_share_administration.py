"""Samples of the requests about share groups that are not about records (see `sample_requests`).

They are about a group that does not exist, or about state that was never initialised, and leave nothing behind.
"""

from __future__ import annotations

from tidemill.wire.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from tidemill.wire.messages.share_group_describe import ShareGroupDescribeRequest
from tidemill.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidemill.wire.schema import Message

GROUP = "no-such-share-group"
UNKNOWN_PARTITION = 99


def share_administration_requests(topic: str, topic_id: bytes) -> list[Message]:
    return [*_groups(topic), *_states(topic_id)]


def _groups(topic: str) -> list[Message]:
    altered = alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
        topic_name=topic,
        partitions=[alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(start_offset=1)],
    )
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
        topic_name=topic, partitions=[0, 1]
    )
    described = [
        describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=topics)
        for topics in ([asked], None)
    ]
    deleted = delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
    return [
        ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="a-stranger",
            member_epoch=5,
            subscribed_topic_names=[topic],
            rack_id="r",
        ),
        ShareGroupDescribeRequest(group_ids=[GROUP, "another"], include_authorized_operations=True),
        describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups=described),
        alter_share_group_offsets.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[altered]),
        delete_share_group_offsets.DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=[deleted]),
    ]


def _states(topic_id: bytes) -> list[Message]:
    initialize, read, write = initialize_share_group_state, read_share_group_state, write_share_group_state
    delete, summary = delete_share_group_state, read_share_group_state_summary
    new = initialize.PartitionData(partition=UNKNOWN_PARTITION, state_epoch=1, start_offset=3)
    batch = write.StateBatch(first_offset=1, last_offset=5, delivery_state=2, delivery_count=1)
    changed = write.PartitionData(partition=0, state_epoch=1, start_offset=1, state_batches=[batch])
    summarized = summary.ReadStateSummaryData(
        topic_id=topic_id, partitions=[summary.PartitionData(leader_epoch=-1)]
    )
    return [
        initialize.InitializeShareGroupStateRequest(
            group_id=GROUP, topics=[initialize.InitializeStateData(topic_id=topic_id, partitions=[new])]
        ),
        read.ReadShareGroupStateRequest(
            group_id=GROUP,
            topics=[read.ReadStateData(topic_id=topic_id, partitions=[read.PartitionData(leader_epoch=1)])],
        ),
        write.WriteShareGroupStateRequest(
            group_id=GROUP, topics=[write.WriteStateData(topic_id=topic_id, partitions=[changed])]
        ),
        delete.DeleteShareGroupStateRequest(
            group_id=GROUP,
            topics=[delete.DeleteStateData(topic_id=topic_id, partitions=[delete.PartitionData()])],
        ),
        summary.ReadShareGroupStateSummaryRequest(group_id=GROUP, topics=[summarized]),
    ]
