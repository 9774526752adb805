"""All groups and offsets of one partition of `__consumer_offsets`: the group coordinator's core.

A shard finds the group of a request, applies the rules of its kind and gives back what is to be written, answered and
timed (see `coordination.core` for the order in which that happens):

    shard = GroupShard(GroupSettings(), randomness)
    shard.replay(record, offset, producer_id)          # for every record of the log, then
    shard.replay_end_of_transaction(7, True)           # for every marker between them
    outcome = shard.on_loaded(now_ms)                  # timers of sessions and of the expiry of offsets
    outcome = shard.join_group(request, context, token, now_ms)

Replies are response messages. Requests about one group get the whole response. `fetch_offsets`, `describe_groups`,
`list_groups` and `delete_groups` answer for the groups of this shard only: a part of a response that the api layer
joins with the parts of other shards.

Kinds of groups: `_groups` holds groups of every kind, told apart by their class; what all must be able to do is
`contract.Group`. A new kind adds its class to `_groups`, its record types to `_replayers` and its timers to `on_timer`.
Classic groups are served here, consumer groups by `consumer_shard`, which also answers classic requests to them, and
share groups by `share_shard`.

Limits: records of types that nobody here knows are left alone: they stay in the log, and `unknown_records` counts
them. `now_ms` is wall-clock time, because it is stored in records; a driver that maps `due_ms - now_ms` to a monotonic
clock makes timers independent of jumps. Expiry and the cleaning up after deleted topics write at most
`MAX_TOMBSTONES` records at a time and go on at once with the next batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

from tidemill.coordination.core import CoordinatorRecord, Outcome, Token
from tidemill.coordination.group import classic_rebalance
from tidemill.coordination.group.classic import (
    EMPTY,
    GROUP_METADATA,
    ClassicGroup,
    JoinTimer,
    ReassignTimer,
    SessionTimer,
    SyncTimer,
    join_failure,
)
from tidemill.coordination.group.classic_join import Join, check_join
from tidemill.coordination.group.classic_leave import leave, leave_response, leaving_members, unknown_members
from tidemill.coordination.group.classic_sync import heartbeat, lacks_protocol, sync
from tidemill.coordination.group.consumer_group import ConsumerGroup, ConsumerTimer
from tidemill.coordination.group.consumer_shard import ConsumerGroups
from tidemill.coordination.group.contract import (
    NO_MEMBER_ID,
    Group,
    GroupSettings,
    RequestContext,
    Step,
)
from tidemill.coordination.group.modern import FixedTopics, Topics
from tidemill.coordination.group.offsets import (
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    Offsets,
    offset_tombstone,
)
from tidemill.coordination.group.offsets_commit import (
    commit_offsets,
    commit_transactional_offsets,
    delete_offsets,
)
from tidemill.coordination.group.offsets_expiry import expired_offsets
from tidemill.coordination.group.offsets_fetch import fetch_offsets
from tidemill.coordination.group.share_group import ShareGroup, ShareSessionTimer
from tidemill.coordination.group.share_shard import GroupConfigs, ShareGroups
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import Randomness
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.delete_groups import DeletableGroupResult
from tidemill.wire.messages.describe_groups import DescribedGroup
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.join_group import JoinGroupRequest
from tidemill.wire.messages.leave_group import LeaveGroupRequest
from tidemill.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from tidemill.wire.messages.offset_commit import OffsetCommitRequest
from tidemill.wire.messages.offset_delete import OffsetDeleteRequest
from tidemill.wire.messages.offset_fetch import OffsetFetchRequestGroup
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidemill.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

FIRST_DESCRIBE_VERSION_WITH_NOT_FOUND = 6
MAX_TOMBSTONES = 1000
"""Of one batch, which must stay below the size that a log accepts."""

Replayer = Callable[[CoordinatorRecord, int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class ExpiryTimer:
    """Time to look for expired offsets."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeletedTopicsTimer:
    """Offsets of deleted topics are still there."""


def _no_configs(group_id: str) -> Mapping[str, str]:
    return {}


