"""Consumer groups in simulation: members of the newer protocol, trouble of every kind, invariants after each step.

Members live as clients do. They join, send heartbeats, give up what they are told to give up (some at once, some late,
some never), take what they are given; answers get lost; they leave, die, stall, come back under their instance ids,
change their subscriptions and expressions. Topics grow, go, and come again. The shard crashes, writes fail.

What must hold after each step:

1. No partition is read by two members that the group takes for members: what a living member of the group was told to
   read, and has not said that it gave up, nobody else is told to read.
2. Epochs do not go back: that of the group, and that of a member as long as it is one.
3. The records alone give the same groups and offsets as the shard has.
4. At most one member owns a partition, and what somebody owns is a partition that it was given.

In the end nobody disturbs any more: everybody is in, and every partition of every topic is read by exactly one member
that subscribes to it.
"""

from __future__ import annotations

import random
from typing import Any

from consumer_driver import ConsumerDriver, DrivenMember
from group_driver import NOT_WRITTEN, replay_into

from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.contract import ConsumerSettings, GroupSettings
from tidemill.coordination.group.shard import GroupShard
from tidemill.model.errors import ErrorCode
from tidemill.ports.randomness import SeededRandomness

TOPICS = ("orders", "bills", "notes")
STEPS = 150
HEARTBEAT_MS = 1000
SETTINGS = GroupSettings(
    consumer=ConsumerSettings(session_timeout_ms=9000, heartbeat_interval_ms=HEARTBEAT_MS, max_size=5)
)


class SimulatedMember(DrivenMember):
    """A client process; `reads` is what it reads, from the answer that gives it until it really stops."""

    def __init__(self, simulation: ConsumerSimulation, name: str, instance_id: str | None) -> None:
        self.simulation = simulation
        self.name = name
        topics, regex = simulation.wish()
        super().__init__(
            simulation.driver,
            simulation.new_id(name),
            topics=topics,
            regex=regex,
            instance_id=instance_id,
            assignor=simulation.dice.choice([None, None, "range", "uniform"]),
        )
        self.slowness = simulation.dice.choice([0.0, 0.0, 0.3, 0.9])
        """How likely it is not done yet with giving partitions up."""
        self.reads: set[tuple[bytes, int]] = set()
        self.stalled_until_ms = 0
        self.is_stuck = False

    def act(self) -> None:
        if self.driver.now_ms < self.stalled_until_ms:
            return
        self._give_up()
        request = self.request(complete=self.simulation.dice.random() < 0.5 or self.epoch == 0)
        if request.get("topic_partitions") is not None:
            request["topic_partitions"] = self._reads_message()
        reply = self.driver.heartbeat_raw(**request)
        if self.simulation.is_lost():
            self.simulation.note(f"{self.name}: the answer is lost")
            return
        self.hear(reply)

    def _give_up(self) -> None:
        if self.reads - self.assigned and self.simulation.dice.random() >= self.slowness:
            self.reads &= self.assigned

    def _reads_message(self) -> Any:
        kept, self.assigned = self.assigned, set(self.reads)
        message = self._owned_message()
        self.assigned = kept
        return message

    def hear(self, reply: Any) -> None:
        before = self.epoch
        self.take(reply)
        if reply == NOT_WRITTEN:
            return
        code = reply.error_code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.begin_again()
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNRELEASED_INSTANCE_ID):
            self.epoch, self.assigned, self.reads = 0, set(), set()
        if code == 0:
            assert reply.member_epoch >= before, (
                f"{self.name} goes back from {before} to {reply.member_epoch}"
            )
            self.reads |= self.assigned
        self.simulation.note(
            f"{self.name} hears {code or reply.member_epoch}, reads {sorted(self.partitions)}"
        )

    def begin_again(self) -> None:
        self.epoch, self.assigned, self.reads = 0, set(), set()


