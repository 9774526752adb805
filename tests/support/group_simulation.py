"""A classic group under random trouble, with virtual time: everything follows from one seed.

Consumers behave as real clients do (join, sync, heartbeat, commit what they are assigned, begin again after an error)
but a dice decides who acts next, who leaves, stalls or dies, when time passes, when a write fails, and when the shard
crashes and is loaded again from its records. After each step the invariants are checked; after the trouble everybody
is left alone and must come to rest in one stable generation.

Offsets only grow: every consumer starts from what it fetched, so that a committed offset which goes back has been
committed by somebody who had no right to it any more.
"""

from __future__ import annotations

import random
from typing import Any

from group_driver import NOT_WRITTEN, GroupDriver, Marker, subscription
from group_replays import Follower

from tidemill.coordination.group.classic import STABLE, ClassicGroup
from tidemill.coordination.group.contract import GroupSettings
from tidemill.coordination.records.group_records import GroupMetadataValue
from tidemill.model.errors import ErrorCode

TOPIC = "t"
PARTITIONS = 8
TRANSACTIONAL_PARTITIONS = range(100, 103)
STEPS = 150
TIMEOUTS_MS = [(6000, 9000), (12_000, 3000)]
"""Of session and rebalance: whichever is shorter decides how a member that stalls is lost."""
PROTOCOLS = [[("range", subscription(TOPIC))], [("range", subscription(TOPIC)), ("sticky", b"")]]


