"""A consumer group of the newer protocol (KIP-848): its members, who owns what, and what it is called.

See `modern` for the epochs. A member is in one of three states on its way to the target assignment:

    state        | what it means                                             | next
    -------------+-----------------------------------------------------------+-------------------------------------
    STABLE       | it has all that the target gives it                       | UNREVOKED, UNRELEASED
    UNREVOKED    | it was told to give partitions up and has not done so yet | STABLE, UNRELEASED, or it is fenced
    UNRELEASED   | it waits for partitions that others still own             | STABLE, UNREVOKED

`owners` says who owns a partition: the member that has it assigned, or has been told to give it up and has not done
so. A partition goes to another member only when nobody owns it (`consumer_reconciliation`).

The group's own state follows from the rest:

    Empty         no members
    Assigning     the group epoch is ahead of the target epoch
    Reconciling   some member has not reached the target
    Stable        otherwise

Everything here is durable: `replay_*` are the only mutators, one for each type of record, in the order in which the
log has them. Compaction may remove a record that another one was written after, so that a member may appear with its
assignment before its subscription; and for a moment two members may seem to own a partition: the later record wins.

A member may speak the classic protocol (`classic` is set): such a group is on its way between the two protocols
(`consumer_classic`, `consumer_migration`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group import consumer_records as records
from tidemill.coordination.group.assignor import NOTHING, Assignment
from tidemill.coordination.group.contract import (
    CONSUMER_PROTOCOL_TYPE,
    NO_GENERATION,
    ConsumerSettings,
    Group,
    Step,
)
from tidemill.coordination.group.modern import STATIC_LEAVING_EPOCH, ModernGroup, ModernMember, Topics
from tidemill.coordination.records.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.list_groups import ListedGroup

FIRST_COMMIT_VERSION_WITH_EPOCHS = 9
NO_EPOCH = -1


class MemberState(enum.IntEnum):
    """The numbers are those of the records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


class ClassicFacts(NamedTuple):
    """What is known of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and subscription, most wanted first."""


