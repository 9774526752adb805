"""Transactions under everything at once: kills, zombies, late and lost messages, time-outs, coordinator crashes.

Producers share transactional ids, and each thinks it is the only one. In a transaction they write batches with sequence
numbers, and the offset of the input that they have worked on, which they read when it begins. Every message (request,
reply, marker) lies in one bag, and chance picks what is delivered, lost, doubled or left for later; chance also kills
producers, crashes the coordinator, the group's shard and leaders of partitions between any two steps, lets the group
rebalance, and lets time pass. Partitions decide with the real producer state of storage and the real rules of
verification (`leader_partition`). What is checked, after each step:

- the data of one transaction is never committed here and aborted there;
- nothing is committed that its producer has not asked to commit, and nothing by a producer that was replaced;
- a partition refuses every batch that no marker would ever follow: what is open on a partition, the coordinator knows
  as part of a transaction that has not ended, and the last stable offset stands where the first of it begins;
- readers of committed data see what is committed, and nothing else;
- each batch is written once and in order: one that comes again is recognised, one that leaves a gap is refused;
- committed offsets are those of committed transactions; those of open ones are unstable, those of aborted ones gone;
- an input is worked on once: an offset is committed by a transaction that began right before it;
- no offsets are taken of a member of an older generation;
- the records of the coordinator alone give the same transactions as it has, and no epoch goes back;

and after everything is healed: all prepared transactions are complete, every partition is decided to its end, and
what was acknowledged as committed is committed.

Producers of version 2 repeat requests and may have several copies of each on the way (row 9 of the reliability
table). Version 1 cannot survive that, in Kafka neither: such producers give up their epoch instead of repeating.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from leader_partition import COMMITTED, OPEN, Data, LeaderPartition, OffsetsPartition, Transaction
from transaction_driver import TIMEOUT_MS, TransactionDriver

from tidemill.coordination.transaction.shard import (
    ProducerResult,
    SendMarkers,
    TransactionConfig,
    TransactionOutcome,
    TransactionShard,
)
from tidemill.coordination.transaction.state import (
    AT_REST,
    NO_PRODUCER,
    ProducerIdentity,
    State,
)
from tidemill.coordination.transaction.verification import (
    OFFSET_COMMIT,
    PRODUCE,
    Operation,
    Verdict,
    VerificationGuards,
    client_error,
    verdict,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition

STEPS = 1000
TOKEN = "token"
OFFSETS = TopicPartition("__consumer_offsets", 0)
FATAL = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
RESTARTING = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}


Reply = Callable[[ErrorCode, Data | None], None]


class Client:
    """A transactional producer: begins, writes, ends, and does it again."""

    def __init__(self, world: World, transactional_id: str, version: int) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.name = f"{transactional_id} #{world.next_number()}"
        self.version = version
        self.identity: ProducerIdentity | None = None
        self.transaction: Transaction | None = None
        self.is_dead = False
        self.added: set[TopicPartition] = set()
        self.sequences: dict[tuple[ProducerIdentity, TopicPartition], int] = {}
        """Of the next batch, where some were acknowledged."""
        self.waiting = 0
        """The number of the request whose reply counts; replies to others come too late."""
        self.repeat: Callable[[int], None] | None = None

    def step(self) -> None:
        chance = self.world.chance
        if self.waiting:
            if chance.random() < self.world.storm:
                self._lose_patience()
            return
        if self.identity is None or (self.transaction is None and chance.random() < 0.03):
            self._init(None if self.identity is None or chance.random() < 0.5 else self.identity)
        elif self.transaction is None:
            self._begin()
        elif chance.random() < 0.55:
            self._write(chance.choice(self.world.topic))
        elif not self.transaction.has_offset and chance.random() < 0.7:
            self._commit_offset(self.world.offsets)
        else:
            self._end()

    @property
    def input_key(self) -> tuple[str, int]:
        return ("input", ord(self.transactional_id))

    def _begin(self) -> None:
        """Where its input is, it asks; while that is open it waits."""
        position = self.world.offsets.read(self.input_key)
        if position is not None:
            wants_commit = self.world.chance.random() < 0.6
            self.transaction = Transaction(self, wants_commit, position, self.world.offsets.generation)
            self.added.clear()

    def _lose_patience(self) -> None:
        if self.version == 2 and self.repeat is not None and self.world.chance.random() < 0.7:
            self._send(self.repeat)
            return
        self.waiting = 0
        self._restart()

    def _restart(self) -> None:
        """Something is unknown: ask for the next epoch, which ends what is open."""
        self.transaction = None
        identity, self.identity = self.identity, None
        self._init(identity)

    def _send(self, request: Callable[[int], None]) -> None:
        """`request` is delivered some time, or twice, or never; a reply to it counts while it is waited for."""
        self.repeat = request
        self.waiting = self.world.next_number()
        number = self.waiting
        self.world.post(lambda: request(number))

    def _receive(self, number: int, error: ErrorCode) -> bool:
        """Whether this is the reply that is waited for, and a good one."""
        if number != self.waiting or self.is_dead:
            return False
        self.waiting = 0
        if error in FATAL:
            self.is_dead = True
        elif error in RESTARTING:
            self._restart()
        return not error

    # -- requests -------------------------------------------------------------------------------------

    def _init(self, expected: ProducerIdentity | None) -> None:
        world = self.world

        def request(number: int) -> None:
            shard, now_ms = world.driver.shard, world.driver.now_ms
            outcome = shard.init_producer_id(TOKEN, now_ms, self.transactional_id, TIMEOUT_MS, expected)
            result = world.coordinate(self, outcome, None)
            if result is not None:
                world.post(lambda: on_reply(number, result))

        def on_reply(number: int, result: ProducerResult) -> None:
            if self._receive(number, result.error):
                self.identity = result.identity
                self.transaction = None

        self._send(request)

    def _write(self, partition: LeaderPartition) -> None:
        if self.version == 1 and partition.name not in self.added:
            self._add(partition)
            return
        identity, transaction = self.identity, self.transaction
        assert identity is not None and transaction is not None
        place = (identity, partition.name)
        sequence = self.sequences.get(place, 0)

        def request(number: int) -> None:
            self.world.produce(
                self, partition, transaction, identity, sequence, lambda *got: reply(number, *got)
            )

        def reply(number: int, error: ErrorCode, data: Data | None) -> None:
            self.world.post(lambda: on_reply(number, error, data))

        def on_reply(number: int, error: ErrorCode, data: Data | None) -> None:
            assert error != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or number != self.waiting, self.name
            if self._receive(number, error):
                assert data is not None
                transaction.acknowledged.append(data)
                self.sequences[place] = sequence + 1

        self._send(request)

    def _commit_offset(self, partition: OffsetsPartition) -> None:
        if self.version == 1 and partition.name not in self.added:
            self._add(partition)
            return
        identity, transaction = self.identity, self.transaction
        assert identity is not None and transaction is not None

        def request(number: int) -> None:
            self.world.commit_offset(self, partition, transaction, identity, lambda *got: reply(number, *got))

        def reply(number: int, error: ErrorCode, data: Data | None) -> None:
            self.world.post(lambda: on_reply(number, error, data))

        def on_reply(number: int, error: ErrorCode, data: Data | None) -> None:
            if error == ErrorCode.ILLEGAL_GENERATION:
                transaction.wants_commit &= transaction.is_end_asked
            if self._receive(number, error):
                assert data is not None
                transaction.has_offset = True
                transaction.acknowledged.append(data)

        self._send(request)

    def _add(self, partition: LeaderPartition) -> None:
        world, identity = self.world, self.identity
        assert identity is not None

        def request(number: int) -> None:
            error = world.add(self.transactional_id, identity, partition.name, 0)
            world.post(lambda: on_reply(number, error))

        def on_reply(number: int, error: ErrorCode) -> None:
            if self._receive(number, error):
                self.added.add(partition.name)

        self._send(request)

    def _end(self) -> None:
        world, identity, transaction = self.world, self.identity, self.transaction
        assert identity is not None and transaction is not None
        transaction.is_end_asked = True
        version = 2 if self.version == 2 else 0

        def request(number: int) -> None:
            outcome = world.driver.shard.end(
                TOKEN, world.driver.now_ms, self.transactional_id, identity, transaction.wants_commit, version
            )
            result = world.coordinate(self, outcome, transaction)
            if result is not None:
                world.post(lambda: on_reply(number, result))

        def on_reply(number: int, result: ProducerResult) -> None:
            if self._receive(number, result.error):
                transaction.is_acknowledged = True
                self.transaction = None
                if self.version == 2:
                    self.identity = result.identity

        self._send(request)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server_version = self.chance.choice((1, 2, 2))
        self.driver = TransactionDriver(TransactionConfig(transaction_version=self.server_version))
        self.guards = VerificationGuards()
        self.topic = [LeaderPartition(TopicPartition("t", index), self.guards) for index in range(3)]
        self.offsets = OffsetsPartition(OFFSETS, self.guards, seed)
        self.partitions: dict[TopicPartition, LeaderPartition] = {
            each.name: each for each in (*self.topic, self.offsets)
        }
        self.follower = TransactionShard(self.driver.config, 0, self.driver.ids)
        self.followed = 0
        self.identities: dict[str, ProducerIdentity] = {}
        self.bag: list[tuple[Callable[[], None], bool]] = []
        """Messages, and whether each may get lost."""
        self.clients: list[Client] = []
        self.owners: dict[str, Client] = {}
        """Who got the newest identity of a transactional id."""
        self.storm = self.chance.choice((0.01, 0.03, 0.1))
        """How often something goes wrong, other than with messages."""
        self.is_calm = False
        self.transcript: list[str] = []
        self._numbers = 0
        for transactional_id in ("a", "b"):
            self.hire(transactional_id)

    def note(self, line: str) -> None:
        self.transcript.append(f"{self.driver.now_ms} {line}")

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def hire(self, transactional_id: str) -> None:
        version = self.chance.choice((1, 2)) if self.server_version == 2 else 1
        self.clients.append(Client(self, transactional_id, version))
        self.note(f"{self.clients[-1].name} begins, version {version}")

    # -- chance ---------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check_step()
        self.heal()

    def step(self) -> None:
        dice = self.chance.random()
        if dice > self.storm:
            if self.bag and self.chance.random() < 0.7:
                self.deliver()
            else:
                self.chance.choice(self.clients).step()
        elif dice < self.storm * 0.3:
            self.driver.advance(self.chance.choice((1, 500, 20_000, TIMEOUT_MS)))
        elif dice < self.storm * 0.4:
            self.offsets.rebalance()
            self.note(f"the group is in generation {self.offsets.generation}")
        elif dice < self.storm * 0.5:
            self.restart_leader()
        elif dice < self.storm * 0.6:
            self.crash()
        elif dice < self.storm * 0.8:
            self.hire(self.chance.choice(("a", "b")))
        else:
            self.chance.choice(self.clients).is_dead = True
        self.clients = [client for client in self.clients if not client.is_dead] or self.clients
        if all(client.is_dead for client in self.clients):
            self.hire("a")
        self.send_markers()

    def post(self, message: Callable[[], None], *, may_be_lost: bool = True) -> None:
        self.bag.append((message, may_be_lost))

    def deliver(self) -> None:
        message, may_be_lost = self.bag.pop(self.chance.randrange(len(self.bag)))
        if self.is_calm or not may_be_lost or self.chance.random() > self.storm:
            message()

    def crash(self) -> None:
        """The coordinator goes, and another one loads its log; markers on the way stay on the way."""
        self.driver.restart()
        self.note("the coordinator crashed")

    def restart_leader(self) -> None:
        partition = self.chance.choice(list(self.partitions.values()))
        partition.restart()
        self.note(f"the leader of {partition.name} is restarted")

    def send_markers(self) -> None:
        sent, self.driver.markers = self.driver.markers, []
        for markers in sent:
            self.post(functools.partial(self.write_markers, markers), may_be_lost=False)

    def heal(self) -> None:
        """Nobody begins anything, nothing is lost: everything must come to its end."""
        self.note("the trouble ends")
        self.is_calm = True
        for client in self.clients:
            client.is_dead = True
        for _ in range(12):
            while self.bag:
                self.deliver()
                self.send_markers()
                self.check_step()
            self.driver.advance(TIMEOUT_MS)
            self.send_markers()
        self.check_end()

    # -- the coordinator ------------------------------------------------------------------------------

    def coordinate(
        self, client: Client, outcome: TransactionOutcome, transaction: Transaction | None
    ) -> ProducerResult | None:
        """Carry out a request of this client; None if the answer is lost with a crash."""
        states = [record.value.transaction_status for record in outcome.records if record.value]  # type: ignore[attr-defined]
        if State.PREPARE_COMMIT in states:
            assert transaction is not None and transaction.wants_commit and transaction.is_end_asked
            assert self.owners[client.transactional_id] is client, "a replaced producer committed"
        if State.EMPTY in states:
            self.owners[client.transactional_id] = client
        result = self.driver.carry_out(outcome)
        assert isinstance(result, ProducerResult)
        assert bool(result.error) == (result.identity == NO_PRODUCER)
        written = [State(state).name for state in states]
        self.note(f"{client.name} asked: {written} {result.error.name} {result.identity}")
        if not self.is_calm and self.chance.random() < self.storm:
            self.crash()
            return None
        return result

    def add(
        self, transactional_id: str, identity: ProducerIdentity, name: TopicPartition, version: int
    ) -> ErrorCode:
        return self.driver.add(identity, str(name), version=version, transactional_id=transactional_id)

    # -- the leaders ----------------------------------------------------------------------------------

    def produce(
        self,
        client: Client,
        partition: LeaderPartition,
        transaction: Transaction,
        identity: ProducerIdentity,
        sequence: int,
        reply: Reply,
    ) -> None:
        def append(is_verified: bool) -> Data:
            if is_verified and client.version == 2:
                partition.state.check_begins_at_zero(partition.header(identity, sequence))
            data = partition.append(transaction, identity, sequence)
            partition.probe(identity)
            return data

        self.admit(client, partition, identity, PRODUCE, append, reply)

    def commit_offset(
        self,
        client: Client,
        partition: OffsetsPartition,
        transaction: Transaction,
        identity: ProducerIdentity,
        reply: Reply,
    ) -> None:
        def append(is_verified: bool) -> Data:
            return partition.commit(transaction, identity, client.input_key, transaction.input_offset + 1)

        self.admit(client, partition, identity, OFFSET_COMMIT, append, reply)

    def admit(
        self,
        client: Client,
        partition: LeaderPartition,
        identity: ProducerIdentity,
        operation: Operation,
        append: Callable[[bool], Data],
        reply: Reply,
    ) -> None:
        """As `api.transaction_gate`: let it in, or ask the coordinator first, which takes its time."""
        api_version = operation.adds_since - (0 if client.version == 2 else 1)
        open_epoch = partition.state.open_transaction_epoch(identity.producer_id)
        decision = verdict(open_epoch, identity.epoch, api_version, operation)
        if decision is Verdict.ACCEPT:
            reply(*self.append(partition, identity, lambda: append(False)))
            return
        guard = self.guards.take(partition.name, identity.producer_id)

        def ask() -> None:
            if decision is Verdict.ADD_FIRST:
                error = self.add(client.transactional_id, identity, partition.name, 2)
            else:
                (error,) = self.driver.verify(
                    identity, str(partition.name), transactional_id=client.transactional_id
                )
            self.post(lambda: go_on(error))

        def go_on(error: ErrorCode) -> None:
            is_held = self.guards.is_held(partition.name, identity.producer_id, guard)
            self.guards.drop(partition.name, identity.producer_id, guard)
            if error:
                reply(client_error(error, api_version, operation), None)
            elif not is_held:
                reply(ErrorCode.INVALID_TXN_STATE, None)
            else:
                reply(*self.append(partition, identity, lambda: append(True)))

        self.post(ask)

    def append(
        self, partition: LeaderPartition, identity: ProducerIdentity, append: Callable[[], Data]
    ) -> tuple[ErrorCode, Data | None]:
        try:
            appended = append()
        except ApiError as error:
            self.note(f"{partition.name} refuses {identity}: {error.code.name}")
            return error.code, None
        self.note(f"{partition.name} takes {identity} at {appended.offset}")
        return ErrorCode.NONE, appended

    def write_markers(self, sent: SendMarkers) -> None:
        """Some leaders may be away; version 2 also bears a copy of the request that comes much later."""
        settled = []
        for name in sent.partitions:
            if not self.is_calm and self.chance.random() < 0.15:
                continue
            try:
                decided = self.partitions[name].write_marker(sent)
            except ApiError as error:
                assert error.code in (
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                )
                continue
            settled.append(name)
            offsets = [data.offset for data in decided]
            self.note(
                f"{name}: {'commit' if sent.commit else 'abort'} {sent.producer_id} {sent.epoch}: {offsets}"
            )
            self.check(sent, decided)
        if sent.transaction_version == 2 and not self.is_calm and self.chance.random() < 0.2:
            self.post(lambda: self.write_markers(sent))
        self.driver.report(sent, settled)

    # -- what must hold -------------------------------------------------------------------------------

    def check_step(self) -> None:
        for partition in self.partitions.values():
            partition.check()
            for data in partition.open_data():
                self.check_that_it_will_end(partition.name, data)
        self.check_records()

    def check_that_it_will_end(self, name: TopicPartition, data: Data) -> None:
        metadata = self.driver.shard.describe(data.transaction.owner.transactional_id)
        assert metadata is not None and metadata.state not in AT_REST, f"{name} hangs from {data.offset} on"
        assert name in metadata.partitions and metadata.producer_id == data.identity.producer_id, "it hangs"

    def check_records(self) -> None:
        for entry in self.driver.log[self.followed :]:
            self.follower.replay(self.driver.decoded(*entry), 0, -1)
        self.followed = len(self.driver.log)
        for transactional_id in ("a", "b"):
            metadata = self.driver.shard.describe(transactional_id)
            assert self.follower.describe(transactional_id) == metadata, (
                "the records give another transaction"
            )
            if metadata is not None:
                before = self.identities.get(transactional_id, metadata.identity)
                is_same = before.producer_id == metadata.producer_id
                assert not is_same or before.epoch <= metadata.producer_epoch, "the epoch went back"
                self.identities[transactional_id] = metadata.identity

    def check(self, sent: SendMarkers, decided: list[Data]) -> None:
        for data in decided:
            transaction = data.transaction
            assert transaction.owner.transactional_id == sent.transactional_id
            if data.fate == COMMITTED:
                assert transaction.wants_commit and transaction.is_end_asked, "a foreign commit"
        assert len({data.transaction for data in decided}) <= 1 or not sent.commit, "two in one commit"
        fates = self.fates()
        for data in decided:
            assert len(fates[data.transaction] - {OPEN}) == 1, "committed here and aborted there"

    def fates(self) -> dict[Transaction, set[str]]:
        found: dict[Transaction, set[str]] = {}
        for partition in self.partitions.values():
            for data in partition.data:
                found.setdefault(data.transaction, set()).add(data.fate)
        return found

    def check_end(self) -> None:
        for transactional_id in ("a", "b"):
            metadata = self.driver.shard.describe(transactional_id)
            assert metadata is None or metadata.state in AT_REST, f"{metadata} never ended"
        for partition in self.partitions.values():
            assert partition.state.first_unstable_offset is None, f"{partition.name} hangs"
            assert all(data.fate != OPEN for data in partition.data)
        for transaction, fates in self.fates().items():
            assert len(fates) == 1, f"a transaction is {fates}"
            if transaction.is_acknowledged and transaction.wants_commit:
                assert {data.fate for data in transaction.acknowledged} <= {COMMITTED}, "a commit is lost"
