"""Consumer groups in simulation: members of the newer protocol, trouble of every kind, invariants after each step.

Members live as clients do. They join, send heartbeats, give up what they are told to give up (some at once, some late,
some never), take what they are given, go on from the committed offset, commit; answers get lost; they leave, die,
stall, come back under their instance ids, change their subscriptions and expressions; some that were taken for dead go
on committing. Topics grow, go, and come again. Administrators delete and reset offsets and delete the group, offsets
expire. The shard crashes, writes fail.

What must hold after each step:

1. No partition is read by two members that the group takes for members: what a living member of the group was told to
   read, and has not said that it gave up, nobody else is told to read.
2. Epochs do not go back: that of the group, and that of a member as long as it is one.
3. The records alone give the same groups and offsets as the shard has, also what compaction leaves of them.
4. At most one member owns a partition, and what somebody owns is a partition that it was given.
5. Offsets are what `offset_ledger` says: no fenced member commits, none goes back, none is lost.

In the end nobody disturbs any more: everybody is in, and every partition of every topic is read by exactly one member
that subscribes to it. When they have all left, nothing remains: the offsets expire, and the group goes with them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from consumer_driver import ConsumerDriver, DrivenMember
from group_driver import NOT_WRITTEN
from group_replays import Follower
from offset_ledger import OffsetLedger
from reading_process import Partition, ReadingProcess, Surroundings

from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.contract import ConsumerSettings, GroupSettings
from tidemill.model.errors import ErrorCode

TOPICS = ("orders", "bills", "notes")
HEARTBEAT_MS = 1000
LAST_ROUNDS, CALM_ROUNDS = 90, 5
"""How many heartbeats the group has to come to rest; it stays so for some."""
RETENTION_MS, RETENTION_CHECK_MS = 12_000, 2000
SETTINGS = GroupSettings(
    offsets_retention_ms=RETENTION_MS,
    offsets_retention_check_interval_ms=RETENTION_CHECK_MS,
    consumer=ConsumerSettings(session_timeout_ms=9000, heartbeat_interval_ms=HEARTBEAT_MS, max_size=5),
)
LOST = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
"""Whoever hears one of these is no member any more, and joins again."""


class SimulatedMember(ReadingProcess):
    """A client process of the newer protocol."""

    def __init__(self, simulation: Surroundings, name: str, instance_id: str | None) -> None:
        super().__init__(simulation, name, instance_id)
        topics, regex = simulation.wish()
        self.client = DrivenMember(
            simulation.driver,
            simulation.new_id(name),
            topics=topics,
            regex=regex,
            instance_id=instance_id,
            assignor=simulation.dice.choice([None, None, "range", "uniform"]),
        )
        self.member_id = self.client.member_id

    @property
    def commit_epoch(self) -> int:
        return self.client.epoch

    @property
    def is_in(self) -> bool:
        return self.client.epoch > 0

    def beat(self) -> None:
        if self.reads - self.client.assigned and not self.is_still_busy():
            self.stop_reading(self.reads - self.client.assigned)
        reply = self._send(complete=self.simulation.dice.random() < 0.5 or not self.is_in)
        if self.simulation.is_lost():
            self.simulation.note(f"{self.name}: the answer is lost")
        else:
            self._hear(reply)

    def _send(self, *, complete: bool) -> Any:
        """What it says that it owns is what it reads."""
        told, self.client.assigned = self.client.assigned, set(self.reads)
        request = self.client.request(complete=complete)
        self.client.assigned = told
        return self.driver.heartbeat_raw(**request)

    def _hear(self, reply: Any) -> None:
        before = self.client.epoch
        self.client.take(reply)
        if reply == NOT_WRITTEN:
            return
        code = reply.error_code
        if code in LOST:
            self._begin_again()
        if code == 0:
            assert reply.member_epoch >= before, (
                f"{self.name} goes back from {before} to {reply.member_epoch}"
            )
            self.reads |= self.client.assigned
        self.simulation.note(
            f"{self.name} hears {code or reply.member_epoch}, reads {self.client.partitions}"
        )

    def _begin_again(self) -> None:
        self.client.epoch, self.client.assigned = 0, set()
        self.stop_reading(set(self.reads))

    def quit(self, *, for_good: bool) -> int | str:
        reply = self.client.leave(for_good=for_good)
        return NOT_WRITTEN if reply == NOT_WRITTEN else int(reply.error_code)

    def change_mind(self) -> None:
        self.client.topics, self.client.regex = self.simulation.wish()
        if self.is_in:
            self._hear(self._send(complete=True))
        self.simulation.note(f"{self.name} subscribes to {self.client.topics} {self.client.regex}")


class ConsumerSimulation:
    """The `Surroundings` of its members."""

    steps = 150

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.transcript: list[str] = []
        self._next_id = 0
        self._loses_answers = True
        counts = {name: self.dice.randrange(1, 6) for name in TOPICS if self.dice.random() < 0.8}
        self.driver = ConsumerDriver(counts, self._settings(), seed)
        self.incarnations = dict.fromkeys(TOPICS, 0)
        self.follower = Follower(self.driver)
        self.ledger = OffsetLedger(self.driver)
        self.zombies: list[ReadingProcess] = []
        self.group_epoch = 0
        self.member_epochs: dict[str, int] = {}
        self.members = [self._first(index) for index in range(self.dice.randrange(2, 5))]

    def _settings(self) -> GroupSettings:
        return SETTINGS

    def _first(self, index: int) -> ReadingProcess:
        is_static = self.dice.random() < 0.4
        return self._process(f"member-{index}", f"instance-{index}" if is_static else None)

    def _process(self, name: str, instance_id: str | None) -> ReadingProcess:
        return SimulatedMember(self, name, instance_id)

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
        for _ in range(self.steps):
            self._step()
            self.check()
        self._come_to_rest()

    def _step(self) -> None:
        happenings = self._happenings()
        (happening,) = self.dice.choices(list(happenings), weights=list(happenings.values()))
        happening()

    def _happenings(self) -> dict[Callable[[], None], int]:
        """What may happen, and how often."""
        return {
            self._act: 70,
            self._pass_time: 15,
            self._leave: 3,
            self._die: 3,
            self._stall: 4,
            self._change_mind: 4,
            self._crash: 3,
            self._fail_writes: 2,
            self._change_topics: 5,
            self._haunt: 5,
            self._close: 1,
            self._delete_offsets: 2,
            self._reset_offsets: 2,
            self._delete_group: 1,
        }

    def _act(self) -> None:
        self.dice.choice(self.members).act()

    def _pass_time(self) -> None:
        elapsed_ms = self.dice.choice([1, 100, 500, 1000, 3000])
        self.note(f"{elapsed_ms} ms pass")
        self.driver.advance(elapsed_ms)

    def _leave(self) -> None:
        """For good, or, if it is static, for a while: then it comes back as another process."""
        self._leave_at(self.dice.randrange(len(self.members)))

    def _leave_at(self, index: int) -> None:
        old = self.members[index]
        if not old.is_in:
            return
        for_good = old.instance_id is None or self.dice.random() < 0.3
        code = old.quit(for_good=for_good)
        self.members[index] = self._process(old.name, old.instance_id)
        self.note(f"{old.name} leaves{'' if for_good else ' for a while'}: {code}")

    def _die(self) -> None:
        index = self.dice.randrange(len(self.members))
        old = self.members[index]
        self.zombies.append(old)
        self.members[index] = self._process(old.name, old.instance_id)
        self.note(f"{old.name} dies")

    def _haunt(self) -> None:
        for zombie in self.zombies:
            zombie.haunt()

    def _close(self) -> None:
        """All leave, and stay away for a while."""
        for index in range(len(self.members)):
            self._leave_at(index)
            self.members[index].stalled_until_ms = self.driver.now_ms + self.dice.choice([3000, 20_000])

    def _stall(self) -> None:
        """It goes on reading, as far as the group can know, until its session is over."""
        member = self.dice.choice(self.members)
        member.stalled_until_ms = self.driver.now_ms + self.dice.choice([2000, 6000, 15_000])
        self.note(f"{member.name} stalls")

    def _change_mind(self) -> None:
        self.dice.choice(self.members).change_mind()

    def _crash(self) -> None:
        self.driver.crash()
        self.follower.check_compacted()
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
            self.ledger.topic_is_deleted(name)
            self.note(f"{name} is deleted")
        else:
            self.driver.set_topic(name, topic.partition_count + 1, self.incarnations[name])
            self.note(f"{name} grows to {topic.partition_count + 1}")

    def _delete_offsets(self) -> None:
        topic = self.dice.choice(TOPICS)
        self.note(f"delete offsets of {topic}: {self.ledger.delete(topic, range(6))}")

    def _reset_offsets(self) -> None:
        key, offset = (self.dice.choice(TOPICS), self.dice.randrange(3)), self.dice.randrange(20)
        if self.driver.topics.by_name(key[0]) is not None:
            self.note(f"set {key} to {offset}: {self.ledger.reset(key, offset)}")

    def _delete_group(self) -> None:
        self.note(f"delete the group: {self.ledger.delete_group()}")

    # -- invariants -------------------------------------------------------------------------------------

    def check(self) -> None:
        self._check_group(self.driver.shard.group("g"))
        self.ledger.check()
        self.follower.check()

    def _check_group(self, group: object) -> None:
        if isinstance(group, ConsumerGroup):
            self._check_readers(group)
            self._check_epochs(group)
            self._check_owners(group)
        else:
            self.group_epoch, self.member_epochs = 0, {}

    def _check_readers(self, group: ConsumerGroup) -> None:
        """Who was removed while it stalled will be fenced; it reads on until then, and cannot commit."""
        known = ((each, group.members.get(each.member_id)) for each in self.members)
        self._check_one_reader(
            each
            for each, member in known
            if member is not None and each.commit_epoch in (member.member_epoch, member.previous_member_epoch)
        )

    def _check_one_reader(self, processes: Iterable[ReadingProcess]) -> None:
        readers: dict[Partition, str] = {}
        for process in processes:
            for partition in process.reads:
                other = readers.setdefault(partition, process.name)
                assert other == process.name, f"{other} and {process.name} read {partition}"

    def _check_epochs(self, group: ConsumerGroup) -> None:
        assert group.epoch >= self.group_epoch and group.epoch >= group.target_epoch
        self.group_epoch = group.epoch
        self.member_epochs = {
            each: epoch for each, epoch in self.member_epochs.items() if each in group.members
        }
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

    # -- the end ----------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.note("the trouble ends")
        self._loses_answers = False
        for member in self.members:
            member.stalled_until_ms, member.slowness = 0, 0.0
        calm = 0
        for _ in range(LAST_ROUNDS):
            for member in self.members:
                member.live()
            self.driver.advance(HEARTBEAT_MS)
            self.check()
            calm = calm + 1 if self.is_settled() else 0
            if calm == CALM_ROUNDS:
                break
        assert calm, "the group does not come to rest"
        self._check_everything_is_read()
        self.follower.check_compacted()
        self._check_that_nothing_remains()

    def is_settled(self) -> bool:
        group = self.driver.shard.group("g")
        if not isinstance(group, ConsumerGroup):
            return False
        ids = {each.member_id for each in self.members if each.is_in}
        return group.state == "Stable" and ids == group.members.keys() and len(ids) == len(self.members)

    def _check_that_nothing_remains(self) -> None:
        for member in self.members:
            member.quit(for_good=True)
        self.driver.advance(2 * RETENTION_MS)
        self.ledger.check_all_expired()
        self.follower.check()

    def _check_everything_is_read(self) -> None:
        wanted = set()
        for name in self.subscribed_topics():
            topic = self.driver.topics.by_name(name)
            if topic is not None:
                wanted.update((topic.topic_id, index) for index in range(topic.partition_count))
        read = [partition for member in self.members for partition in member.reads]
        assert len(read) == len(set(read)) and set(read) == wanted, "not everything is read"

    def subscribed_topics(self) -> set[str]:
        return self.driver.consumer().subscribed_topic_names()
