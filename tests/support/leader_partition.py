"""Leaders of partitions in the simulation of transactions: storage's producer state, and who wrote what.

A `LeaderPartition` takes batches and markers, and remembers for each batch what became of it, so that after each step
it can be asked whether the producer state says the same (`check`), and whether a reader of committed data sees just
what is committed (`check_reading`). An `OffsetsPartition` is the one of a group: what is written there are offsets of
the real group shard, which count when their transaction is committed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from group_driver import GroupDriver
from group_replays import Follower
from offset_ledger import Key

from tidemill.coordination.group.contract import GroupSettings
from tidemill.coordination.record_codec import Producer, encode_marker
from tidemill.coordination.transaction.shard import SendMarkers
from tidemill.coordination.transaction.state import ProducerIdentity
from tidemill.coordination.transaction.verification import VerificationGuards
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.storage.producer_state import NO_SEQUENCE, REMEMBERED_BATCHES, ProducerState, read_end_marker
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import TRANSACTIONAL_MASK, BatchHeader, read_header

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclasses.dataclass(eq=False)
class Transaction:
    """One transaction as its producer sees it."""

    owner: Any
    wants_commit: bool
    input_offset: int = 0
    """Where the producer's input was when the transaction began."""
    generation: int = -1
    """Of its consumer, then."""
    has_offset: bool = False
    is_end_asked: bool = False
    is_acknowledged: bool = False
    acknowledged: list[Data] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Data:
    """A batch in the log of a partition."""

    transaction: Transaction
    offset: int
    identity: ProducerIdentity
    sequence: int
    fate: str = OPEN
    input_key: Key | None = None
    input_offset: int = -1
    """If it holds a committed offset: of what, and which."""


class LeaderPartition:
    def __init__(self, name: TopicPartition, guards: VerificationGuards) -> None:
        self.name = name
        self.state = ProducerState()
        self.data: list[Data] = []
        self._guards = guards
        self._log: list[tuple[bytes, BatchHeader]] = []
        self._aborted: list[AbortedTransaction] = []
        self._next_sequences: dict[ProducerIdentity, int] = {}
        self._recent: dict[ProducerIdentity, list[Data]] = {}

    @property
    def end_offset(self) -> int:
        return len(self._log)

    # -- data -----------------------------------------------------------------------------------------------

    def header(self, identity: ProducerIdentity, sequence: int) -> BatchHeader:
        return BatchHeader(
            self.end_offset, 50, 0, 2, 0, TRANSACTIONAL_MASK, 0, 0, 0, identity.producer_id, identity.epoch, sequence, 1
        )  # fmt: skip

    def append(self, transaction: Transaction, identity: ProducerIdentity, sequence: int) -> Data:
        """Raises ApiError if it is refused; a batch that is there already is answered with where it is."""
        header = self.header(identity, sequence)
        duplicate = self.state.check(header)
        if duplicate is None:
            expected = self._next_sequences.get(identity, 0)
            assert sequence == expected, f"{identity}: {sequence} is written where {expected} is due"
            self._next_sequences[identity] = sequence + 1
            return self._record(header, Data(transaction, self.end_offset, identity, sequence))
        found = next(each for each in self.data if each.offset == duplicate.first_offset)
        assert (found.identity, found.sequence) == (identity, sequence), "another batch was taken for it"
        return found

    def _record(self, header: BatchHeader, data: Data) -> Data:
        self.state.record(header, self.end_offset, 0)
        self._log.append((b"", header))
        self.data.append(data)
        recent = self._recent.setdefault(data.identity, [])
        recent[:] = [*recent[-(REMEMBERED_BATCHES - 1) :], data]
        return data

    def probe(self, identity: ProducerIdentity) -> None:
        """Batches that are there are recognised, and such that would leave a gap are refused."""
        recent = self._recent.get(identity, [])
        is_known = recent and self.state.open_transaction_epoch(identity.producer_id) == identity.epoch
        if not is_known or recent[-1].sequence == NO_SEQUENCE:
            return
        for each in recent:
            assert self.append(each.transaction, identity, each.sequence) is each
        try:
            self.state.check(self.header(identity, recent[-1].sequence + 2))
        except ApiError as error:
            assert error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            raise AssertionError("a gap between batches is accepted")

    # -- the end of transactions ----------------------------------------------------------------------------

    def write_marker(self, sent: SendMarkers) -> list[Data]:
        """What this marker decides; raises ApiError if it is refused."""
        batch = encode_marker(
            Producer(sent.producer_id, sent.epoch), sent.commit, sent.coordinator_epoch, now_ms=0
        )
        header = read_header(batch)._replace(base_offset=self.end_offset)
        marker = read_end_marker(batch, header)
        assert marker is not None
        self.state.check_marker(header, marker, sent.transaction_version)
        self._guards.on_marker(self.name, sent.producer_id)
        aborted = self.state.settle(batch, header)
        if aborted is not None:
            self._aborted.append(aborted)
        self._log.append((bytes(batch), header))
        self.state.forget_completed_below(self.end_offset)
        decided = [each for each in self.open_data() if each.identity.producer_id == sent.producer_id]
        for each in decided:
            each.fate = COMMITTED if sent.commit else ABORTED
        self.check_reading()
        return decided

    def open_data(self) -> list[Data]:
        return [each for each in self.data if each.fate == OPEN]

    def restart(self) -> None:
        """Its leader goes, and another one has what the log says."""
        loaded = ProducerState()
        for batch, header in self._log:
            loaded.settle(batch, header)
        loaded.forget_completed_below(self.end_offset)
        assert _described(loaded) == _described(self.state), "the log gives another producer state"
        self.state = loaded

    # -- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        first = min((each.offset for each in self.open_data()), default=None)
        assert self.state.first_unstable_offset == first, f"{self.name} is stable up to another offset"

    def check_reading(self) -> None:
        """With the last stable offset and the index of aborted transactions, as a consumer does it."""
        first = self.state.first_unstable_offset
        end = self.end_offset if first is None else first
        seen = [each for each in self.data if each.offset < end and not self._is_aborted(each)]
        expected = [each for each in self.data if each.offset < end and each.fate == COMMITTED]
        assert seen == expected, f"readers of {self.name} see what is not committed, or miss what is"

    def _is_aborted(self, data: Data) -> bool:
        return any(
            each.producer_id == data.identity.producer_id
            and each.first_offset <= data.offset <= each.last_offset
            for each in self._aborted
        )


