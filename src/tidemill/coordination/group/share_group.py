"""A share group (KIP-932): members that share partitions, and which of those have state.

See `modern` for the epochs. There is no reconciliation: nothing is taken from one member before another gets it, so
that a member has its target with its next heartbeat. The group is Empty without members and Stable otherwise. It has no
committed offsets: where it stands is the state of its share partitions, which the share coordinator keeps.

Everything here is durable and changed by `replay` alone, except `is_metadata_stale`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NoReturn

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group import share_group_records as records
from tidemill.coordination.group.assignor import NOTHING, Assignment
from tidemill.coordination.group.contract import Step
from tidemill.coordination.group.modern import ModernGroup, ModernMember
from tidemill.coordination.group.share_state_partitions import StatePartitions
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.list_groups import ListedGroup

SHARE_PROTOCOL_TYPE = "share"


@dataclasses.dataclass(frozen=True, slots=True)
class ShareSessionTimer:
    """A member was not heard of for its session time-out."""

    group_id: str
    member_id: str


class ShareGroup(ModernGroup[ModernMember]):
    """A `contract.Group`."""

    group_type = "share"

    def __init__(self, group_id: str, session_timeout_ms: int) -> None:
        super().__init__(group_id)
        self.session_timeout_ms = session_timeout_ms
        self.state_partitions = StatePartitions()

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        return not self.members

    # -- replaying --------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """All types but the tombstone of the group itself."""
        key: Any = record.key
        value: Any = record.value
        match record.type:
            case records.EPOCH:
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                self.is_metadata_stale = False
            case records.TARGET_EPOCH:
                self.target_epoch = 0 if value is None else value.assignment_epoch
            case records.TARGET:
                self.put_target(key.member_id, None if value is None else records.read_target(value))
            case records.MEMBER:
                self._replay_member(key.member_id, value)
            case records.CURRENT:
                self._replay_current(key.member_id, value)
            case records.STATE_PARTITIONS:
                self.is_metadata_stale = True
                self.state_partitions = (
                    StatePartitions() if value is None else records.read_state_partitions(value)
                )

    def _replay_member(self, member_id: str, value: Any) -> None:
        if value is None:
            self.drop_member(member_id)
            return
        self.put_member(
            dataclasses.replace(
                self.members.get(member_id) or ModernMember(member_id),
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
            )
        )

    def _replay_current(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is None:
            if before is not None:
                self.put_member(dataclasses.replace(before, member_epoch=-1, assigned=NOTHING))
            return
        self.put_member(
            dataclasses.replace(
                before or ModernMember(member_id),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                assigned=records.read_assigned(value),
            )
        )

    # -- reading ----------------------------------------------------------------------------------------

    def member_or_refuse(self, member_id: str) -> ModernMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def targeted(self) -> Assignment:
        """All partitions that some member is to have."""
        found: dict[bytes, frozenset[int]] = {}
        for assignment in self.target.values():
            for topic_id, indexes in assignment.items():
                found[topic_id] = found.get(topic_id, frozenset()) | indexes
        return found

    # -- contract: offsets ------------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        api_version: int = 0,
        partitions: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._refuse_offsets()

    def keep_session(self, member_id: str, step: Step) -> None:
        """Only heartbeats do."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may ask; there are none."""

    def check_offset_delete(self) -> None:
        self._refuse_offsets()

    def _refuse_offsets(self) -> NoReturn:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topic_names()

    def offset_retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        return None

    # -- contract: the shard ----------------------------------------------------------------------------

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=SHARE_PROTOCOL_TYPE,
            group_state=self.state,
            group_type=self.group_type,
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        members = [
            record
            for member_id in sorted(self.members.keys() | self.target.keys())
            for record in records.member_tombstones(self.group_id, member_id)
        ]
        return [*members, *records.group_tombstones(self.group_id)]

    def restart_session(self, member_id: str, step: Step) -> None:
        step.set_timer(ShareSessionTimer(self.group_id, member_id), self.session_timeout_ms)

    def restore_timers(self, step: Step) -> None:
        for member_id in self.members:
            self.restart_session(member_id, step)

    def unload(self, step: Step) -> None:
        """Nobody waits for an answer."""
