"""ConsumerGroupDescribe, versions 0-1: a consumer group for people, with the names of its topics.

What a member is still giving up is listed with what it has: it may be reading it.
"""

from __future__ import annotations

from tidemill.coordination.group.assignments import plus
from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.group.consumer_group import ConsumerGroup, ConsumerMember
from tidemill.coordination.group.modern import Topics
from tidemill.wire.messages.consumer_group_describe import (
    Assignment as AssignmentMessage,
)
from tidemill.wire.messages.consumer_group_describe import (
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def described(group: ConsumerGroup, topics: Topics, default_assignor: str) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(group.members.values(), default_assignor),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(plus(member.assigned, member.pending_revocation), topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assignment: Assignment, topics: Topics) -> AssignmentMessage:
    """Topics that are gone have no name, and are left out."""
    named = ((topics.by_id(topic_id), indexes) for topic_id, indexes in sorted(assignment.items()))
    return AssignmentMessage(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(indexes))
            for topic, indexes in named
            if topic is not None
        ]
    )