PartitionEpochs = Mapping[tuple[bytes, int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerMember(ModernMember):
    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    regex: str = ""
    """It also subscribes to all topics whose name this matches."""
    server_assignor: str | None = None
    state: MemberState = MemberState.STABLE
    pending_revocation: Assignment = dataclasses.field(default_factory=lambda: NOTHING)
    """What it was told to give up, and owns until it says that it has."""
    assignment_epochs: PartitionEpochs = dataclasses.field(default_factory=dict)
    """Since which epoch it owns each of its partitions: with an epoch from then on it may commit offsets."""
    classic: ClassicFacts | None = None

    def owned(self) -> Iterable[tuple[bytes, int]]:
        for assignment in (self.assigned, self.pending_revocation):
            for topic_id, indexes in assignment.items():
                for index in indexes:
                    yield topic_id, index


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerSessionTimer:
    """A member was not heard of for its session time-out."""

    group_id: str
    member_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class RevocationTimer:
    """The time to give partitions up is over."""

    group_id: str
    member_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class RejoinTimer:
    """A member of the classic protocol was told to join again, and the time for it is over."""

    group_id: str
    member_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class ResyncTimer:
    """A member of the classic protocol joined again, and the time to fetch its assignment is over."""

    group_id: str
    member_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class DowngradeTimer:
    """Only members of the classic protocol are left: the group is to become classic."""

    group_id: str


MemberTimer = ConsumerSessionTimer | RevocationTimer | RejoinTimer | ResyncTimer
ConsumerTimer = MemberTimer | DowngradeTimer


class ConsumerGroup(ModernGroup[ConsumerMember]):
    """A `contract.Group`."""

    group_type = "consumer"

    def __init__(self, group_id: str, topics: Topics, settings: Callable[[], ConsumerSettings]) -> None:
        super().__init__(group_id)
        self._settings = settings
        self._topics = topics
        self.instances: dict[str, str] = {}
        """Static members: instance id to member id."""
        self.owners: dict[tuple[bytes, int], str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.waits_for_rejoin: set[str] = set()
        """Members of the classic protocol that were told to join again; soft."""
        self.successor: Group | None = None
        """The classic group that takes its place when its tombstones are replayed, and not if they cannot be
        written; soft."""

    # -- replaying --------------------------------------------------------------------------------------

    def put_member(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._disown(before)
        super().put_member(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        for partition in member.owned():
            self.owners[partition] = member.member_id

    def drop_member(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._disown(member)
        self.waits_for_rejoin.discard(member_id)
        super().drop_member(member_id)

    def _disown(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]
        for partition in member.owned():
            if self.owners.get(partition) == member.member_id:
                del self.owners[partition]

    def replay_epoch(self, value: ConsumerGroupMetadataValue) -> None:
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        if value is None:
            self.drop_member(member_id)
            return
        before = self.members.get(member_id) or ConsumerMember(member_id)
        classic = value.classic_member_metadata
        self.put_member(
            dataclasses.replace(
                before,
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
                regex=value.subscribed_topic_regex or "",
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor,
                classic=None
                if classic is None
                else ClassicFacts(
                    classic.session_timeout_ms,
                    tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
                ),
            )
        )

    def replay_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        before = self.members.get(member_id)
        if value is None:
            if before is not None:
                self.put_member(
                    dataclasses.replace(
                        before, member_epoch=NO_EPOCH, assigned=NOTHING, pending_revocation=NOTHING
                    )
                )
            return
        epochs: dict[tuple[bytes, int], int] = {}
        assigned = records.read_partitions(value.assigned_partitions, value.member_epoch, epochs)
        pending = records.read_partitions(value.partitions_pending_revocation, value.member_epoch, epochs)
        is_known = value.state in MemberState.__members__.values()
        self.put_member(
            dataclasses.replace(
                before or ConsumerMember(member_id),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                state=MemberState(value.state) if is_known else MemberState.UNKNOWN,
                assigned=assigned,
                pending_revocation=pending,
                assignment_epochs=epochs,
            )
        )

    def replay_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)

    # -- reading ----------------------------------------------------------------------------------------

    def subscription_of(
        self, member: ConsumerMember, regexes: Mapping[str, ResolvedRegex] | None = None
    ) -> frozenset[str]:
        """The topics by name and those that its expression matches, as far as it is resolved."""
        resolved = (self.regexes if regexes is None else regexes).get(member.regex) if member.regex else None
        if resolved is None:
            return member.subscribed_topic_names
        return member.subscribed_topic_names | resolved.topics

    def subscribed_topic_names(self) -> set[str]:
        names = super().subscribed_topic_names()
        return names.union(*(resolved.topics for resolved in self.regexes.values()))

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(self.is_reconciled(member) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def has_only_classic_members(self) -> bool:
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def is_reconciled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.member_epoch == self.target_epoch

    def preferred_assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """The one that most members ask for."""
        votes = Counter(member.server_assignor for member in members if member.server_assignor)
        return max(sorted(votes), key=lambda name: votes[name], default=default)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition that the member is to have is still owned by somebody else."""
        return any(
            self.owners.get((topic_id, index), member.member_id) != member.member_id
            for topic_id, indexes in self.target_of(member.member_id).items()
            for index in indexes
        )

    # -- contract: offsets ------------------------------------------------------------------------------

    def member_or_refuse(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")
        return member

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        api_version: int = FIRST_COMMIT_VERSION_WITH_EPOCHS,
        partitions: Iterable[tuple[str, int]] = (),
    ) -> None:
        """A member may be an epoch behind for partitions that it has owned since before (KIP-1251).

        A transactional commit may name nobody at all: its fence is the producer's epoch.
        """
        names_nobody = generation == NO_GENERATION and not member_id and instance_id is None
        if (generation < 0 and not self.members) or (is_transactional and names_nobody):
            return
        member = self.member_or_refuse(member_id)
        speaks_classic = member.classic is not None
        if not is_transactional and not speaks_classic and api_version < FIRST_COMMIT_VERSION_WITH_EPOCHS:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if generation == member.member_epoch:
            return
        is_behind = 0 <= generation < member.member_epoch
        if is_behind and all(
            generation >= self._owned_since(member, topic, index) for topic, index in partitions
        ):
            return
        is_classic_error = speaks_classic or is_transactional
        raise ApiError(ErrorCode.ILLEGAL_GENERATION if is_classic_error else ErrorCode.STALE_MEMBER_EPOCH)

    def _owned_since(self, member: ConsumerMember, topic_name: str, index: int) -> int:
        topic = self._topics.by_name(topic_name)
        key = (b"" if topic is None else topic.topic_id, index)
        return member.assignment_epochs.get(key, member.member_epoch)

    def keep_session(self, member_id: str, step: Step) -> None:
        """Only heartbeats keep a member alive; one of the classic protocol also does so by commits."""
        member = self.members.get(member_id)
        if member is not None and member.classic is not None:
            self.restart_session(member, step)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member_or_refuse(member_id or "")
        if member_epoch != member.member_epoch:
            speaks_classic = member.classic is not None
            raise ApiError(ErrorCode.ILLEGAL_GENERATION if speaks_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def check_offset_delete(self) -> None:
        """Topics that somebody subscribes to are refused one by one."""

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._subscribers or any(topic in each.topics for each in self.regexes.values())

    def offset_retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """Offsets of topics that nobody subscribes to expire by their own age, as in Kafka."""
        return commit_timestamp_ms

    # -- contract: the shard ----------------------------------------------------------------------------

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            group_state=self.state,
            group_type=self.group_type,
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        """A successor that was not written before these is none of theirs."""
        group_id = self.group_id
        self.successor = None
        return [
            *(records.current_tombstone(group_id, member_id) for member_id in self.members),
            *(records.target_tombstone(group_id, member_id) for member_id in self.target),
            records.target_epoch_tombstone(group_id),
            *(records.member_tombstone(group_id, member_id) for member_id in self.members),
            *(records.regex_tombstone(group_id, regex) for regex in self.regexes),
            records.partition_metadata_tombstone(group_id),
            records.epoch_tombstone(group_id),
        ]

    def restart_session(self, member: ConsumerMember, step: Step) -> None:
        classic = member.classic
        delay_ms = self._settings().session_timeout_ms if classic is None else classic.session_timeout_ms
        step.set_timer(ConsumerSessionTimer(self.group_id, member.member_id), delay_ms)

    def restore_timers(self, step: Step) -> None:
        for member in self.members.values():
            self.restart_session(member, step)
            is_here = member.classic is None and member.member_epoch != STATIC_LEAVING_EPOCH
            if is_here and member.state is MemberState.UNREVOKED:
                step.set_timer(RevocationTimer(self.group_id, member.member_id), member.rebalance_timeout_ms)

        if self.has_only_classic_members:
            step.set_timer(DowngradeTimer(self.group_id), 0)

    def unload(self, step: Step) -> None:
        """Nobody waits for an answer."""


def apply(group: ConsumerGroup, record: CoordinatorRecord) -> None:
    """Replay one record into its group: all types but the tombstone of the group itself."""
    key: Any = record.key
    value: Any = record.value
    if record.type == records.EPOCH:
        group.replay_epoch(value)
    elif record.type == records.MEMBER:
        group.replay_member(key.member_id, value)
    elif record.type == records.CURRENT:
        group.replay_current(key.member_id, value)
    elif record.type == records.TARGET:
        group.put_target(key.member_id, None if value is None else records.read_target(value))
    elif record.type == records.TARGET_EPOCH:
        group.target_epoch = 0 if value is None else value.assignment_epoch
    elif record.type == records.REGEX:
        group.replay_regex(key.regular_expression, value)
