"""A share partition under random trouble, with virtual time: everything follows from one seed.

Members fetch, accept, release, reject, renew, forget, leave; writes take their time, fail, or are lost with the leader;
locks run out; the log grows, loses its oldest records and is compacted; the leader crashes and is loaded again from
what was written. A model keeps, for each offset, what must be true of it. After each step:

- a record is held by at most one member, and only that member's word for it is accepted;
- what was acknowledged or archived for good is never delivered again;
- a delivery count never falls, a crash loses at most the deliveries that were not written;
- nobody gets a record that the log does not have, or hides;
- no more is in flight than the limit and one batch.

After the trouble everybody accepts what it gets, until nothing is left: then every record that the log still has was
acknowledged, archived, or given up after as many deliveries as the limit allows.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from share_transcript import span

from tidemill.coordination.share.partition import SharePartition
from tidemill.coordination.share.partition_contract import (
    AcknowledgedRange,
    Acknowledgement,
    AcquiredRange,
    FetchedBatch,
    ShareLimits,
    Transition,
    Wish,
    Write,
)
from tidemill.coordination.share.partition_runs import RecordState
from tidemill.coordination.share.persister import StateBatch
from tidemill.model.errors import ApiError

STEPS = 200
MEMBERS = ("ann", "bob", "cid", "dan")
BIGGEST_BATCH = 8
LAST_ROUNDS = 2000


class PendingWrite(NamedTuple):
    write: Write
    transition: Transition | None
    """None for the write of a time-out, which nobody waits for."""


class Store:
    """What the persister holds: for each offset the higher count, with equal counts the higher state."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.known: dict[int, tuple[int, int]] = {}

    def write(self, write: Write) -> None:
        for batch in write.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                new = (batch.delivery_count, batch.delivery_state)
                self.known[offset] = max(self.known.get(offset, new), new)
        self.start_offset = max(self.start_offset, write.start_offset)
        self.known = {offset: known for offset, known in self.known.items() if offset >= self.start_offset}

    def batches(self) -> list[StateBatch]:
        return [StateBatch(offset, offset, state, count) for offset, (count, state) in self.known.items()]


class Record:
    """What must be true of one offset."""

    def __init__(self, is_hidden: bool) -> None:
        self.is_hidden = is_hidden
        self.is_lost = False
        """The log has it no more."""
        self.is_final = False
        self.holder = ""
        self.lock_due_ms = 0
        self.count = 0
        self.written_count = 0


