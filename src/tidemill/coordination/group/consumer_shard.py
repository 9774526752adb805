"""The consumer groups of a shard: finds the group of a request, or makes it, and lets the rules work on a draft of it.

A `GroupShard` has one of these beside its classic groups; both look into the same `groups`. A group that a first member
joins appears when its records are replayed, so that a join which could not be written leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Set
from typing import Any

from tidemill.coordination.core import CoordinatorRecord, Token
from tidemill.coordination.group import consumer_classic
from tidemill.coordination.group import consumer_records as records
from tidemill.coordination.group.assignor import Assignor
from tidemill.coordination.group.assignors_consumer import CONSUMER_ASSIGNORS
from tidemill.coordination.group.classic import ClassicGroup, join_failure
from tidemill.coordination.group.consumer_classic import ClassicJoin
from tidemill.coordination.group.consumer_describe import described
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import (
    ConsumerGroup,
    ConsumerTimer,
    DowngradeTimer,
    MemberState,
    RejoinTimer,
    ResyncTimer,
    RevocationTimer,
    apply,
)
from tidemill.coordination.group.consumer_heartbeat import (
    Heartbeat,
    check_heartbeat,
    known_member,
    leave_for_a_while,
    remove,
)
from tidemill.coordination.group.consumer_migration import downgrade, draft_of_upgrade
from tidemill.coordination.group.contract import (
    NO_MEMBER_ID,
    ConsumerSettings,
    Group,
    GroupSettings,
    RequestContext,
    Step,
)
from tidemill.coordination.group.modern import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH, Topics
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import Randomness
from tidemill.wire.messages.consumer_group_describe import DescribedGroup
from tidemill.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.join_group import JoinGroupRequest
from tidemill.wire.messages.leave_group import MemberIdentity, MemberResponse
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Replayer = Callable[[CoordinatorRecord, int, int], None]


class ConsumerGroups:
    def __init__(
        self,
        groups: MutableMapping[str, Group],
        topics: Topics,
        settings: GroupSettings,
        randomness: Randomness,
        configs: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._randomness = randomness
        self._configs = configs
        self._assignors: dict[str, Assignor] = {
            name: CONSUMER_ASSIGNORS[name] for name in settings.consumer.assignors
        }

    # -- replaying --------------------------------------------------------------------------------------

    def replayers(self) -> dict[int, Replayer]:
        return dict.fromkeys(records.TYPES, self._replay)

    def _stored(self, record: CoordinatorRecord) -> ConsumerGroup | None:
        """The group that a record is about. One with a value makes it, one without does not."""
        key: Any = record.key
        group = self._groups.get(key.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if record.value is None:
            return None
        made = self.new_group(key.group_id)
        self._groups[key.group_id] = made
        return made

    def new_group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._topics, lambda: self._settings_of(group_id))

    def _settings_of(self, group_id: str) -> ConsumerSettings:
        return self._settings.consumer.with_own(self._configs(group_id))

    def _replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        group = self._stored(record)
        if group is None:
            return
        if record.type != records.EPOCH or record.value is not None:
            apply(group, record)
        elif group.successor is not None:
            self._groups[group.group_id] = group.successor
        else:
            del self._groups[group.group_id]

    # -- heartbeats -------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext, token: Token, step: Step
    ) -> None:
        """Records of a heartbeat that is refused half way are not written."""
        try:
            check_heartbeat(request, context, self._settings.consumer)
            response = self._heartbeat(request, context, step)
        except ApiError as failure:
            step.records.clear()
            step.timers.clear()
            response = ConsumerGroupHeartbeatResponse(
                error_code=failure.code, error_message=failure.message or None
            )
        step.reply(token, response)

    def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        epoch = request.member_epoch
        if epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(request, step)
        draft = self._draft_for(request.group_id, step, may_create=epoch == JOINING_EPOCH)
        heartbeat = Heartbeat(draft, request, context, self._settings_of(request.group_id))
        response = heartbeat.run(self._assignors, self._randomness)
        for act in draft.afterwards:
            act()
        return response

    def _draft_for(self, group_id: str, step: Step, *, may_create: bool) -> Draft:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return Draft(group, self._topics, step)
        if not may_create:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
        if group is None:
            return Draft(self.new_group(group_id), self._topics, step)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id} is not a consumer group")
        return draft_of_upgrade(group, self.new_group(group_id), self._settings.consumer, self._topics, step)

    def _leave(self, request: ConsumerGroupHeartbeatRequest, step: Step) -> ConsumerGroupHeartbeatResponse:
        group = self.group_or_refuse(request.group_id)
        draft = Draft(group, self._topics, step)
        member = known_member(draft, request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            leave_for_a_while(draft, member)
        else:
            self.remove(draft, [member.member_id])
        return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def group_or_refuse(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
        return group

    def remove(self, draft: Draft, member_ids: list[str]) -> None:
        """Members go; if only such of the classic protocol are left the group becomes theirs."""
        remove(draft, member_ids)
        members = draft.members.values()
        if members and all(member.classic is not None for member in members):
            draft.step.set_timer(DowngradeTimer(draft.group_id), 0)

    # -- members that speak the classic protocol --------------------------------------------------------

    def join_classic(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        context: RequestContext,
        token: Token,
        step: Step,
    ) -> None:
        join = ClassicJoin(Draft(group, self._topics, step), request, context, self._settings.consumer)
        try:
            response = join.run(self._assignors, self._randomness)
        except ApiError as failure:
            step.records.clear()
            step.timers.clear()
            response = join_failure(failure.code, NO_MEMBER_ID)
        step.reply(token, response)

    def sync_classic(self, group: ConsumerGroup, request: SyncGroupRequest, token: Token, step: Step) -> None:
        try:
            response = consumer_classic.sync(group, request, self._topics, step)
        except ApiError as failure:
            response = SyncGroupResponse(error_code=failure.code)
        step.reply(token, response)

    def heartbeat_classic(
        self, group: ConsumerGroup, request: HeartbeatRequest, token: Token, step: Step
    ) -> None:
        try:
            code = consumer_classic.heartbeat(group, request, self._topics, step)
        except ApiError as failure:
            code = failure.code
        step.reply(token, HeartbeatResponse(error_code=code))

    def leave_classic(
        self, group: ConsumerGroup, leaving: Iterable[MemberIdentity], step: Step
    ) -> list[MemberResponse]:
        results, gone = [], []
        for identity in leaving:
            result = MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            try:
                gone.append(consumer_classic.leaving_member(group, identity))
            except ApiError as failure:
                result.error_code = failure.code
            results.append(result)
        if gone:
            self.remove(Draft(group, self._topics, step), list(dict.fromkeys(gone)))
        return results

    # -- timers and news --------------------------------------------------------------------------------

    def on_timer(self, key: ConsumerTimer, step: Step) -> None:
        group = self._groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            return
        if isinstance(key, DowngradeTimer):
            downgrade(group, self._settings, self._topics, step)
            return
        member = group.members.get(key.member_id)
        if member is None or (isinstance(key, RevocationTimer) and member.state is not MemberState.UNREVOKED):
            return
        if isinstance(key, RejoinTimer | ResyncTimer) and member.classic is None:
            return
        self.remove(Draft(group, self._topics, step), [key.member_id])

    def on_topics_changed(self, names: Set[str]) -> None:
        """The next heartbeat of a group that may be concerned compares."""
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup) and (
                group.regexes or not names.isdisjoint(group.subscribed_topic_names())
            ):
                group.is_metadata_stale = True

    # -- for people -------------------------------------------------------------------------------------

    def describe(self, group_ids: Iterable[str]) -> list[DescribedGroup]:
        return [self._describe(group_id) for group_id in group_ids]

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return described(group, self._topics, self._settings.consumer.assignors[0])
        why = (
            f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        )
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=why)
