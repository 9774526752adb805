"""Share groups under random events: members, topics, crashes of either coordinator, and answers that do not come.

One group coordinator and one share coordinator, each with its log. Chance lets members join, beat, leave and fall
silent, topics come, grow and go, state initialise late or never, leaders of share partitions read and write, and either
coordinator crash. Checked after each step:

- a coordinator that loads its log is the one that wrote it, also after its log was cut;
- epochs are in order, and never go back;
- members are given only partitions that exist, that they subscribe to, and that have state;
- start offsets and delivery counts never go back within a state epoch, and what was acknowledged stays so;

and at the end, when everything is healed and everybody has been heard of twice: every partition of every subscribed
topic has state and a reader, and everybody who subscribes to something has something to read.

`simulations` says how to run more seeds, or one alone.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from share_group_driver import GROUP, ShareGroupDriver, topic_id
from share_state_driver import ShareStateDriver
from simulations import is_found_out, run_seeds

from tidemill.coordination.group.assignor_share import SimpleAssignor
from tidemill.coordination.group.modern import existing_topics
from tidemill.coordination.group.share_group import ShareGroup
from tidemill.coordination.group.share_heartbeat import HeartbeatAnswer, Initialization
from tidemill.coordination.share.persister import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)
from tidemill.coordination.share.shard import ShareStateSettings
from tidemill.coordination.share.state import ShareState
from tidemill.model.errors import ErrorCode

STEPS = 150
TOPICS = ("jobs", "mail", "news")
MEMBERS = ("a", "b", "c", "d", "e")


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.transcript: list[str] = []
        self.groups = ShareGroupDriver()
        self.states = self.groups.states = ShareStateDriver(
            ShareStateSettings(
                updates_per_snapshot=3, prune_interval_ms=60_000, cold_snapshot_interval_ms=90_000
            )
        )
        self.states.topics = self.groups.topics
        self.states.restart()
        self.groups.is_persister_down = True
        self.pending: list[Initialization] = []
        self.epochs = (0, 0)
        self.facts: dict[SharePartitionKey, tuple[int, int, dict[int, tuple[int, int]]]] = {}

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.heal()
        self.check_healed()

    def step(self) -> None:
        actions = (
            self.join, self.beat, self.beat, self.leave, self.put_topic, self.delete_topic, self.pass_time,
            self.initialize, self.initialize, self.lead, self.lead, self.crash_groups, self.crash_states,
        )  # fmt: skip
        action = self.chance.choice(actions)
        action()
        self.transcript.append(f"{action.__name__}: {self.groups.durable()}")
        self.check()

    # -- what may happen ------------------------------------------------------------------------------

    def join(self) -> None:
        wanted = self.chance.sample(TOPICS, self.chance.randrange(1, 4))
        self.send(self.chance.choice(MEMBERS), 0, tuple(wanted))

    def beat(self) -> None:
        member = self.chance.choice(MEMBERS)
        if member in self.groups.epochs:
            self.send(member, self.groups.epochs[member], None)

    def leave(self) -> None:
        self.groups.leave(self.chance.choice(MEMBERS))

    def send(self, member: str, epoch: int, topics: tuple[str, ...] | None) -> None:
        act = self.groups.act

        def remember(call: object) -> object:
            answer = act(call)  # type: ignore[arg-type]
            if isinstance(answer, HeartbeatAnswer) and answer.initialization is not None:
                self.pending.append(answer.initialization)
            return answer

        self.groups.act = remember  # type: ignore[assignment]
        response = self.groups.send(member, epoch, topics)
        self.groups.act = act  # type: ignore[method-assign]
        if response.error_code:
            self.groups.epochs.pop(member, None)

    def initialize(self) -> None:
        """An answer of the share coordinator comes, in whatever order, or never."""
        if self.pending:
            initialization = self.pending.pop(self.chance.randrange(len(self.pending)))
            if self.chance.random() < 0.8:
                self.groups.initialize(initialization)

    def put_topic(self) -> None:
        name = self.chance.choice(TOPICS)
        known = self.groups.topics.by_name(name)
        count = 0 if known is None else known.partition_count
        self.groups.put_topic(name, count + self.chance.randrange(1, 3))

    def delete_topic(self) -> None:
        names = sorted(self.groups.topics.names())
        if names and self.chance.random() < 0.3:
            self.groups.delete_topic(self.chance.choice(names))

    def pass_time(self) -> None:
        milliseconds = self.chance.choice((1, 1000, 20_000, 50_000))
        self.groups.pass_time(milliseconds)
        self.states.pass_time(milliseconds)

    def lead(self) -> None:
        """A leader reads, and writes what it made of it."""
        keys = sorted(self.states.states())
        if not keys:
            return
        key = self.chance.choice(keys)
        leader_epoch = self.chance.randrange(1, 5)
        found = self.states.call("read", key, leader_epoch)
        if not isinstance(found, ReadState):
            assert found is ErrorCode.FENCED_LEADER_EPOCH
            return
        start = max(found.start_offset, 0)
        first = start + self.chance.randrange(5)
        state = self.chance.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
        batch = StateBatch(first, first + self.chance.randrange(5), state, self.chance.randrange(1, 6))
        moved = self.chance.choice((-1, start, start + 1))
        change = StateWrite(found.state_epoch, leader_epoch, moved, (batch,), 0)
        assert self.states.call("write", key, change) is None
        stale = StateWrite(found.state_epoch, leader_epoch - 1, moved + 10)
        assert self.states.call("write", key, stale) is ErrorCode.FENCED_LEADER_EPOCH

    def crash_groups(self) -> None:
        before = self.groups.durable()
        self.groups.restart()
        assert self.groups.durable() == before
        self.pending.clear()

    def crash_states(self) -> None:
        before = self.states.states()
        self.states.restart()
        assert self.states.states() == before

    # -- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        self.check_states()
        group = self.groups.shard.group(GROUP)
        if not isinstance(group, ShareGroup):
            return
        assert self.epochs <= (group.epoch, group.target_epoch)
        self.epochs = (group.epoch, group.target_epoch)
        assert group.epoch >= group.target_epoch
        for member in group.members.values():
            assert member.member_epoch <= group.target_epoch
            self.check_target(group, member.member_id)

    def check_target(self, group: ShareGroup, member_id: str) -> None:
        """Only of a target that is as new as the group: an older one is replaced with the next heartbeat."""
        if group.epoch != group.target_epoch:
            return
        names = group.members[member_id].subscribed_topic_names
        assert {self.name_of(topic) for topic in group.target_of(member_id)} <= set(names)

    def name_of(self, topic: bytes) -> str:
        return next(name for name in TOPICS if topic_id(name) == topic)

    def check_states(self) -> None:
        known = self.facts
        self.facts = {}
        for key, state in self.states.states().items():
            assert state is not None
            offsets = {
                offset: (batch.delivery_count, batch.delivery_state)
                for batch in state.batches
                for offset in range(batch.first_offset, batch.last_offset + 1)
            }
            assert all(offset >= state.start_offset for offset in offsets)
            self.facts[key] = (state.state_epoch, state.start_offset, offsets)
            epoch, start, before = known.get(key, self.facts[key])
            assert state.state_epoch >= epoch
            if state.state_epoch == epoch and state.snapshot_epoch > 0:
                assert state.start_offset >= start or state.start_offset == -1
                for offset, fact in before.items():
                    assert offset < state.start_offset or offsets.get(offset, fact) >= fact

    def heal(self) -> None:
        known = self.groups.topics.by_name("jobs")
        self.groups.put_topic("jobs", 3 if known is None else known.partition_count + 1)
        self.groups.is_persister_down = False
        self.groups.pass_time(30_001)
        for _ in range(3):
            for member in MEMBERS[:3]:
                if member in self.groups.epochs and member in self.members():
                    self.groups.beat(member)
                else:
                    self.groups.join(member, "jobs")
        group = self.groups.group
        for member_id in sorted(set(group.members) - set(MEMBERS[:3])):
            self.groups.leave(member_id)
        for _ in range(2):
            for member in MEMBERS[:3]:
                assert self.groups.beat(member).error_code == 0

    def members(self) -> set[str]:
        group = self.groups.shard.group(GROUP)
        return set(group.members) if isinstance(group, ShareGroup) else set()

    def check_healed(self) -> None:
        group = self.groups.group
        assert set(group.members) == set(MEMBERS[:3])
        wanted = {
            topic.topic_id: frozenset(range(topic.partition_count))
            for topic in existing_topics(group.subscribed_topic_names(), self.groups.topics)
        }
        assert group.state_partitions.initialized.items() >= wanted.items()
        assert group.targeted() == wanted
        for member in group.members.values():
            assert member.assigned == group.target_of(member.member_id)
            if existing_topics(member.subscribed_topic_names, self.groups.topics):
                assert member.assigned, f"{member.member_id} has nothing to read"


SIMULATION = World


def test_share_groups_survive_anything() -> None:
    run_seeds(SIMULATION, default=100)


# -- the checks see what they should ----------------------------------------------------------------------


def assign_to_the_first(assignor: SimpleAssignor, spec: Any) -> Any:
    """Members that subscribe to the same topics as another one get nothing."""
    assigned = ASSIGN(assignor, spec)
    first = min(assigned, default="")
    return {member: places if member == first else {} for member, places in assigned.items()}


def forget_start(state: ShareState, change: StateWrite) -> ShareState:
    written = AFTER(state, change)
    return dataclasses.replace(written, start_offset=0) if change.start_offset == -1 else written


ASSIGN, AFTER = SimpleAssignor.assign, ShareState.after
DEFECTS = [
    pytest.param(SimpleAssignor, "assign", assign_to_the_first, id="some have nothing to read"),
    pytest.param(ShareState, "after", forget_start, id="the start offset goes back"),
]


@pytest.mark.parametrize("owner, name, broken", DEFECTS)
def test_a_planted_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert is_found_out(SIMULATION, seeds=30)
