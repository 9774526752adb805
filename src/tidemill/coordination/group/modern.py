"""What groups of the newer protocols have in common: the coordinator decides who reads what, and epochs say when.

Members of such a group do not meet in a rebalance. Each sends heartbeats and is told, by itself, what it may read now.
Three epochs tell how far things are:

    group epoch     grows when something is to be decided anew: a member came, went or changed its subscription, or a
                    topic that is subscribed to came, went or grew
    target epoch    the group epoch for which the assignor has made the target assignment (Kafka calls it the
                    assignment epoch)
    member epoch    the target epoch that the member has got to; 0 is a member that joins, -1 one that leaves

    group epoch >= target epoch >= every member's epoch

Worked example: A reads alone, then B joins.

    event                                   group  target  A      B
    --------------------------------------  -----  ------  -----  -----
    A joins                                 1      1       1
    B joins: the target is made anew        2      2       1      2       B is in, with what is free
    A's heartbeat                           2      2       2      2       A has only what the target gives it

How a member gets from its epoch to the target differs: in a consumer group a partition is first given up by one
member, then given to another (`consumer_reconciliation`); in a share group partitions are shared, so that a member has
its target at once.

Everything here is durable and changed by replay alone, except `is_metadata_stale`. The coordinator knows topics by the
port `Topics`. To find out whether a topic has changed it keeps one number, the hash of all that it subscribes to
(`metadata_hash`); when topics change the shard marks the groups concerned as stale, and their next heartbeat compares.

Limits: the hash is not the one that Kafka computes. A group that moves between the two brokers gets a new epoch, once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidemill.coordination.group.assignor import NOTHING, Assignment, Assignor, GroupSpec, MemberSpec

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""A static member goes away for a while; its partitions wait for it."""
FIRST_GROUP_EPOCH = 2
"""As in Kafka: there a group has epoch 1 before its first member has come."""
NO_METADATA_HASH = 0


def next_epoch(epoch: int) -> int:
    """Of a group that has this one; one that is still to be made has 0."""
    return epoch + 1 if epoch else FIRST_GROUP_EPOCH


# -- topics -----------------------------------------------------------------------------------------------


class Topic(NamedTuple):
    topic_id: bytes
    name: str
    partition_count: int


class Topics(Protocol):
    """The topics of the cluster as they are now."""

    def by_name(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: bytes) -> Topic | None: ...

    def names(self) -> Iterable[str]:
        """Of all topics."""
        ...


class FixedTopics:
    """Topics that somebody sets by hand; tests and simulations change them."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._by_name: dict[str, Topic] = {topic.name: topic for topic in topics}

    def put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic

    def remove(self, name: str) -> None:
        del self._by_name[name]

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return next((topic for topic in self._by_name.values() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self._by_name.keys()


def existing_topics(names: Iterable[str], topics: Topics) -> list[Topic]:
    """Those of these that exist, in the order of their names."""
    found = (topics.by_name(name) for name in sorted(names))
    return [topic for topic in found if topic is not None]


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A number that changes whenever one of these topics comes, goes, or grows; signed, of 64 bits."""
    existing = existing_topics(names, topics)
    if not existing:
        return NO_METADATA_HASH
    text = "\n".join(f"{topic.name} {topic.topic_id.hex()} {topic.partition_count}" for topic in existing)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


# -- members and groups -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ModernMember:
    """A member as the records say it is; a change makes a new one (`dataclasses.replace`)."""

    member_id: str
    member_epoch: int = JOINING_EPOCH
    previous_member_epoch: int = -1
    """A member whose answer was lost comes with this one again."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Assignment = dataclasses.field(default_factory=lambda: NOTHING)
    """What it may read now."""


M = TypeVar("M", bound=ModernMember)


class ModernGroup(Generic[M]):
    """Epochs, members and the target assignment. `members` is changed by `put_member` and `drop_member` only."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = NO_METADATA_HASH
        """Of the topics that the group subscribed to when its epoch was made."""
        self.target_epoch = 0
        self.target: dict[str, Assignment] = {}
        """By member id."""
        self.members: dict[str, M] = {}
        self.is_metadata_stale = True
        """Whether topics may have changed since the hash was compared; a restart does not know."""
        self._subscribers: Counter[str] = Counter()

    # -- replaying --------------------------------------------------------------------------------------

    def put_member(self, member: M) -> None:
        """A new member, or what has become of one."""
        before = self.members.get(member.member_id)
        if before is None or before.subscribed_topic_names != member.subscribed_topic_names:
            if before is not None:
                self._unsubscribe(before)
            self._subscribers.update(member.subscribed_topic_names)
        self.members[member.member_id] = member

    def drop_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._unsubscribe(member)

    def _unsubscribe(self, member: M) -> None:
        for name in member.subscribed_topic_names:
            self._subscribers[name] -= 1
            if not self._subscribers[name]:
                del self._subscribers[name]

    def put_target(self, member_id: str, assignment: Assignment | None) -> None:
        """What the member is to have; None if it is no member any more."""
        if assignment is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = assignment

    # -- reading ----------------------------------------------------------------------------------------

    def subscribed_topic_names(self) -> set[str]:
        """Of all members."""
        return {name for name, count in self._subscribers.items() if count > 0}

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, NOTHING)


# -- target assignments -----------------------------------------------------------------------------------


def make_target(
    assignor: Assignor,
    subscriptions: Mapping[str, frozenset[str]],
    topics: Topics,
    assigned: Callable[[str], Assignment],
    instances: Mapping[str, str | None] | None = None,
) -> dict[str, Assignment]:
    """The target assignment of all members; `subscriptions` are topic names by member id.

    `assigned` says what a member was to have until now, usually `group.target_of`.
    """
    names = frozenset().union(*subscriptions.values())
    existing = {topic.name: topic for topic in existing_topics(names, topics)}
    ids_of: dict[frozenset[str], frozenset[bytes]] = {
        wanted: frozenset(existing[name].topic_id for name in wanted if name in existing)
        for wanted in set(subscriptions.values())
    }
    members = {
        member_id: MemberSpec(ids_of[wanted], assigned(member_id), (instances or {}).get(member_id))
        for member_id, wanted in subscriptions.items()
    }
    counts = {topic.topic_id: topic.partition_count for topic in existing.values()}
    return assignor.assign(GroupSpec(members, counts))


def changed_targets(
    before: Mapping[str, Assignment], after: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Only what needs a record."""
    return {
        member_id: assignment
        for member_id, assignment in sorted(after.items())
        if member_id not in before or before[member_id] != assignment
    }
