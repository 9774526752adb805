"""A transaction shard on the real runtime: markers leave after the commit, and none is forgotten.

The log is in memory, and the test decides when a batch is committed, or that it never is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemill.coordination.core import Outcome, Reply, Token
from tidemill.coordination.records.transaction_records import RECORD_TYPES
from tidemill.coordination.runtime import CoordinatorRuntime, RuntimeSettings
from tidemill.coordination.transaction.driven import DrivenShard
from tidemill.coordination.transaction.producer_ids import ProducerIdStock
from tidemill.coordination.transaction.shard import (
    RETRY_MS,
    ProducerResult,
    SendMarkers,
    TransactionConfig,
    TransactionOutcome,
    TransactionShard,
)
from tidemill.coordination.transaction.state import ProducerIdentity, State
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.timing.wheel import TimingWheel, run_due
from tidemill.wire.batch import read_header, stamp

T0 = TopicPartition("t", 0)
Ask = Callable[[TransactionShard, Token, int], TransactionOutcome]


class Clock:
    elapsed_ms = 0

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def wall_ms(self) -> int:
        return 1_000_000 + self.elapsed_ms


class Log:
    """Commits at once, unless it is told to hold."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.is_holding = False
        self.waiting: list[Callable[[ApiError | None], None]] = []

    def bounds(self, index: int) -> tuple[int, int]:
        return 0, self.end

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        return b"".join(batch for batch in self.batches if read_header(batch).last_offset >= offset)

    def append(self, index: int, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        stamp(batch, 0, self.end, leader_epoch)
        self.batches.append(bytes(batch))
        self.end = read_header(batch).last_offset + 1
        return self.end

    def when_committed(
        self, index: int, end_offset: int, due_ms: int, respond: Callable[[ApiError | None], None]
    ) -> None:
        if self.is_holding:
            self.waiting.append(respond)
        else:
            respond(None)

    def release(self, failure: ApiError | None = None) -> None:
        self.is_holding = False
        waiting, self.waiting = self.waiting, []
        for respond in waiting:
            respond(failure)


class Bench:
    def __init__(self) -> None:
        self.clock, self.log = Clock(), Log()
        self.wheel = TimingWheel(0)
        self.ids = ProducerIdStock()
        self.ids.add(range(7, 1000))
        self.sent: list[tuple[DrivenShard, SendMarkers]] = []
        self.runtime = self.make_runtime()

    def make_runtime(self) -> CoordinatorRuntime[DrivenShard]:
        settings = RuntimeSettings(RECORD_TYPES)
        runtime = CoordinatorRuntime(
            "__transaction_state", self.make_core, self.log, self.wheel, self.clock, settings
        )
        self.runtime = runtime
        runtime.become_leader(0, 0)
        self.advance(5)
        return runtime

    def make_core(self, index: int) -> DrivenShard:
        shard = TransactionShard(TransactionConfig(), 0, self.ids)
        return DrivenShard(shard, lambda core, markers: self.sent.append((core, markers)), self.retry)

    def retry(self, core: DrivenShard, markers: SendMarkers) -> None:
        self.report(core, markers, [])

    def report(self, core: DrivenShard, markers: SendMarkers, settled: list[TopicPartition]) -> None:
        def call(current: DrivenShard, token: Token, now_ms: int) -> Outcome:
            if current is not core:
                return Outcome(replies=[Reply(token, None)])
            outcome = current.shard.on_markers_written(markers, settled, now_ms)
            outcome.replies.append(Reply(token, None))
            return current.carry_out(outcome)

        self.runtime.submit(0, call, lambda response: None)

    def ask(self, ask: Ask) -> list[Any]:
        """The answers so far: none while the log holds."""
        answers: list[Any] = []
        self.runtime.submit(
            0, lambda core, token, now_ms: core.carry_out(ask(core.shard, token, now_ms)), answers.append
        )
        return answers

    def state(self) -> State:
        (state,) = self.ask(
            lambda shard, token, now_ms: TransactionOutcome(replies=[Reply(token, shard.describe("orders"))])
        )
        found: State = state.state
        return found

    def advance(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            self.clock.elapsed_ms += 1
            run_due(self.wheel, self.clock.elapsed_ms)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def open_transaction(bench: Bench) -> ProducerIdentity:
    (result,) = bench.ask(
        lambda shard, token, now_ms: shard.init_producer_id(token, now_ms, "orders", 60_000)
    )
    assert isinstance(result, ProducerResult)
    identity = result.identity
    assert bench.ask(
        lambda shard, token, now_ms: shard.add_partitions(token, now_ms, "orders", identity, [T0], 2)
    ) == [ErrorCode.NONE]
    return identity


def commit(bench: Bench, identity: ProducerIdentity) -> list[Any]:
    return bench.ask(lambda shard, token, now_ms: shard.end(token, now_ms, "orders", identity, True, 2))


def test_markers_leave_after_the_decision_is_committed(bench: Bench) -> None:
    identity = open_transaction(bench)
    bench.log.is_holding = True
    answers = commit(bench, identity)
    assert answers == [] and bench.sent == []
    bench.log.release()
    assert [answer.error for answer in answers] == [ErrorCode.NONE]
    ((core, markers),) = bench.sent
    assert markers.partitions == (T0,)
    bench.report(core, markers, [T0])
    assert bench.state() is State.COMPLETE_COMMIT


def test_a_decision_whose_commit_is_unknown_is_carried_out_later(bench: Bench) -> None:
    identity = open_transaction(bench)
    bench.log.is_holding = True
    answers = commit(bench, identity)
    bench.log.release(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert [answer.code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert bench.sent == [], "it is not known to be committed"
    bench.advance(RETRY_MS + 5)
    ((core, markers),) = bench.sent
    bench.report(core, markers, [T0])
    assert bench.state() is State.COMPLETE_COMMIT


def test_a_new_life_asks_for_itself_and_ignores_old_reports(bench: Bench) -> None:
    identity = open_transaction(bench)
    commit(bench, identity)
    ((old, markers),) = bench.sent
    bench.runtime.resign(0)
    bench.make_runtime()
    assert len(bench.sent) == 2
    bench.report(old, markers, [T0])
    assert bench.state() is State.PREPARE_COMMIT
    core, again = bench.sent[1]
    assert again == markers and core is not old
    bench.report(core, again, [T0])
    assert bench.state() is State.COMPLETE_COMMIT
