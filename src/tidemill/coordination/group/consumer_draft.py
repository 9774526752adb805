"""A consumer group as it will be when the records of this step are replayed.

Rules that build on each other (the member joins, so the epoch grows, so the target is made anew, so the member is
reconciled) need to see what the earlier ones decided, while the group itself changes by replay only. A draft lies over
the group like a sheet of tracing paper: what changes is written on it, and as a record; the rest shines through.

    draft = Draft(group, topics, step)
    draft.describe(member)                # a record, if its subscription or the like is different
    draft.settle(member)                  # a record, if its epoch or what it has is different
    draft.drop("m-2")                     # tombstones
    draft.bump()                          # the next group epoch
    draft.make_target(assignor)           # the target of that epoch; only what changed is written
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tidemill.coordination.group import consumer_records as records
from tidemill.coordination.group.assignor import NOTHING, Assignment, Assignor
from tidemill.coordination.group.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from tidemill.coordination.group.consumer_regex import topics_matching
from tidemill.coordination.group.contract import Step
from tidemill.coordination.group.modern import (
    Topics,
    changed_targets,
    make_target,
    metadata_hash,
    next_epoch,
)


class Draft:
    def __init__(self, group: ConsumerGroup, topics: Topics, step: Step) -> None:
        self.group = group
        self.group_id = group.group_id
        self.topics = topics
        self.step = step
        self.members: dict[str, ConsumerMember] = dict(group.members)
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.target: dict[str, Assignment] = dict(group.target)
        self.regexes: dict[str, ResolvedRegex] = dict(group.regexes)
        self.afterwards: list[Callable[[], None]] = []
        """Soft changes, for when nothing can be refused any more."""
        self._heirs: dict[str, str] = {}
        """Members that another one takes the place of, or that are gone (themselves)."""

    # -- members ----------------------------------------------------------------------------------------

    def describe(self, member: ConsumerMember) -> None:
        """Who it is and what it wants; what it has is not decided yet."""
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if before is None or _described(before) != _described(member):
            self.step.append(records.member_record(self.group_id, member))

    def settle(self, member: ConsumerMember) -> None:
        """What it has."""
        before = self.group.members.get(member.member_id)
        self.members[member.member_id] = member
        if before is None or _current(before) != _current(member):
            self.step.append(records.current_record(self.group_id, member))

    def drop(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self.target.pop(member_id, None)
        self._heirs[member_id] = member_id
        self.step.append(records.current_tombstone(self.group_id, member_id))
        self.step.append(records.target_tombstone(self.group_id, member_id))
        self.step.append(records.member_tombstone(self.group_id, member_id))

    def replace(self, old: ConsumerMember, heir: ConsumerMember) -> None:
        """A static member comes back under another id: all that the old one had and was to have is its own."""
        target = self.target.get(old.member_id, NOTHING)
        self.drop(old.member_id)
        self._heirs[old.member_id] = heir.member_id
        self.target[heir.member_id] = target
        self.describe(heir)
        self.step.append(records.target_record(self.group_id, heir.member_id, target))
        self.step.append(records.current_record(self.group_id, heir))

    def is_free_for(self, member_id: str, topic_id: bytes, index: int) -> bool:
        owner = self.group.owners.get((topic_id, index))
        if owner is None or owner == member_id:
            return True
        return self._heirs.get(owner) in (owner, member_id)

    # -- subscriptions ----------------------------------------------------------------------------------

    def subscription_of(self, member: ConsumerMember) -> frozenset[str]:
        return self.group.subscription_of(member, self.regexes)

    def subscribed_names(self) -> frozenset[str]:
        return frozenset().union(*(self.subscription_of(member) for member in self.members.values()))

    def resolve_regexes(self, *, again: bool) -> bool:
        """Resolve expressions that are new, or all `again`, forget those that nobody uses; whether topics changed."""
        used = {member.regex for member in self.members.values() if member.regex}
        for regex in self.regexes.keys() - used:
            del self.regexes[regex]
            self.step.append(records.regex_tombstone(self.group_id, regex))
        wanted = sorted(used if again else used - self.regexes.keys())
        changed = [regex for regex in wanted if self._resolve(regex)]
        return bool(changed)

    def _resolve(self, regex: str) -> bool:
        before = self.regexes.get(regex)
        found = topics_matching(regex, self.topics.names())
        if before is not None and before.topics == found:
            return False
        version = 0 if before is None else before.version + 1
        self.regexes[regex] = ResolvedRegex(found, version, self.step.now_ms)
        self.step.append(records.regex_record(self.group_id, regex, self.regexes[regex]))
        return True

    # -- epochs -----------------------------------------------------------------------------------------

    def bump(self) -> None:
        self.epoch = next_epoch(self.epoch)
        value = metadata_hash(self.subscribed_names(), self.topics)
        self.step.append(records.epoch_record(self.group_id, self.epoch, value))

    def has_metadata_changed(self) -> bool:
        return metadata_hash(self.subscribed_names(), self.topics) != self.group.metadata_hash

    def make_target(self, assignor: Assignor) -> None:
        target = make_target(
            assignor,
            {member_id: self.subscription_of(member) for member_id, member in self.members.items()},
            self.topics,
            lambda member_id: self.target.get(member_id, NOTHING),
            {member_id: member.instance_id for member_id, member in self.members.items()},
        )
        for member_id, assignment in changed_targets(self.target, target).items():
            self.step.append(records.target_record(self.group_id, member_id, assignment))
        self.target, self.target_epoch = target, self.epoch
        self.step.append(records.target_epoch_record(self.group_id, self.epoch, self.step.now_ms))


_CURRENT_FIELDS = (
    "member_epoch",
    "previous_member_epoch",
    "state",
    "assigned",
    "pending_revocation",
    "assignment_epochs",
)
_DESCRIBING_FIELDS = tuple(
    field.name for field in dataclasses.fields(ConsumerMember) if field.name not in _CURRENT_FIELDS
)


def _described(member: ConsumerMember) -> tuple[object, ...]:
    return tuple(getattr(member, name) for name in _DESCRIBING_FIELDS)


def _current(member: ConsumerMember) -> tuple[object, ...]:
    return tuple(getattr(member, name) for name in _CURRENT_FIELDS)