class Consumer:
    """A client of the classic protocol."""

    def __init__(self, simulation: Simulation, name: str, instance_id: str | None) -> None:
        self.simulation = simulation
        self.driver = simulation.driver
        self.name = name
        self.instance_id = instance_id
        self.protocols = simulation.dice.choice(PROTOCOLS)
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.positions: dict[int, int] = {}
        self.phase = "out"
        self.token = ""
        self.stalled_until_ms = 0

    @property
    def is_in(self) -> bool:
        return self.phase == "in"

    def act(self) -> None:
        if self.driver.now_ms < self.stalled_until_ms:
            return
        getattr(self, f"_when_{self.phase}")()

    def begin_again(self, *, forget_id: bool = False) -> None:
        self.phase, self.assignment, self.generation = "out", None, -1
        if forget_id:
            self.member_id = ""

    def _failed(self, code: int | str) -> None:
        """What clients do: a lost membership begins from nothing, everything else is a rejoin."""
        is_gone = code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        self.begin_again(forget_id=is_gone)

    def _when_out(self) -> None:
        self.token = self.simulation.new_token(self.name)
        self.phase = "joining"
        self.driver.join(
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocols=self.protocols,
            session_timeout_ms=self.simulation.session_ms,
            rebalance_timeout_ms=self.simulation.rebalance_ms,
            token=self.token,
        )

    def _when_joining(self) -> None:
        answer = self.driver.replies.get(self.token)
        if answer is None:
            return
        if answer == NOT_WRITTEN:
            self.begin_again()
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id, self.phase = answer.member_id, "out"
        elif answer.error_code:
            self._failed(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._sync(answer)

    def _sync(self, answer: Any) -> None:
        assignments = None
        if answer.leader == answer.member_id and not answer.skip_assignment:
            assignments = self.simulation.assign([entry.member_id for entry in answer.members])
        self.token = self.simulation.new_token(self.name)
        self.phase = "syncing"
        self.driver.sync(
            self.member_id, self.generation, assignments, instance_id=self.instance_id, token=self.token
        )

    def _when_syncing(self) -> None:
        answer = self.driver.replies.get(self.token)
        if answer is None:
            return
        if answer == NOT_WRITTEN or answer.error_code:
            self._failed(answer if answer == NOT_WRITTEN else answer.error_code)
            return
        self.assignment, self.phase = answer.assignment, "in"
        self.simulation.check_assignment(self)
        fetched = self.driver.fetch([(TOPIC, partition) for partition in self.partitions()])
        self.positions = {key[1]: max(found.committed_offset, 0) for key, found in fetched.items()}

    def partitions(self) -> list[int]:
        _, _, listed = (self.assignment or b"||").partition(b"|")
        return [int(number) for number in listed.split(b",") if number.strip(b"|")]

    def _when_in(self) -> None:
        if self.positions and self.simulation.dice.random() < 0.5:
            self._commit()
            return
        code = self.driver.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
        if code:
            self._failed(code)

    def _commit(self) -> None:
        if self.simulation.dice.random() < 0.1:
            self.simulation.commit(self, self.simulation.dice.choice(TRANSACTIONAL_PARTITIONS), 5000)
            return
        partition = self.simulation.dice.choice(sorted(self.positions))
        position = self.positions[partition] + self.simulation.dice.randrange(1, 10)
        code = self.simulation.commit(self, partition, position)
        if code == ErrorCode.NONE:
            self.positions[partition] = position
        elif code != ErrorCode.UNKNOWN_SERVER_ERROR:
            self._failed(code)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        settings = GroupSettings(
            initial_rebalance_delay_ms=self.dice.choice([0, 500, 3000]),
            max_size=self.dice.choice([4, 100]),
            new_member_join_timeout_ms=20_000,
        )
        self.driver = GroupDriver(settings, seed)
        self.session_ms, self.rebalance_ms = self.dice.choice(TIMEOUTS_MS)
        self.zombies: list[Consumer] = []
        self.model: dict[tuple[str, int], int] = {}
        """Committed and acknowledged."""
        self.written_at: dict[tuple[str, int], int] = {}
        """Where in the log."""
        self.open: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        """Of transactions without a marker: offset, and where in the log."""
        self.assignments_of: dict[int, list[bytes]] = {}
        """Of each generation that was ever stored."""
        self.checked = 0
        """How much of the log the invariants have seen."""
        self.follower = Follower(self.driver)
        self.transcript: list[str] = []
        self._next_token = self._next_assignment = 0
        self.consumers = [self._consumer(index) for index in range(self.dice.randrange(2, 5))]

    def _consumer(self, index: int) -> Consumer:
        is_static = self.dice.random() < 0.4
        return Consumer(self, f"consumer-{index}", f"instance-{index}" if is_static else None)

    # -- what consumers need ----------------------------------------------------------------------------

    def new_token(self, name: str) -> str:
        self._next_token += 1
        return f"{name} #{self._next_token}"

    def assign(self, member_ids: list[str]) -> dict[str, bytes]:
        """Every partition to one member; no two assignments are ever the same bytes."""
        self._next_assignment += 1
        shares: dict[str, list[str]] = {member_id: [] for member_id in member_ids}
        for partition in range(PARTITIONS):
            shares[member_ids[(partition + self._next_assignment) % len(member_ids)]].append(str(partition))
        return {
            member_id: f"{self._next_assignment}:{member_id}|{','.join(share)}".encode()
            for member_id, share in shares.items()
        }

    def commit(self, consumer: Consumer, partition: int, offset: int) -> int:
        key = (TOPIC, partition)
        is_shared = partition in TRANSACTIONAL_PARTITIONS
        was_committed = -1 if is_shared else self.model.get(key, -1)
        codes = self.driver.commit(
            {key: offset}, consumer.member_id, consumer.generation, instance_id=consumer.instance_id
        )
        self.note(f"{consumer.name} commits {offset} for {partition}: {codes}")
        if codes == [ErrorCode.NONE]:
            assert offset > was_committed, f"{consumer.name} put {key} back from {was_committed} to {offset}"
            self.model[key] = offset
            self.written_at[key] = len(self.driver.log) - 1
        return codes[0]

    def note(self, line: str) -> None:
        self.transcript.append(f"{self.driver.now_ms} {line}")

    # -- trouble ----------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.check()
        self._come_to_rest()

    def _step(self) -> None:
        happenings = [self._act, self._pass_time, self._leave, self._die, self._stall]
        happenings += [self._crash, self._fail_writes, self._transaction, self._haunt]
        (happening,) = self.dice.choices(happenings, weights=[60, 20, 2, 3, 5, 3, 2, 6, 6])
        happening()

    def _act(self) -> None:
        consumer = self.dice.choice(self.consumers)
        before = consumer.phase
        consumer.act()
        self.note(f"{consumer.name}: {before} -> {consumer.phase} (generation {consumer.generation})")

    def _pass_time(self) -> None:
        elapsed_ms = self.dice.choice([1, 100, 500, 1000, 2500])
        self.driver.advance(elapsed_ms)
        self.note(f"{elapsed_ms} ms passed")

    def _leave(self) -> None:
        consumer = self.dice.choice(self.consumers)
        if consumer.member_id:
            self.driver.leave((consumer.member_id, consumer.instance_id))
            consumer.begin_again(forget_id=True)
            self.note(f"{consumer.name} left")

    def _die(self) -> None:
        """And starts again at once, without having said good-bye; or so it is taken, and lives on as a zombie."""
        index = self.dice.randrange(len(self.consumers))
        old = self.consumers[index]
        if old.is_in and old.positions:
            self.zombies.append(old)
        self.consumers[index] = Consumer(self, old.name, old.instance_id)
        self.note(f"{old.name} died")

    def _haunt(self) -> None:
        """A zombie may commit only as long as nobody has taken its place."""
        for zombie in self.zombies:
            partition = self.dice.choice(sorted(zombie.positions))
            zombie.positions[partition] += 1
            self.commit(zombie, partition, zombie.positions[partition])

    def _stall(self) -> None:
        consumer = self.dice.choice(self.consumers)
        consumer.stalled_until_ms = self.driver.now_ms + self.dice.choice([3000, 8000, 20_000])
        self.note(f"{consumer.name} stalls")

    def _crash(self) -> None:
        """Who waited for an answer lost the connection and asks again."""
        self.driver.crash()
        for consumer in self.consumers:
            if consumer.phase in ("joining", "syncing") and consumer.token not in self.driver.replies:
                consumer.begin_again()
        self.note("the shard crashed")

    def _fail_writes(self) -> None:
        self.driver.fails_appends = True
        for _ in range(self.dice.randrange(1, 4)):
            self._act()
        self.driver.fails_appends = False
        self.note("writes failed")

    def _transaction(self) -> None:
        producer_id = self.dice.randrange(1, 4)
        if producer_id in self.open and self.dice.random() < 0.5:
            is_commit = self.dice.random() < 0.6
            self.driver.end_transaction(producer_id, is_commit)
            self._end_in_model(producer_id, is_commit)
            self.note(f"producer {producer_id} ends, commit: {is_commit}")
            return
        key = (TOPIC, TRANSACTIONAL_PARTITIONS[producer_id - 1])
        offset = self.dice.randrange(1000)
        if self.driver.commit_in_transaction(producer_id, {key: offset}) == [ErrorCode.NONE]:
            self.open.setdefault(producer_id, {})[key] = (offset, len(self.driver.log) - 1)
            self.note(f"producer {producer_id} commits {offset} in its transaction")

    def _end_in_model(self, producer_id: int, is_commit: bool) -> None:
        for key, (offset, position) in self.open.pop(producer_id).items():
            if is_commit and position > self.written_at.get(key, -1):
                self.model[key] = offset
                self.written_at[key] = position

    # -- invariants -------------------------------------------------------------------------------------

    def check(self) -> None:
        self._check_generations()
        self._check_stable_members()
        assert self.driver.committed() == self.model
        self.follower.check()

    def _check_generations(self) -> None:
        """Stored generations only grow, and each has one set of assignments."""
        for entry in self.driver.log[self.checked :]:
            value = None if isinstance(entry, Marker) else entry[0].value
            if isinstance(value, GroupMetadataValue):
                assert value.generation >= max(self.assignments_of, default=0)
                stored = sorted(member.assignment for member in value.members)
                assert self.assignments_of.setdefault(value.generation, stored) == stored
        self.checked = len(self.driver.log)

    def check_assignment(self, consumer: Consumer) -> None:
        """Nobody is told anything but the stored assignment of the generation that it asked for."""
        self._check_generations()
        assert consumer.assignment in self.assignments_of[consumer.generation], consumer.name

    def _check_stable_members(self) -> None:
        """Whoever the group takes for a member of its stable generation holds that generation's assignment."""
        group = self.driver.shard.group("g")
        if not isinstance(group, ClassicGroup) or group.state is not STABLE:
            return
        assert group.stored is not None and group.stored.generation == group.generation
        stored = {member.member_id: member.assignment for member in group.stored.members}
        assert {member.member_id: member.assignment for member in group.members} == stored
        for consumer in self.consumers:
            if consumer.is_in and consumer.generation == group.generation and consumer.member_id in stored:
                assert consumer.assignment == stored[consumer.member_id], consumer.name

    # -- the end ----------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """Nobody disturbs any more: within two minutes all who fit are in, with all partitions."""
        self.note("the trouble ends")
        for consumer in self.consumers:
            consumer.stalled_until_ms = 0
        for _ in range(240):
            for consumer in self.consumers:
                consumer.act()
            self.driver.advance(500)
            self.check()
        assert all(consumer.is_in for consumer in self.consumers), [c.phase for c in self.consumers]
        assert len({consumer.generation for consumer in self.consumers}) == 1
        shared = sorted(partition for consumer in self.consumers for partition in consumer.partitions())
        assert shared == list(range(PARTITIONS))