def _described(state: ProducerState) -> dict[int, Any]:
    return {
        producer_id: (entry.epoch, entry.coordinator_epoch, entry.transaction_first_offset, entry.batches)
        for producer_id, entry in state.producers.items()
    }


class OffsetsPartition(LeaderPartition):
    """The partition of a group: its consumer has one member, which joins again now and then."""

    def __init__(self, name: TopicPartition, guards: VerificationGuards, seed: int) -> None:
        super().__init__(name, guards)
        self.groups = GroupDriver(GroupSettings(initial_rebalance_delay_ms=0), seed)
        (self.member_id,) = self.groups.stable_group(1)
        self.generation = 1
        self._follower = Follower(self.groups)

    def rebalance(self) -> None:
        self.generation = self.groups.join(member_id=self.member_id).generation_id
        self.groups.sync(self.member_id, self.generation, {self.member_id: b""})

    def restart(self) -> None:
        super().restart()
        self.groups.crash()

    def read(self, key: Key) -> int | None:
        """The stable offset; None while a transaction may change it."""
        found = self.groups.fetch([key], require_stable=True)[key]
        if found.error_code:
            assert found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
            return None
        return max(int(found.committed_offset), 0)

    def commit(self, transaction: Transaction, identity: ProducerIdentity, key: Key, offset: int) -> Data:
        """Raises ApiError if it is refused."""
        header = self.header(identity, NO_SEQUENCE)
        self.state.check(header)
        (code,) = self.groups.commit_in_transaction(
            identity.producer_id, {key: offset}, self.member_id, transaction.generation
        )
        is_stale = transaction.generation != self.generation
        assert is_stale == (code == ErrorCode.ILLEGAL_GENERATION), f"generation {transaction.generation}"
        if code:
            raise ApiError(ErrorCode(code))
        data = Data(transaction, self.end_offset, identity, NO_SEQUENCE, OPEN, key, offset)
        return self._record(header, data)

    def write_marker(self, sent: SendMarkers) -> list[Data]:
        before = self.committed()
        decided = super().write_marker(sent)
        self.groups.end_transaction(sent.producer_id, sent.commit)
        for data in decided:
            if data.fate == COMMITTED and data.input_key is not None:
                due = before.get(data.input_key, 0) + 1
                assert data.input_offset == due, f"{data.input_key} is at {due - 1}, {data.input_offset} came"
        return decided

    def committed(self) -> dict[Key, int]:
        """By what became of the transactions: the last one written counts."""
        return {
            each.input_key: each.input_offset
            for each in self.data
            if each.fate == COMMITTED and each.input_key
        }

    def check(self) -> None:
        """Offsets of open transactions are not seen, those of aborted ones never, and who asks is told to wait."""
        super().check()
        self._follower.check()
        assert self.groups.committed() == self.committed(), "other offsets than the transactions committed"
        pending = {each.input_key for each in self.open_data() if each.input_key}
        for key in {each.input_key for each in self.data if each.input_key}:
            assert (self.read(key) is None) == (key in pending), f"whether {key} is stable"
