"""ShareGroupDescribe, version 1: a share group for people, with the names of its topics."""

from __future__ import annotations

from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.group.modern import ModernMember, Topics
from tidemill.coordination.group.share_group import ShareGroup
from tidemill.coordination.group.share_heartbeat import ASSIGNOR
from tidemill.wire.messages import share_group_describe as messages


def described(group: ShareGroup, topics: Topics) -> messages.DescribedGroup:
    return messages.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=ASSIGNOR.name,
        members=[_member(member, topics) for member in group.members.values()],
    )


def _member(member: ModernMember, topics: Topics) -> messages.Member:
    return messages.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        assignment=_assignment(member.assigned, topics),
    )


def _assignment(assignment: Assignment, topics: Topics) -> messages.Assignment:
    """Topics that are gone have no name, and are left out."""
    found = messages.Assignment()
    for topic_id, indexes in sorted(assignment.items()):
        topic = topics.by_id(topic_id)
        if topic is not None:
            found.topic_partitions.append(
                messages.TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes))
            )
    return found
