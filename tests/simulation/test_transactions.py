"""Transactions under everything at once: kills, zombies, late and lost messages, time-outs, coordinator crashes.

Producers share transactional ids, and each thinks it is the only one. Every message (request, reply, marker) lies in
one bag, and chance picks what is delivered, lost, doubled or left for later; chance also kills producers, crashes the
coordinator between any two steps, and lets time pass. Partitions decide with the real producer state of storage and
the real rules of verification. What is checked, at each step:

- the data of one transaction is never committed here and aborted there;
- nothing is committed that its producer has not asked to commit, and nothing by a producer that was replaced;
- a partition refuses every batch that no marker would ever follow;

and after everything is healed: all prepared transactions are complete, every partition is decided to its end, and
what was acknowledged as committed is committed.

Producers of version 2 repeat requests and may have several copies of each on the way (row 9 of the reliability
table). Version 1 cannot survive that, in Kafka neither: such producers give up their epoch instead of repeating.

`simulations` says how to run more seeds, or one alone.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable

from simulations import run_seed, run_seeds
from transaction_driver import TIMEOUT_MS, TransactionDriver

from tidemill.coordination.record_codec import Producer, encode_marker
from tidemill.coordination.transaction.shard import (
    ProducerResult,
    SendMarkers,
    TransactionConfig,
    TransactionOutcome,
)
from tidemill.coordination.transaction.state import (
    AT_REST,
    NO_PRODUCER,
    ProducerIdentity,
    State,
)
from tidemill.coordination.transaction.verification import (
    Verdict,
    VerificationGuards,
    client_error,
    verdict,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.storage.producer_state import ProducerState, read_end_marker
from tidemill.wire.batch import TRANSACTIONAL_MASK, BatchHeader, read_header

STEPS = 600
TOKEN = "token"
NEW_PRODUCE, OLD_PRODUCE = 12, 11
FATAL = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
RESTARTING = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}


@dataclasses.dataclass(eq=False)
class Transaction:
    """One transaction as its producer sees it."""

    owner: Client
    wants_commit: bool
    is_end_asked: bool = False
    is_acknowledged: bool = False
    acknowledged: list[Data] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Data:
    transaction: Transaction
    offset: int
    producer_id: int
    fate: str = "open"


class LeaderPartition:
    """A partition's leader: storage's producer state, and who wrote what."""

    def __init__(self, name: TopicPartition, guards: VerificationGuards) -> None:
        self.name = name
        self.end_offset = 0
        self.state = ProducerState()
        self.data: list[Data] = []
        self._guards = guards

    def append(self, transaction: Transaction, identity: ProducerIdentity) -> Data:
        header = BatchHeader(
            self.end_offset, 50, 0, 2, 0, TRANSACTIONAL_MASK, 0, 0, 0, identity.producer_id, identity.epoch, -1, 1
        )  # fmt: skip
        self.state.check(header)
        self.state.record(header, self.end_offset, 0)
        self.data.append(Data(transaction, self.end_offset, identity.producer_id))
        self.end_offset += 1
        return self.data[-1]

    def write_marker(self, sent: SendMarkers) -> list[Data]:
        """What this marker decides; raises ApiError if it is refused."""
        batch = encode_marker(
            Producer(sent.producer_id, sent.epoch), sent.commit, sent.coordinator_epoch, now_ms=0
        )
        header = read_header(batch)
        marker = read_end_marker(batch, header)
        assert marker is not None
        self.state.check_marker(header, marker, sent.transaction_version)
        self._guards.on_marker(self.name, sent.producer_id)
        completed = self.state.completion(header, marker, self.end_offset)
        self.state.record_marker(header, marker, completed, 0)
        self.end_offset += 1
        self.state.forget_completed_below(self.end_offset)
        if completed is None:
            return []
        decided = [each for each in self.data if each.fate == "open" and each.producer_id == sent.producer_id]
        for each in decided:
            each.fate = "committed" if sent.commit else "aborted"
        return decided


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
            self.transaction = Transaction(self, wants_commit=chance.random() < 0.6)
            self.added.clear()
        elif chance.random() < 0.65:
            self._write(chance.choice(list(self.world.partitions.values())))
        else:
            self._end()

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

        def request(number: int) -> None:
            self.world.produce(self, partition, transaction, identity, lambda *got: reply(number, *got))

        def reply(number: int, error: ErrorCode, data: Data | None) -> None:
            self.world.post(lambda: on_reply(number, error, data))

        def on_reply(number: int, error: ErrorCode, data: Data | None) -> None:
            if self._receive(number, error):
                assert data is not None
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
        names = [TopicPartition("t", index) for index in range(3)]
        self.partitions = {name: LeaderPartition(name, self.guards) for name in names}
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
        self.heal()

    def step(self) -> None:
        dice = self.chance.random()
        if dice > self.storm:
            if self.bag and self.chance.random() < 0.7:
                self.deliver()
            else:
                self.chance.choice(self.clients).step()
        elif dice < self.storm * 0.4:
            self.driver.advance(self.chance.choice((1, 500, 20_000, TIMEOUT_MS)))
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
        reply: Callable[[ErrorCode, Data | None], None],
    ) -> None:
        """As `api.transaction_gate`: let it in, or ask the coordinator first, which takes its time."""
        api_version = NEW_PRODUCE if client.version == 2 else OLD_PRODUCE
        open_epoch = partition.state.open_transaction_epoch(identity.producer_id)
        decision = verdict(open_epoch, identity.epoch, api_version)
        if decision is Verdict.ACCEPT:
            reply(*self.append(partition, transaction, identity))
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
                reply(client_error(error, api_version), None)
            elif not is_held:
                reply(ErrorCode.INVALID_TXN_STATE, None)
            else:
                reply(*self.append(partition, transaction, identity))

        self.post(ask)

    def append(
        self, partition: LeaderPartition, transaction: Transaction, identity: ProducerIdentity
    ) -> tuple[ErrorCode, Data | None]:
        try:
            appended = partition.append(transaction, identity)
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

    def check(self, sent: SendMarkers, decided: list[Data]) -> None:
        for data in decided:
            transaction = data.transaction
            assert transaction.owner.transactional_id == sent.transactional_id
            if data.fate == "committed":
                assert transaction.wants_commit and transaction.is_end_asked, "a foreign commit"
        assert len({data.transaction for data in decided}) <= 1 or not sent.commit, "two in one commit"
        fates = self.fates()
        for data in decided:
            assert len(fates[data.transaction] - {"open"}) == 1, "committed here and aborted there"

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
            assert all(data.fate != "open" for data in partition.data)
        for transaction, fates in self.fates().items():
            assert len(fates) == 1, f"a transaction is {fates}"
            if transaction.is_acknowledged and transaction.wants_commit:
                assert {data.fate for data in transaction.acknowledged} <= {"committed"}, "a commit is lost"


SIMULATION = World


def test_transactions_survive_everything_at_once() -> None:
    worlds = run_seeds(SIMULATION, default=100)
    fates = [data.fate for world in worlds for each in world.partitions.values() for data in each.data]
    if len(worlds) > 1:
        assert min(fates.count("committed"), fates.count("aborted")) > len(worlds), "too little happened"


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 4711), run_seed(SIMULATION, 4711)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
