"""ShareGroupHeartbeat, version 1: a member comes, stays or goes, and hears what it may read.

What a heartbeat may set off, one after the other, all in one batch of records:

    the member is new, or subscribes to other topics        -> its record
    that, or its topics came, went, grew, or got state      -> the next group epoch
    the group epoch is ahead of the target                  -> a new target
    the member is behind the target                         -> it has its target now
    a partition of a subscribed topic has no state          -> it is noted as initializing, and the answer says so:
                                                               who asked goes on to the share coordinator

A member is told its assignment when it joins and when it changes, and again if it shows by its epoch that the last
answer was lost, or asks by a complete request (one that says its subscription).

Limits: only partitions whose state exists are given out, counted from 0 up to the first that has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.coordination.group import share_group_records as records
from tidemill.coordination.group.assignor import NOTHING, Assignment
from tidemill.coordination.group.assignor_share import SimpleAssignor
from tidemill.coordination.group.contract import RequestContext, ShareSettings, Step
from tidemill.coordination.group.modern import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    ModernMember,
    Topic,
    Topics,
    changed_targets,
    existing_topics,
    make_target,
    metadata_hash,
    next_epoch,
)
from tidemill.coordination.group.share_group import ShareGroup, ShareSessionTimer
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages import share_group_heartbeat as messages
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

ASSIGNOR = SimpleAssignor()
LONGEST_MEMBER_ID = 36
"""Of share groups, in all their requests."""


class Initialization(NamedTuple):
    """State that the share coordinator is to be asked for."""

    state_epoch: int
    partitions: Assignment


class HeartbeatAnswer(NamedTuple):
    response: ShareGroupHeartbeatResponse
    initialization: Initialization | None = None


class AssignableTopics:
    """The topics of the cluster, each with those of its partitions that have state in this group."""

    def __init__(self, group: ShareGroup, topics: Topics) -> None:
        self._initialized = group.state_partitions.initialized
        self._topics = topics

    def by_name(self, name: str) -> Topic | None:
        return self._with_state(self._topics.by_name(name))

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._with_state(self._topics.by_id(topic_id))

    def names(self) -> list[str]:
        return list(self._topics.names())

    def _with_state(self, topic: Topic | None) -> Topic | None:
        if topic is None:
            return None
        have = self._initialized.get(topic.topic_id, frozenset())
        count = next(
            (index for index in range(topic.partition_count) if index not in have), topic.partition_count
        )
        return topic._replace(partition_count=count) if count else None


def check_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    for is_wrong, why in (
        (not request.group_id, "GroupId can't be empty."),
        (
            not 1 <= len(request.member_id) <= LONGEST_MEMBER_ID,
            f"MemberId must have 1 to {LONGEST_MEMBER_ID} characters.",
        ),
        (request.rack_id == "", "RackId can't be empty."),
        (request.member_epoch < LEAVING_EPOCH, f"MemberEpoch is invalid: {request.member_epoch}."),
        (
            request.member_epoch == JOINING_EPOCH and not request.subscribed_topic_names,
            "SubscribedTopicNames must be set in first request.",
        ),
    ):
        if is_wrong:
            raise ApiError(ErrorCode.INVALID_REQUEST, why)


class ShareHeartbeat:
    """One heartbeat of a member that is there, or joins; `asked_ms` is when state of a topic was last asked for."""

    def __init__(
        self,
        group: ShareGroup,
        topics: Topics,
        settings: ShareSettings,
        step: Step,
        asked_ms: Mapping[bytes, int],
    ) -> None:
        self._group = group
        self._asked_ms = asked_ms
        self._topics = topics
        self._settings = settings
        self._step = step
        self._members = dict(group.members)
        self._epoch, self._target_epoch = group.epoch, group.target_epoch
        self._target = dict(group.target)

    def run(self, request: ShareGroupHeartbeatRequest, context: RequestContext) -> HeartbeatAnswer:
        before = self._member(request)
        described = self._described(before, request, context)
        self._members[described.member_id] = described
        is_new = described.member_id not in self._group.members
        if is_new or described != before:
            self._step.append(records.member_record(self._group.group_id, described))
        is_changed = is_new or described.subscribed_topic_names != before.subscribed_topic_names
        if is_changed or self._are_topics_changed():
            self._bump()
        if self._epoch > self._target_epoch:
            self._make_target()
        member = self._reconciled(described)
        self._group.restart_session(member.member_id, self._step)
        initialization = self._initialization()
        is_complete = request.subscribed_topic_names is not None
        has_missed = request.member_epoch != before.member_epoch
        is_told = is_new or is_complete or has_missed or member.assigned != before.assigned
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            assignment=_told(member.assigned) if is_told else None,
        )
        return HeartbeatAnswer(response, initialization)

    # -- the member -------------------------------------------------------------------------------------

    def _member(self, request: ShareGroupHeartbeatRequest) -> ModernMember:
        group, epoch = self._group, request.member_epoch
        member = group.members.get(request.member_id)
        if member is None and len(group.members) >= self._settings.max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {self._settings.max_size} members.",
            )
        if member is None and epoch == JOINING_EPOCH:
            return ModernMember(request.member_id)
        member = group.member_or_refuse(request.member_id)
        if epoch not in (JOINING_EPOCH, member.member_epoch, member.previous_member_epoch):
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch {epoch} is not the known one ({member.member_epoch}): "
                "the member must abandon all its partitions and rejoin.",
            )
        return member

    def _described(
        self, member: ModernMember, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ModernMember:
        """What the request does not say has not changed."""
        names, rack = request.subscribed_topic_names, request.rack_id
        return dataclasses.replace(
            member,
            rack_id=member.rack_id if rack is None else rack,
            client_id=context.client_id,
            client_host=context.client_host,
            subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        )

    def _reconciled(self, member: ModernMember) -> ModernMember:
        target = self._target.get(member.member_id, NOTHING)
        if (member.member_epoch, member.assigned) == (self._target_epoch, target):
            return member
        reconciled = dataclasses.replace(
            member,
            member_epoch=self._target_epoch,
            previous_member_epoch=member.member_epoch,
            assigned=target,
        )
        self._step.append(records.current_record(self._group.group_id, reconciled))
        return reconciled

    # -- the group --------------------------------------------------------------------------------------

    def _subscribed(self) -> frozenset[str]:
        return frozenset().union(*(member.subscribed_topic_names for member in self._members.values()))

    def _are_topics_changed(self) -> bool:
        """Topics came, went or grew, or partitions that nobody has yet got their state."""
        group = self._group
        if not group.is_metadata_stale:
            return False
        assignable = existing_topics(self._subscribed(), AssignableTopics(group, self._topics))
        wanted = {topic.topic_id: frozenset(range(topic.partition_count)) for topic in assignable}
        is_changed = (
            metadata_hash(self._subscribed(), self._topics) != group.metadata_hash
            or wanted != group.targeted()
        )
        group.is_metadata_stale = is_changed
        return is_changed

    def _bump(self) -> None:
        self._epoch = next_epoch(self._epoch)
        value = metadata_hash(self._subscribed(), self._topics)
        self._step.append(records.epoch_record(self._group.group_id, self._epoch, value))

    def _make_target(self) -> None:
        group_id = self._group.group_id
        target = make_target(
            ASSIGNOR,
            {member_id: member.subscribed_topic_names for member_id, member in self._members.items()},
            AssignableTopics(self._group, self._topics),
            lambda member_id: self._target.get(member_id, NOTHING),
        )
        for member_id, assignment in changed_targets(self._target, target).items():
            self._step.append(records.target_record(group_id, member_id, assignment))
        self._target, self._target_epoch = target, self._epoch
        self._step.append(records.target_epoch_record(group_id, self._epoch, self._step.now_ms))

    def _initialization(self) -> Initialization | None:
        """Partitions without state, unless they were asked for a short while ago."""
        group, state = self._group, self._group.state_partitions
        stale_ms = self._step.now_ms - self._settings.initialize_retry_interval_ms
        missing, names = {}, {}
        for topic in existing_topics(self._subscribed(), self._topics):
            has = state.initialized.get(topic.topic_id, frozenset())
            if self._asked_ms.get(topic.topic_id, stale_ms) > stale_ms:
                has |= state.initializing.get(topic.topic_id, frozenset())
            lacks = frozenset(range(topic.partition_count)) - has
            if lacks:
                missing[topic.topic_id], names[topic.topic_id] = lacks, topic.name
        if not missing:
            return None
        self._step.append(
            records.state_partitions_record(group.group_id, state.with_initializing(missing, names))
        )
        return Initialization(self._epoch, missing)


def leave(group: ShareGroup, member_id: str, topics: Topics, step: Step) -> None:
    """The member goes, or is gone: the next heartbeat makes a new target for the others."""
    step.records.extend(records.member_tombstones(group.group_id, member_id))
    step.cancel_timer(ShareSessionTimer(group.group_id, member_id))
    others = (member for member in group.members.values() if member.member_id != member_id)
    names = frozenset().union(*(member.subscribed_topic_names for member in others))
    step.append(records.epoch_record(group.group_id, next_epoch(group.epoch), metadata_hash(names, topics)))


def _told(assignment: Assignment) -> messages.Assignment:
    return messages.Assignment(
        topic_partitions=[
            messages.TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in sorted(assignment.items())
        ]
    )