def _unknown(group_id: str) -> ErrorCode:
    """What a member is told whose group is not there, or of a kind without such members."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


class GroupShard:
    """A `core.CoordinatorCore`."""

    def __init__(
        self,
        settings: GroupSettings,
        randomness: Randomness,
        topics: Topics | None = None,
        configs: GroupConfigs = _no_configs,
    ) -> None:
        self.settings = settings
        self.topics: Topics = FixedTopics() if topics is None else topics
        self.offsets = Offsets()
        self.unknown_records = 0
        self._randomness = randomness
        self._groups: dict[str, Group] = {}
        self._deleted_topics: set[str] = set()
        self._replayers: dict[int, Replayer] = {
            LEGACY_OFFSET_COMMIT: self._replay_offset,
            OFFSET_COMMIT: self._replay_offset,
            GROUP_METADATA: self._replay_classic_group,
        }
        self._consumer = ConsumerGroups(self._groups, self.topics, settings, randomness, configs)
        self._replayers.update(self._consumer.replayers())
        self._share = ShareGroups(self._groups, self.topics, settings, configs)
        self._replayers.update(self._share.replayers())

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterator[Group]:
        return iter(self._groups.values())

    # -- replaying --------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        replayer = self._replayers.get(record.type)
        if replayer is None:
            self.unknown_records += 1
        else:
            replayer(record, offset, producer_id)

    def replay_end_of_transaction(self, producer_id: int, is_commit: bool) -> None:
        """A marker in the log: what the producer left pending counts now, or is gone."""
        self.offsets.end_transaction(producer_id, is_commit)

    def _replay_offset(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        key: Any = record.key
        if record.value is not None and key.group not in self._groups:
            self._groups[key.group] = ClassicGroup(key.group)
        value: Any = record.value
        self.offsets.replay(key, value, offset, producer_id)

    def _replay_classic_group(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        key: Any = record.key
        value: Any = record.value
        group = self._groups.get(key.group)
        if value is None:
            if isinstance(group, ClassicGroup):
                del self._groups[key.group]
            return
        if not isinstance(group, ClassicGroup):
            group = self._groups[key.group] = ClassicGroup(key.group)
        group.replay(value)

    # -- loading and unloading --------------------------------------------------------------------------

    def on_loaded(self, now_ms: int) -> Outcome:
        """Members get a whole session to be heard of; groups above the size limit have to rebalance."""
        step = Step(now_ms)
        for group_id in self.offsets.group_ids():  # offsets may outlive the records of their group
            self._groups.setdefault(group_id, ClassicGroup(group_id))
        for group in self._groups.values():
            group.restore_timers(step)
            if isinstance(group, ClassicGroup) and len(group.members) > self.settings.max_size:
                classic_rebalance.prepare_rebalance(group, self.settings, step)
            elif isinstance(group, ClassicGroup) and group.has_foreign_assignment:
                step.set_timer(ReassignTimer(group.group_id), 0)
        step.set_timer(ExpiryTimer(), self.settings.offsets_retention_check_interval_ms)
        return step

    def on_unloaded(self, now_ms: int) -> Outcome:
        """The partition is led elsewhere: who waits is told to look there. Nothing may be asked afterwards."""
        step = Step(now_ms)
        for group in self._groups.values():
            group.unload(step)
        self._groups.clear()
        return step

    # -- timers -----------------------------------------------------------------------------------------

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        step = Step(now_ms)
        if isinstance(key, ExpiryTimer):
            self._expire(step)
        elif isinstance(key, DeletedTopicsTimer):
            self._clean_deleted_topics(step)
        elif isinstance(key, ConsumerTimer):
            self._consumer.on_timer(key, step)
        elif isinstance(key, ShareSessionTimer):
            self._share.on_timer(key, step)
        elif isinstance(key, SessionTimer | JoinTimer | SyncTimer | ReassignTimer):
            group = self._groups.get(key.group_id)
            if isinstance(group, ClassicGroup):
                self._on_classic_timer(group, key, step)
                self._forget_if_vacant(group)
        return step

    def _on_classic_timer(
        self, group: ClassicGroup, key: SessionTimer | JoinTimer | SyncTimer | ReassignTimer, step: Step
    ) -> None:
        if isinstance(key, SessionTimer):
            classic_rebalance.on_session_due(group, key.member_id, self.settings, step)
        elif isinstance(key, JoinTimer):
            classic_rebalance.on_join_due(group, self.settings, step)
        elif isinstance(key, ReassignTimer):
            if group.has_foreign_assignment:
                classic_rebalance.prepare_rebalance(group, self.settings, step)
        else:
            classic_rebalance.on_sync_due(group, self.settings, step)

    def _forget_if_vacant(self, group: ClassicGroup) -> None:
        """A group without members, record or offsets leaves no trace, nor does it after a restart."""
        if group.is_vacant and not self.offsets.has_any(group.group_id):
            self._groups.pop(group.group_id, None)

    # -- classic membership -----------------------------------------------------------------------------

    def join_group(
        self, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """JoinGroup 0-9 -> JoinGroupResponse, maybe much later."""
        step = Step(now_ms)
        code = check_join(request, self.settings)
        group = self._groups.get(request.group_id)
        is_consumer = isinstance(group, ConsumerGroup)
        if code is ErrorCode.NONE and isinstance(group, ConsumerGroup) and not group.is_empty:
            self._consumer.join_classic(group, request, context, token, step)
            return step
        if code is ErrorCode.NONE and (group is None or is_consumer) and request.member_id != NO_MEMBER_ID:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif code is ErrorCode.NONE and not (group is None or is_consumer or isinstance(group, ClassicGroup)):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not ErrorCode.NONE:
            step.reply(token, join_failure(code, request.member_id))
            return step
        classic = group if isinstance(group, ClassicGroup) else ClassicGroup(request.group_id)
        Join(classic, request, context, token, step).run(self.settings, self._randomness)
        if isinstance(group, ConsumerGroup):
            self._succeed(group, classic, step)
        else:
            self._groups[request.group_id] = classic
            if classic.state is EMPTY:
                self._forget_if_vacant(classic)
        return step

    def _succeed(self, group: ConsumerGroup, classic: ClassicGroup, step: Step) -> None:
        """The first member of the classic protocol, in an empty consumer group: that one goes, by its tombstones."""
        if not classic.is_vacant:
            step.records.extend(group.tombstones())
            group.successor = classic

    def sync_group(
        self, request: SyncGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """SyncGroup 0-5 -> SyncGroupResponse, when the leader's assignment is stored."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        if lacks_protocol(request, context):
            step.reply(token, SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif isinstance(group, ClassicGroup):
            sync(group, request, token, step)
        elif isinstance(group, ConsumerGroup):
            self._consumer.sync_classic(group, request, token, step)
        else:
            step.reply(token, SyncGroupResponse(error_code=_unknown(request.group_id)))
        return step

    def heartbeat(self, request: HeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        """Heartbeat 0-4 -> HeartbeatResponse."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            heartbeat(group, request, token, step)
        elif isinstance(group, ConsumerGroup):
            self._consumer.heartbeat_classic(group, request, token, step)
        else:
            step.reply(token, HeartbeatResponse(error_code=_unknown(request.group_id)))
        return step

    def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """LeaveGroup 0-5 -> LeaveGroupResponse."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            results = leave(group, leaving_members(request, context), self.settings, step)
            step.reply(token, leave_response(results, context))
            self._forget_if_vacant(group)
        elif isinstance(group, ConsumerGroup):
            gone = self._consumer.leave_classic(group, leaving_members(request, context), step)
            step.reply(token, leave_response(gone, context))
        else:
            unknown = unknown_members(leaving_members(request, context), _unknown(request.group_id))
            step.reply(token, leave_response(unknown, context))
        return step

    # -- consumer groups ----------------------------------------------------------------------------------

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """ConsumerGroupHeartbeat 0-1 -> ConsumerGroupHeartbeatResponse."""
        step = Step(now_ms)
        self._consumer.heartbeat(request, context, token, step)
        return step

    def describe_consumer_groups(self, group_ids: Iterable[str], token: Token, now_ms: int) -> Outcome:
        """ConsumerGroupDescribe 0-1 -> list[DescribedGroup], a part of the response."""
        step = Step(now_ms)
        step.reply(token, self._consumer.describe(group_ids))
        return step

    def on_topics_changed(self, names: Set[str], now_ms: int) -> Outcome:
        """These came, went or grew: groups that subscribe to them look at their next heartbeat."""
        self._consumer.on_topics_changed(names)
        return self.with_share_groups(lambda share, step: share.on_topics_changed(step), now_ms)

    def with_share_groups(self, act: Callable[[ShareGroups, Step], None], now_ms: int) -> Outcome:
        """Anything about share groups: `act` calls one of the methods of `ShareGroups`."""
        step = Step(now_ms)
        act(self._share, step)
        return step

    # -- offsets ----------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """OffsetCommit 2-10 -> OffsetCommitResponse; topics have names, ids are handed through."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        response = commit_offsets(group, request, context, self.settings.offset_metadata_max_bytes, step)
        step.reply(token, response)
        return step

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """TxnOffsetCommit 0-5 -> TxnOffsetCommitResponse.

        The records belong in a transactional batch of the request's producer id and epoch, after the partition was
        found to be part of its transaction; they come back through `replay` with that producer id.
        """
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        max_metadata = self.settings.offset_metadata_max_bytes
        step.reply(token, commit_transactional_offsets(group, request, max_metadata, step))
        return step

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, require_stable: bool, token: Token, now_ms: int
    ) -> Outcome:
        """OffsetFetch 1-10, one group -> OffsetFetchResponseGroup, a part of the response."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        step.reply(token, fetch_offsets(group, self.offsets, request, require_stable))
        return step

    def delete_offsets(self, request: OffsetDeleteRequest, token: Token, now_ms: int) -> Outcome:
        """OffsetDelete 0 -> OffsetDeleteResponse."""
        step = Step(now_ms)
        group = self._groups.get(request.group_id)
        step.reply(token, delete_offsets(group, self.offsets, request, step))
        return step

    # -- administration ---------------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest, token: Token, now_ms: int) -> Outcome:
        """ListGroups 0-5 -> list[ListedGroup], a part of the response; filters ignore case."""
        step = Step(now_ms)
        states = {state.strip().lower() for state in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        listed: list[ListedGroup] = [
            group.listed() for group in self._groups.values() if not types or group.group_type in types
        ]
        step.reply(token, [entry for entry in listed if not states or entry.group_state.lower() in states])
        return step

    def describe_groups(
        self, group_ids: Iterable[str], context: RequestContext, token: Token, now_ms: int
    ) -> Outcome:
        """DescribeGroups 0-6 -> list[DescribedGroup], a part of the response.

        A group that is not there, or of another kind, is Dead; from version 6 that is GROUP_ID_NOT_FOUND.
        """
        step = Step(now_ms)
        step.reply(token, [self._describe(group_id, context) for group_id in group_ids])
        return step

    def _describe(self, group_id: str, context: RequestContext) -> DescribedGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.described()
        described = DescribedGroup(group_id=group_id, group_state="Dead")
        if context.api_version >= FIRST_DESCRIBE_VERSION_WITH_NOT_FOUND:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_other = group is not None
            described.error_message = (
                f"Group {group_id} {'is not a classic group' if is_other else 'not found'}."
            )
        return described

    def delete_groups(self, group_ids: Iterable[str], token: Token, now_ms: int) -> Outcome:
        """DeleteGroups 0-2 -> list[DeletableGroupResult], a part of the response; offsets go with the group."""
        step = Step(now_ms)
        step.reply(token, [self._delete(group_id, step) for group_id in dict.fromkeys(group_ids)])
        return step

    def _delete(self, group_id: str, step: Step) -> DeletableGroupResult:
        group = self._groups.get(group_id)
        if group is None:
            return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        try:
            group.check_delete()
        except ApiError as failure:
            return DeletableGroupResult(group_id=group_id, error_code=failure.code)
        for key in self.offsets.keys_of(group_id):
            step.append(offset_tombstone(group_id, key))
        step.records.extend(group.tombstones())
        return DeletableGroupResult(group_id=group_id)

    # -- cleaning up ------------------------------------------------------------------------------------

    def on_topics_deleted(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Topics are gone, and so are the offsets that were committed for them."""
        step = Step(now_ms)
        self._deleted_topics.update(topics)
        self._consumer.on_topics_changed(self._deleted_topics)
        self._clean_deleted_topics(step)
        return step

    def _clean_deleted_topics(self, step: Step) -> None:
        found = self.offsets.of_topics(self._deleted_topics)
        records = [offset_tombstone(*entry) for entry in islice(found, MAX_TOMBSTONES)]
        step.records.extend(records)
        if len(records) == MAX_TOMBSTONES:
            step.set_timer(DeletedTopicsTimer(), 0)
        else:
            self._deleted_topics.clear()

    def _expire(self, step: Step) -> None:
        records = list(islice(self._expired(step.now_ms), MAX_TOMBSTONES))
        step.records.extend(records)
        is_done = len(records) < MAX_TOMBSTONES
        step.set_timer(ExpiryTimer(), self.settings.offsets_retention_check_interval_ms if is_done else 0)

    def _expired(self, now_ms: int) -> Iterator[CoordinatorRecord]:
        """Tombstones of expired offsets, and of groups that nothing is left of."""
        retention_ms = self.settings.offsets_retention_ms
        for group_id, group in self._groups.items():
            if isinstance(group, ShareGroup):
                continue
            if isinstance(group, ClassicGroup) and group.is_abandoned:
                yield group.empty_record(now_ms)
                continue
            expired = list(expired_offsets(group, self.offsets, retention_ms, now_ms))
            yield from (offset_tombstone(group_id, key) for key in expired)
            has_more = len(self.offsets.of_group(group_id)) > len(expired)
            is_in_use = self.offsets.has_open_transaction(group_id) or not group.is_empty
            has_pending = isinstance(group, ClassicGroup) and group.members.pending
            if not (has_more or is_in_use or has_pending):
                yield from group.tombstones()