class Simulation:
    def __init__(self, seed: int, partition_class: type[SharePartition] = SharePartition) -> None:
        self.dice = random.Random(seed)
        self.partition_class = partition_class
        self.limits = ShareLimits(
            self.dice.choice([100, 1000]), self.dice.choice([2, 3, 5, 10]), self.dice.choice([5, 20, 60])
        )
        self.now_ms = 0
        self.batches: list[FetchedBatch] = []
        self.records: list[Record] = []
        self.log_start = 0
        self.store = Store()
        self.partition = partition_class(0)
        self.pending: list[PendingWrite] = []
        self.transcript: list[str] = [f"{self.limits}"]

    # -- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        acts = [
            self._grow, self._acquire, self._acquire, self._acquire, self._acknowledge, self._acknowledge,
            self._acknowledge, self._finish_write, self._finish_write, self._finish_write, self._pass_time,
            self._leave, self._lose_oldest, self._compact, self._crash,
        ]  # fmt: skip
        weights = [6, 6, 6, 6, 6, 6, 6, 8, 8, 8, 6, 1, 0.5, 1, 1]
        for _ in range(STEPS):
            self.dice.choices(acts, weights)[0]()
            self.check()
        self._come_to_rest()

    def _say(self, text: str) -> None:
        self.transcript.append(f"{self.now_ms:>6} {text}")

    # -- the log --------------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        return len(self.records)

    def _grow(self) -> None:
        size = self.dice.randint(1, BIGGEST_BATCH)
        is_hidden = self.dice.random() < 0.15
        batch = FetchedBatch(self.log_end, self.log_end + size - 1, is_hidden)
        self.records += [Record(is_hidden) for _ in range(size)]
        self.batches.append(batch)
        self._say(f"append {span(*batch[:2])}{' hidden' if is_hidden else ''}")

    def _lose_oldest(self) -> None:
        """Retention: the log start moves, in the middle of what is in flight."""
        if not self.batches:
            return
        self.log_start = self.batches.pop(0).last_offset + 1
        for record in self.records[: self.log_start]:
            record.is_lost = True
        self.partition.move_log_start(self.log_start)
        self._say(f"log starts at {self.log_start}")

    def _compact(self) -> None:
        """A whole batch vanishes from the middle."""
        if len(self.batches) > 2:
            gone = self.batches.pop(self.dice.randrange(1, len(self.batches) - 1))
            for record in self.records[gone.base_offset : gone.last_offset + 1]:
                record.is_lost = True
            self._say(f"compacted {span(*gone[:2])}")

    # -- members --------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        member = self.dice.choice(MEMBERS)
        wish = Wish(member, self.dice.randint(1, 12), self.dice.randint(1, 10), self.dice.random() < 0.3)
        self._deliver(wish)

    def _deliver(self, wish: Wish) -> list[AcquiredRange]:
        partition = self.partition
        if not partition.can_acquire(self.limits):
            return []
        offset = partition.next_fetch_offset
        fetched = (batch for batch in self.batches if batch.last_offset >= offset)
        acquired = partition.acquire(offset, fetched, wish, self.limits, self.now_ms)
        self._say(
            f"{wish.member_id} acquires {[f'{span(*each[:2])} x{each.delivery_count}' for each in acquired]}"
        )
        for each in acquired:
            for number in range(each.first_offset, each.last_offset + 1):
                self._delivered(number, wish.member_id, each.delivery_count)
        if wish.is_exact:
            assert sum(each.size for each in acquired) <= wish.max_records
        return acquired

    def _delivered(self, offset: int, member: str, count: int) -> None:
        record = self.records[offset]
        assert not record.holder, f"{offset} is held by {record.holder} and was given to {member}"
        assert not record.is_final, f"{offset} is done with and was delivered again"
        assert not record.is_hidden and not record.is_lost, f"{offset} cannot be read"
        assert count == record.count + 1, f"{offset} was delivered {record.count} times, now it says {count}"
        assert count <= self.limits.delivery_count_limit
        record.count = count
        record.holder = member
        record.lock_due_ms = self.now_ms + self.limits.record_lock_duration_ms

    def _acknowledge(self) -> None:
        """Somebody speaks about some records: mostly its own, sometimes others'."""
        member = self.dice.choice(MEMBERS)
        held = [n for n, record in enumerate(self.records) if record.holder == member]
        if not held or self.dice.random() < 0.1:
            held = list(range(self.log_start, self.log_end))
        if not held:
            return
        first = self.dice.choice(held)
        last = min(self.log_end - 1, first + self.dice.randint(0, 6))
        self._speak(member, first, last)

    def _speak(self, member: str, first: int, last: int) -> None:
        words = [self._word() for _ in range(last - first + 1)]
        if self.dice.random() < 0.5:
            words = words[:1]
        in_range = range(max(first, self.partition.start_offset), last + 1)
        is_right = all(self._may_speak(member, offset) for offset in in_range)
        try:
            transition = self.partition.acknowledge(
                member, [AcknowledgedRange(first, last, tuple(words))], self.limits, self.now_ms
            )
        except ApiError as error:
            self._say(f"{member} is refused {span(first, last)}: {error.code.name} {error.message}")
            assert not is_right, f"{member} may speak about {span(first, last)} and was refused: {error}"
            return
        self._say(f"{member} says {[word.name for word in words]} of {span(first, last)}")
        assert is_right, f"{member} may not speak about {span(first, last)}"
        for offset in in_range:
            word = words[0] if len(words) == 1 else words[offset - first]
            if word is Acknowledgement.RENEW:
                self.records[offset].lock_due_ms = self.now_ms + self.limits.record_lock_duration_ms
        if transition is not None:
            self.pending.append(PendingWrite(transition.write, transition))

    def _word(self) -> Acknowledgement:
        return self.dice.choices(list(Acknowledgement), [1, 6, 4, 2, 2])[0]

    def _may_speak(self, member: str, offset: int) -> bool:
        record = self.records[offset]
        return record.holder == member and not self._is_waiting(offset)

    def _is_waiting(self, offset: int) -> bool:
        return any(
            run.first <= offset <= run.last and run.next_state is not None
            for pending in self.pending
            if pending.transition is not None
            for run in pending.transition.runs
        )

    def _leave(self) -> None:
        member = self.dice.choice(MEMBERS)
        self._say(f"{member} leaves")
        transition = self.partition.release_member(member, self.limits)
        if transition is not None:
            self.pending.append(PendingWrite(transition.write, transition))

    # -- time and writes ------------------------------------------------------------------------------

    def _pass_time(self, milliseconds: int | None = None) -> None:
        step = self.dice.choice([1, 10, 100, 500]) if milliseconds is None else milliseconds
        self.now_ms += step
        earliest = self.partition.earliest_lock_ms
        write = None
        if earliest is not None and earliest <= self.now_ms:
            write = self.partition.expire_locks(self.limits, self.now_ms)
        for batch in write.batches if write is not None else ():
            for offset in range(batch.first_offset, batch.last_offset + 1):
                record = self.records[offset]
                assert record.holder and record.lock_due_ms <= self.now_ms, (
                    f"the lock of {offset} ended early"
                )
                self._settle(offset, batch.delivery_state)
        if write is not None:
            self._say(f"expired {[span(*batch[:2]) for batch in write.batches]}")
            self.pending.append(PendingWrite(write, None))
        for offset, record in enumerate(
            self.records[self.partition.start_offset :], self.partition.start_offset
        ):
            is_overdue = bool(record.holder) and record.lock_due_ms <= self.now_ms
            assert not is_overdue or self._is_waiting(offset), f"the lock of {offset} did not end"

    def _settle(self, offset: int, state: int) -> None:
        record = self.records[offset]
        record.holder = ""
        record.is_final = record.is_final or RecordState(state).is_final

    def _finish_write(self) -> None:
        """The oldest write ends: well, mostly."""
        if not self.pending:
            return
        write, transition = self.pending.pop(0)
        if self.dice.random() < 0.15:
            self._say("a write fails")
            if transition is not None:
                self.partition.roll_back(transition)
                self._pass_time(0)
            return
        self.store.write(write)
        for batch in write.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.records[offset].written_count = max(
                    self.records[offset].written_count, batch.delivery_count
                )
                if transition is not None:
                    self._settle(offset, batch.delivery_state)
        if transition is not None:
            self.partition.commit(transition)
        self._say(f"written: start {write.start_offset}, {[tuple(batch) for batch in write.batches]}")

    def _crash(self) -> None:
        """What was not written is forgotten; some writes under way may have arrived, in order."""
        for _ in range(self.dice.randint(0, len(self.pending))):
            write, _transition = self.pending.pop(0)
            self.store.write(write)
            for batch in write.batches:
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    record = self.records[offset]
                    record.written_count = max(record.written_count, batch.delivery_count)
        self.pending.clear()
        self._say("crash")
        self.partition = self.partition_class.load(self.store.start_offset, self.store.batches())
        if self.partition.start_offset < self.log_start:
            self.partition.move_log_start(self.log_start)
        for offset, record in enumerate(self.records):
            record.holder = ""
            count, state = self.store.known.get(offset, (0, RecordState.AVAILABLE))
            assert not record.is_final or count <= record.count
            record.is_final = offset < self.store.start_offset or RecordState(state).is_final
            assert record.written_count == count or record.is_final, f"{offset} forgot its deliveries"
            record.count = record.written_count

    # -- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        partition = self.partition
        expected = partition.start_offset
        held = {}
        for run in partition.runs:
            assert run.first == expected <= run.last, f"a hole before {run}"
            expected = run.last + 1
            assert (run.state is RecordState.ACQUIRED) == bool(run.member_id), run
            assert run.next_state is None or run.state is RecordState.ACQUIRED, run
            held |= {n: run.member_id for n in range(run.first, run.last + 1) if run.member_id}
        assert expected == partition.next_offset
        model = {n: record.holder for n, record in enumerate(self.records) if record.holder}
        assert held == {n: holder for n, holder in model.items() if n >= partition.start_offset}
        assert not partition.runs or not partition.runs.head.state.is_final, "the start could move"
        for offset in range(self.log_start, partition.start_offset):
            record = self.records[offset]
            assert record.is_final or record.is_hidden or record.is_lost, f"the start passed {offset}"

    def _come_to_rest(self) -> None:
        """No more trouble: time passes, everybody accepts all it gets."""
        self._say("rest")
        for _ in range(LAST_ROUNDS):
            while self.pending:
                write, transition = self.pending.pop(0)
                self.store.write(write)
                for batch in write.batches if transition is not None else ():
                    for offset in range(batch.first_offset, batch.last_offset + 1):
                        self._settle(offset, batch.delivery_state)
                if transition is not None:
                    self.partition.commit(transition)
            self._pass_time(self.limits.record_lock_duration_ms)
            acquired = self._deliver(Wish("ann", 100, 100))
            if acquired:
                ranges = [AcknowledgedRange(*each[:2], (Acknowledgement.ACCEPT,)) for each in acquired]
                transition = self.partition.acknowledge("ann", ranges, self.limits, self.now_ms)
                assert transition is not None
                self.pending.append(PendingWrite(transition.write, transition))
            elif not self.pending and self.partition.next_fetch_offset >= self.log_end:
                break
        self.check()
        assert self.partition.start_offset == self.log_end, (
            f"stuck at {self.partition.start_offset} of {self.log_end}"
        )
        for offset in range(self.log_start, self.log_end):
            record = self.records[offset]
            assert record.is_final or record.is_hidden or record.is_lost, f"{offset} was forgotten"
