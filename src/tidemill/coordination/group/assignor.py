"""What a server-side assignor is: it sees the whole group at once and says who is to read what.

Assignments name topics by id, so that a topic that was deleted and made again is another topic:

    spec = GroupSpec(
        members={"a": MemberSpec(topic_ids=frozenset({ORDERS})), "b": MemberSpec(topic_ids=frozenset({ORDERS}))},
        partition_counts={ORDERS: 3},
    )
    UniformAssignor().assign(spec)     # {"a": {ORDERS: frozenset({0, 1})}, "b": {ORDERS: frozenset({2})}}

An assignor is a pure function. Every member of the spec is in its answer, if need be with nothing. Topics that do not
exist are not in the spec: `topic_ids` and `partition_counts` hold only what there is to read.

The assignors of consumer groups are `uniform` and `range` (`assignors_consumer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id to partitions; no topic without partitions."""
NOTHING: Assignment = MappingProxyType({})


class MemberSpec(NamedTuple):
    """What an assignor sees of a member."""

    topic_ids: frozenset[bytes] = frozenset()
    """Of the topics that it subscribes to and that exist."""
    assigned: Assignment = NOTHING
    """What it was to have until now: for assignors that are sticky."""
    instance_id: str | None = None
    rack_id: str | None = None


class GroupSpec(NamedTuple):
    """What an assignor sees of a group."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]
    """Of every topic that some member subscribes to."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({member.topic_ids for member in self.members.values()}) <= 1


class Assignor(Protocol):
    @property
    def name(self) -> str: ...

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]: ...
