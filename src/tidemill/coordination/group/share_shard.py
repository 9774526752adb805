"""The share groups of a shard: finds the group of a request, or makes it, and lets the rules work on it.

A `GroupShard` has one of these beside its other groups; all look into the same `groups`. A group that a first member
joins appears when its records are replayed, so that a join which could not be written leaves nothing behind.

Whatever needs the share coordinator is done in steps, with the caller in between (`api.share_groups`):

    heartbeat          -> Initialization    caller initialises state    -> state_initialized, or state_refused
    begin_alter        -> state epoch       caller initialises state    -> state_initialized, or state_refused
    begin_delete       -> what to delete    caller deletes state        -> state_deleted, or the group is deleted

Each step notes in the log what is under way, so that it can be told after a crash (`share_state_partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

from tidemill.coordination.core import CoordinatorRecord, Token
from tidemill.coordination.group import share_group_records as records
from tidemill.coordination.group.assignor import NOTHING, Assignment
from tidemill.coordination.group.contract import Group, GroupSettings, RequestContext, ShareSettings, Step
from tidemill.coordination.group.modern import JOINING_EPOCH, LEAVING_EPOCH, Topics, next_epoch
from tidemill.coordination.group.share_describe import described
from tidemill.coordination.group.share_group import ShareGroup, ShareSessionTimer
from tidemill.coordination.group.share_heartbeat import (
    HeartbeatAnswer,
    Initialization,
    ShareHeartbeat,
    check_heartbeat,
    leave,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.share_group_describe import DescribedGroup
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

Replayer = Callable[[CoordinatorRecord, int, int], None]
GroupConfigs = Callable[[str], Mapping[str, str]]
"""What was set for a group by its id."""


class ShareGroups:
    def __init__(
        self,
        groups: MutableMapping[str, Group],
        topics: Topics,
        settings: GroupSettings,
        configs: GroupConfigs,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._settings = settings.share
        self._configs = configs
        self._asked_ms: dict[str, dict[bytes, int]] = {}
        """By group and topic: when state was last asked for. A restart forgets it and asks again."""

    # -- replaying --------------------------------------------------------------------------------------

    def replayers(self) -> dict[int, Replayer]:
        return dict.fromkeys(range(records.MEMBER, records.STATE_PARTITIONS + 1), self._replay)

    def _replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        key: Any = record.key
        group = self._groups.get(key.group_id)
        if not isinstance(group, ShareGroup):
            if record.value is None:
                return
            made = self._new_group(key.group_id)
            self._groups[key.group_id] = group = made
        if record.type == records.EPOCH and record.value is None:
            del self._groups[key.group_id]
            self._asked_ms.pop(key.group_id, None)
        else:
            group.replay(record)

    def _new_group(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, self._settings_of(group_id).session_timeout_ms)

    def _settings_of(self, group_id: str) -> ShareSettings:
        return self._settings.with_own(self._configs(group_id))

    # -- membership -------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext, token: Token, step: Step
    ) -> None:
        """Replies a HeartbeatAnswer. Records of a heartbeat that is refused half way are not written."""
        try:
            check_heartbeat(request)
            answer = self._heartbeat(request, context, step)
        except ApiError as failure:
            step.records.clear()
            answer = HeartbeatAnswer(
                ShareGroupHeartbeatResponse(error_code=failure.code, error_message=failure.message or None)
            )
        step.reply(token, answer)

    def _heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext, step: Step
    ) -> HeartbeatAnswer:
        if request.member_epoch == LEAVING_EPOCH:
            group = self.group_or_refuse(request.group_id)
            leave(group, group.member_or_refuse(request.member_id).member_id, self._topics, step)
            return HeartbeatAnswer(
                ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVING_EPOCH)
            )
        settings = self._settings_of(request.group_id)
        if request.member_epoch == JOINING_EPOCH and request.group_id not in self._groups:
            group = self._new_group(request.group_id)
        else:
            group = self.group_or_refuse(request.group_id)
        group.session_timeout_ms = settings.session_timeout_ms
        asked_ms = self._asked_ms.get(request.group_id, {})
        answer = ShareHeartbeat(group, self._topics, settings, step, asked_ms).run(request, context)
        if answer.initialization is not None:
            self._note_asked(request.group_id, answer.initialization.partitions, step.now_ms)
        return answer

    def group_or_refuse(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return group

    def on_timer(self, key: ShareSessionTimer, step: Step) -> None:
        group = self._groups.get(key.group_id)
        if isinstance(group, ShareGroup) and key.member_id in group.members:
            leave(group, key.member_id, self._topics, step)

    def on_topics_changed(self, step: Step) -> None:
        """Topics came, went or grew: the next heartbeats look at it; of those that went nothing is kept."""
        for group in self._groups.values():
            if isinstance(group, ShareGroup):
                group.is_metadata_stale = True
                state = group.state_partitions
                gone = [topic for topic in state.topic_ids() if self._topics.by_id(topic) is None]
                if gone:
                    left = state.without_topics(gone)
                    step.append(records.state_partitions_record(group.group_id, left))

    # -- state at the share coordinator -----------------------------------------------------------------

    def state_initialized(self, group_id: str, partitions: Assignment, token: Token, step: Step) -> None:
        """The state of these exists now. Replies None."""
        group = self.group_or_refuse(group_id)
        state = group.state_partitions.with_initialized(partitions)
        step.append(records.state_partitions_record(group_id, state))
        step.reply(token, None)

    def state_refused(self, group_id: str, partitions: Assignment, token: Token, step: Step) -> None:
        """The state of these could not be made; the next heartbeat tries again. Replies None."""
        group = self.group_or_refuse(group_id)
        state = group.state_partitions.without_initializing(partitions)
        step.append(records.state_partitions_record(group_id, state))
        step.reply(token, None)

    def begin_alter(self, group_id: str, partitions: Assignment, token: Token, step: Step) -> None:
        """The offsets of an empty group are set from outside, also of one that nobody has joined yet.

        Replies the Initialization to carry out. Without partitions the group is only asked whether it may be done.
        """
        group = (
            self._new_group(group_id)
            if group_id not in self._groups
            else self.empty_group_or_refuse(group_id)
        )
        names = {topic_id: self._name_of(topic_id) for topic_id in partitions}
        epoch = next_epoch(group.epoch)
        if not partitions:
            step.reply(token, Initialization(epoch, partitions))
            return
        step.append(records.epoch_record(group_id, epoch, group.metadata_hash))
        state = group.state_partitions.with_initializing(partitions, names)
        step.append(records.state_partitions_record(group_id, state))
        self._note_asked(group_id, partitions, step.now_ms)
        step.reply(token, Initialization(epoch, partitions))

    def _note_asked(self, group_id: str, topic_ids: Iterable[bytes], now_ms: int) -> None:
        """State of these is being made: nobody else asks for it meanwhile."""
        self._asked_ms.setdefault(group_id, {}).update(dict.fromkeys(topic_ids, now_ms))

    def begin_delete(
        self, group_id: str, topic_ids: Collection[bytes] | None, token: Token, step: Step
    ) -> None:
        """State of an empty group goes: of these topics, or of all. Replies what there is of it."""
        group = self.empty_group_or_refuse(group_id)
        state = group.state_partitions
        affected = state.topic_ids() if topic_ids is None else state.topic_ids() & set(topic_ids)
        partitions = {topic_id: self._known_partitions(group, topic_id) for topic_id in affected}
        if affected:
            step.append(records.state_partitions_record(group_id, state.with_deleting(affected)))
        step.reply(token, partitions)

    def begin_delete_group(self, group_id: str, token: Token, step: Step) -> None:
        """All state of the group goes, and then the group. Nothing of a group of another kind."""
        if isinstance(self._groups.get(group_id), ShareGroup):
            self.begin_delete(group_id, None, token, step)
        else:
            step.reply(token, NOTHING)

    def state_deleted(self, group_id: str, topic_ids: Collection[bytes], token: Token, step: Step) -> None:
        """Replies None."""
        group = self.group_or_refuse(group_id)
        state = group.state_partitions.without_topics(topic_ids)
        step.append(records.state_partitions_record(group_id, state))
        step.reply(token, None)

    def empty_group_or_refuse(self, group_id: str) -> ShareGroup:
        group = self.group_or_refuse(group_id)
        group.check_delete()
        return group

    def _known_partitions(self, group: ShareGroup, topic_id: bytes) -> frozenset[int]:
        """Of a topic that is being deleted already, all: nobody knows how far it got."""
        state = group.state_partitions
        known = state.initialized.get(topic_id, frozenset()) | state.initializing.get(topic_id, frozenset())
        topic = self._topics.by_id(topic_id)
        if topic_id in state.deleting and topic is not None:
            known |= frozenset(range(topic.partition_count))
        return known

    def _name_of(self, topic_id: bytes) -> str:
        topic = self._topics.by_id(topic_id)
        return "" if topic is None else topic.name

    # -- for people -------------------------------------------------------------------------------------

    def initialized(self, group_id: str, token: Token, step: Step) -> None:
        """Replies the partitions that have state; without such a share group there are none, and that is no error."""
        group = self._groups.get(group_id)
        step.reply(token, group.state_partitions.initialized if isinstance(group, ShareGroup) else NOTHING)

    def describe(self, group_ids: Iterable[str]) -> list[DescribedGroup]:
        return [self._describe(group_id) for group_id in group_ids]

    def _describe(self, group_id: str) -> DescribedGroup:
        try:
            return described(self.group_or_refuse(group_id), self._topics)
        except ApiError as failure:
            return DescribedGroup(group_id=group_id, error_code=failure.code, error_message=failure.message)
