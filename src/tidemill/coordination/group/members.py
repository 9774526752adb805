"""The members of a classic group: who they are, what they can do, who waits for an answer.

A member has three lives. It is *pending* when the coordinator has given it an id and waits for it to come back with
it (only the id is known). It is a *member* from its first complete join. It is *known to the log* once an assignment
that names it was stored. A member with an instance id is *static*: it may restart under a new member id, and the
instance id says that it is the same.

Each member lists the protocols (assignors) that it can do, in its order of preference, with its metadata for each.
The group takes one that all members can do. Every member votes for the first in its list that all can do, and the
protocol with most votes wins:

    A: [cooperative-sticky, range]     votes range (B cannot do cooperative-sticky)
    B: [range, roundrobin]             votes range

Limits: a tie goes to the protocol that was voted for first, in the order in which members joined.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterator

from tidemill.coordination.core import Token

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata), most wanted first."""


@dataclasses.dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """In its first join: it cannot send heartbeats yet, so waiting does not keep it alive."""
    session_due_ms: int = 0
    """When its session ends if nothing is heard of it."""
    session_timer: Hashable = None
    """The key of its timer, made once: it is put off with every heartbeat."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


class Members:
    """All members of one group, in the order in which they joined.

    Invariants: every static member is in `instances` under its instance id; only members wait for a join or a sync;
    no id is pending and a member at once; `leader` is a member, or None when there are none.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        """For reading; `add` and `remove` keep the rest in step."""
        self._supported: Counter[str] = Counter()
        self.instances: dict[str, str] = {}
        self.pending: set[str] = set()
        self.leader: str | None = None
        self.join_tokens: dict[str, Token] = {}
        self.sync_tokens: dict[str, Token] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self.by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self.by_id[member_id]

    def get(self, member_id: str) -> ClassicMember | None:
        return self.by_id.get(member_id)

    # -- come and go ------------------------------------------------------------------------------------

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self.by_id
        if member.instance_id is not None:
            assert member.instance_id not in self.instances
            self.instances[member.instance_id] = member.member_id
        self.by_id[member.member_id] = member
        self._supported.update(_names(member.protocols))
        self.pending.discard(member.member_id)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Also forgets what it waits for: answer it before."""
        self.pending.discard(member_id)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return
        self._supported.subtract(_names(member.protocols))
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self.join_tokens.pop(member_id, None)
        self.sync_tokens.pop(member_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)

    def replace(self, old_member_id: str, successor: ClassicMember) -> None:
        """A static member came back under a new id: it keeps its place, also as leader."""
        was_leader = self.leader == old_member_id
        self.remove(old_member_id)
        self.add(successor)
        if was_leader:
            self.leader = successor.member_id

    def set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        if protocols == member.protocols:
            return
        self._supported.subtract(_names(member.protocols))
        member.protocols = protocols
        self._supported.update(_names(protocols))

    # -- what they say together -------------------------------------------------------------------------

    def is_waiting(self, member_id: str) -> bool:
        """Whoever waits for an answer of ours is not expected to send heartbeats."""
        return member_id in self.join_tokens or member_id in self.sync_tokens

    @property
    def have_all_joined(self) -> bool:
        return len(self.join_tokens) == len(self.by_id) and not self.pending

    def not_rejoined(self) -> list[ClassicMember]:
        return [member for member in self if member.member_id not in self.join_tokens]

    def can_all_do_one_of(self, protocols: Protocols) -> bool:
        supported, everybody = self._supported, len(self.by_id)
        return everybody in [supported[name] for name, _ in protocols]

    def elect(self) -> str:
        """The protocol for the next generation."""
        candidates = {name for name, count in self._supported.items() if count == len(self.by_id)}
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]

    def choose_rejoined_leader(self) -> bool:
        """The leader must be somebody who gets the join answer; False if nobody has rejoined."""
        if self.leader not in self.join_tokens:
            rejoined = next((member_id for member_id in self.by_id if member_id in self.join_tokens), None)
            if rejoined is None:
                return False
            self.leader = rejoined
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        """The slowest member sets the pace."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)


def _names(protocols: Protocols) -> set[str]:
    return {name for name, _ in protocols}