class ConsumerSimulation:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.transcript: list[str] = []
        self._next_id = 0
        self._loses_answers = True
        counts = {name: self.dice.randrange(1, 6) for name in TOPICS if self.dice.random() < 0.8}
        self.driver = ConsumerDriver(counts, SETTINGS, seed)
        self.incarnations = dict.fromkeys(TOPICS, 0)
        self.follower = GroupShard(SETTINGS, SeededRandomness(0), self.driver.topics)
        self.followed = 0
        self.group_epoch = 0
        self.member_epochs: dict[str, int] = {}
        self.members = [self._member(index) for index in range(self.dice.randrange(2, 5))]

    def _member(self, index: int) -> SimulatedMember:
        is_static = self.dice.random() < 0.4
        return SimulatedMember(self, f"member-{index}", f"instance-{index}" if is_static else None)

    # -- what members need ------------------------------------------------------------------------------

    def new_id(self, name: str) -> str:
        self._next_id += 1
        return f"{name}#{self._next_id}"

    def wish(self) -> tuple[list[str], str | None]:
        if self.dice.random() < 0.25:
            return [], self.dice.choice(["o.*", ".*s", "(bills|notes)"])
        return self.dice.sample(TOPICS, self.dice.randrange(1, 4)), ""

    def is_lost(self) -> bool:
        return self._loses_answers and self.dice.random() < 0.05

    def note(self, line: str) -> None:
        self.transcript.append(f"{self.driver.now_ms} {line}")

    # -- trouble ----------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.check()
        self._come_to_rest()

    def _step(self) -> None:
        happenings = [self._act, self._pass_time, self._leave, self._die, self._stall, self._change_mind]
        happenings += [self._crash, self._fail_writes, self._change_topics]
        (happening,) = self.dice.choices(happenings, weights=[60, 15, 3, 3, 4, 4, 3, 2, 5])
        happening()

    def _act(self) -> None:
        self.dice.choice(self.members).act()

    def _pass_time(self) -> None:
        elapsed_ms = self.dice.choice([1, 100, 500, 1000, 3000])
        self.note(f"{elapsed_ms} ms pass")
        self.driver.advance(elapsed_ms)

    def _leave(self) -> None:
        """For good, or, if it is static, for a while: then it comes back as another process."""
        index = self.dice.randrange(len(self.members))
        old = self.members[index]
        if old.epoch == 0:
            return
        for_good = old.instance_id is None or self.dice.random() < 0.3
        old.reads.clear()
        code = getattr(old.leave(for_good=for_good), "error_code", NOT_WRITTEN)
        self.members[index] = SimulatedMember(self, old.name, old.instance_id)
        self.note(f"{old.name} leaves{'' if for_good else ' for a while'}: {code}")

    def _die(self) -> None:
        index = self.dice.randrange(len(self.members))
        old = self.members[index]
        self.members[index] = SimulatedMember(self, old.name, old.instance_id)
        self.note(f"{old.name} dies")

    def _stall(self) -> None:
        """It goes on reading, as far as the group can know, until its session is over."""
        member = self.dice.choice(self.members)
        member.stalled_until_ms = self.driver.now_ms + self.dice.choice([2000, 6000, 15_000])
        self.note(f"{member.name} stalls")

    def _change_mind(self) -> None:
        member = self.dice.choice(self.members)
        member.topics, member.regex = self.wish()
        if member.epoch:
            reply = self.driver.heartbeat_raw(
                **{**member.request(), "topic_partitions": member._reads_message()}
            )
            member.hear(reply)
        self.note(f"{member.name} subscribes to {member.topics} {member.regex}")

    def _crash(self) -> None:
        self.driver.crash()
        self.note("the shard crashes")

    def _fail_writes(self) -> None:
        self.driver.fails_appends = True
        for _ in range(self.dice.randrange(1, 4)):
            self._act()
        self.driver.fails_appends = False
        self.note("writes failed")

    def _change_topics(self) -> None:
        name = self.dice.choice(TOPICS)
        topic = self.driver.topics.by_name(name)
        if topic is None:
            self.incarnations[name] += 1
            self.driver.set_topic(name, self.dice.randrange(1, 6), self.incarnations[name])
            self.note(f"{name} is made")
        elif self.dice.random() < 0.4:
            self.driver.delete_topic(name)
            self.note(f"{name} is deleted")
        else:
            self.driver.set_topic(name, topic.partition_count + 1, self.incarnations[name])
            self.note(f"{name} grows to {topic.partition_count + 1}")

    # -- invariants -------------------------------------------------------------------------------------

    def check(self) -> None:
        group = self.driver.shard.group("g")
        if isinstance(group, ConsumerGroup):
            self._check_readers(group)
            self._check_epochs(group)
            self._check_owners(group)
        self._check_replay()

    def _check_readers(self, group: ConsumerGroup) -> None:
        """Who was removed while it stalled will be fenced; it reads on until then, and cannot commit."""
        readers: dict[tuple[bytes, int], str] = {}
        for member in self.members:
            known = group.members.get(member.member_id)
            if known is None or member.epoch not in (known.member_epoch, known.previous_member_epoch):
                continue
            for partition in member.reads:
                other = readers.setdefault(partition, member.name)
                assert other == member.name, f"{other} and {member.name} read {partition}"

    def _check_epochs(self, group: ConsumerGroup) -> None:
        assert group.epoch >= self.group_epoch and group.epoch >= group.target_epoch
        self.group_epoch = group.epoch
        for member_id, member in group.members.items():
            assert member.member_epoch <= group.target_epoch or member.member_epoch < 0
            before = self.member_epochs.get(member_id, 0)
            assert member.member_epoch >= before or member.member_epoch == -2, member_id
            self.member_epochs[member_id] = max(before, member.member_epoch)

    def _check_owners(self, group: ConsumerGroup) -> None:
        owned = [(partition, each.member_id) for each in group.members.values() for partition in each.owned()]
        assert len({partition for partition, _ in owned}) == len(owned), owned
        assert dict(owned) == group.owners
        assert group.target.keys() <= group.members.keys()

    def _check_replay(self) -> None:
        replay_into(self.follower, self.driver.log[self.followed :], self.followed)
        self.followed = len(self.driver.log)
        assert durable(self.follower) == durable(self.driver.shard)

    # -- the end ----------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.note("the trouble ends")
        self._loses_answers = False
        for member in self.members:
            member.stalled_until_ms, member.slowness = 0, 0.0
        for _ in range(60):
            for member in self.members:
                member.act()
            self.driver.advance(HEARTBEAT_MS)
            self.check()
        group = self.driver.consumer()
        assert group.state == "Stable" and len(group.members) == len(self.members), group.state
        self._check_everything_is_read(group)

    def _check_everything_is_read(self, group: ConsumerGroup) -> None:
        wanted = set()
        for name in group.subscribed_topic_names():
            topic = self.driver.topics.by_name(name)
            if topic is not None:
                wanted.update((topic.topic_id, index) for index in range(topic.partition_count))
        read = [partition for member in self.members for partition in member.reads]
        assert len(read) == len(set(read)) and set(read) == wanted


def durable(shard: GroupShard) -> dict[str, Any]:
    """What the log knows of the groups."""
    return {group.group_id: _durable(group) for group in shard.groups()}


def _durable(group: Any) -> Any:
    if isinstance(group, ConsumerGroup):
        return (
            group.epoch,
            group.metadata_hash,
            group.target_epoch,
            group.target,
            group.members,
            group.owners,
            group.regexes,
            group.instances,
        )
    assert isinstance(group, ClassicGroup)
    return group.stored
