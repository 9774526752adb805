"""Drives a transaction shard by hand: what the runtime does, without a loop, a log file or a clock.

    driver = TransactionDriver()
    result = driver.init("orders")                      # ProducerResult
    driver.add("orders", result.identity, "t-0")        # ErrorCode
    driver.end("orders", result.identity, commit=True)
    driver.markers                                      # what is to be written; then driver.write_markers()

Records go through their bytes, so that what is replayed is what Kafka would read.
"""

from __future__ import annotations

from typing import Any

from tidemill.coordination.core import CoordinatorRecord, SetTimer
from tidemill.coordination.record_codec import decode_record, encode_key, encode_value
from tidemill.coordination.records.transaction_records import RECORD_TYPES
from tidemill.coordination.transaction.producer_ids import ProducerIdStock
from tidemill.coordination.transaction.shard import (
    ProducerResult,
    SendMarkers,
    TransactionConfig,
    TransactionOutcome,
    TransactionShard,
)
from tidemill.coordination.transaction.state import ProducerIdentity, State, TransactionMetadata
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import TopicPartition

TOKEN = "token"
TIMEOUT_MS = 60_000


def partition(text: str) -> TopicPartition:
    topic, index = text.rsplit("-", 1)
    return TopicPartition(topic, int(index))


class TransactionDriver:
    def __init__(
        self, config: TransactionConfig | None = None, producer_ids: range = range(1000, 9000)
    ) -> None:
        self.config = config or TransactionConfig()
        self.ids = ProducerIdStock()
        self.ids.add(producer_ids)
        self.now_ms = 1_000
        self.coordinator_epoch = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[object, int] = {}
        self.markers: list[SendMarkers] = []
        self.refuses_writes = False
        self.shard = TransactionShard(self.config, 0, self.ids)

    # -- what the runtime does ------------------------------------------------------------------------

    def carry_out(self, outcome: TransactionOutcome) -> Any:
        """Append, replay, set timers, send markers; the reply, or NOT_COORDINATOR if the log refuses."""
        for change in outcome.timers:
            assert isinstance(change, SetTimer)
            self.timers[change.key] = change.due_ms
        if outcome.records and self.refuses_writes:
            return ErrorCode.NOT_COORDINATOR
        for record in outcome.records:
            self.log.append((encode_key(record), encode_value(record)))
            self.shard.replay(self.decoded(*self.log[-1]), len(self.log) - 1, -1)
        self.markers += outcome.markers
        assert len(outcome.replies) <= 1
        return outcome.replies[0].response if outcome.replies else None

    def decoded(self, key: bytes, value: bytes | None) -> CoordinatorRecord:
        record = decode_record(key, value, RECORD_TYPES)
        assert record is not None
        return record

    def restart(self) -> None:
        """The coordinator crashes; another one loads the log."""
        self.timers.clear()
        self.markers.clear()
        self.coordinator_epoch += 1
        self.shard = TransactionShard(self.config, self.coordinator_epoch, self.ids)
        for offset, entry in enumerate(self.log):
            self.shard.replay(self.decoded(*entry), offset, -1)
        self.carry_out(self.shard.on_loaded(self.now_ms))

    def advance(self, duration_ms: int) -> None:
        """Time passes; timers fire in order."""
        end_ms = self.now_ms + duration_ms
        while True:
            due = [(due_ms, str(key), key) for key, due_ms in self.timers.items() if due_ms <= end_ms]
            if not due:
                break
            due_ms, _, key = min(due)
            del self.timers[key]
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.shard.on_timer(key, self.now_ms))
        self.now_ms = end_ms

    def write_markers(self, *settled: str) -> None:
        """Report the oldest request: these partitions, or all of them, have their marker."""
        sent = self.markers.pop(0)
        partitions = [partition(text) for text in settled] if settled else sent.partitions
        self.report(sent, partitions)

    def report(self, sent: SendMarkers, partitions: Any) -> None:
        self.carry_out(self.shard.on_markers_written(sent, partitions, self.now_ms))

    # -- requests -------------------------------------------------------------------------------------

    def init(
        self,
        transactional_id: str = "orders",
        expected: ProducerIdentity | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> ProducerResult:
        outcome = self.shard.init_producer_id(TOKEN, self.now_ms, transactional_id, timeout_ms, expected)
        return self._result(outcome)

    def add(
        self, identity: ProducerIdentity, *names: str, version: int = 2, transactional_id: str = "orders"
    ) -> ErrorCode:
        wanted = [partition(name) for name in names]
        error: ErrorCode = self.carry_out(
            self.shard.add_partitions(TOKEN, self.now_ms, transactional_id, identity, wanted, version)
        )
        return error

    def verify(
        self, identity: ProducerIdentity, *names: str, transactional_id: str = "orders"
    ) -> list[ErrorCode]:
        wanted = [partition(name) for name in names]
        errors = self.carry_out(
            self.shard.verify_partitions(TOKEN, self.now_ms, transactional_id, identity, wanted)
        )
        return [errors[each] for each in wanted]

    def end(
        self, identity: ProducerIdentity, *, commit: bool, version: int = 2, transactional_id: str = "orders"
    ) -> ProducerResult:
        return self._result(self.shard.end(TOKEN, self.now_ms, transactional_id, identity, commit, version))

    def _result(self, outcome: TransactionOutcome) -> ProducerResult:
        reply = self.carry_out(outcome)
        return reply if isinstance(reply, ProducerResult) else ProducerResult(reply)

    # -- looking --------------------------------------------------------------------------------------

    def metadata(self, transactional_id: str = "orders") -> TransactionMetadata:
        found = self.shard.describe(transactional_id)
        assert found is not None
        return found

    @property
    def state(self) -> State:
        return self.metadata().state

    def values(self) -> list[Any]:
        """Every record so far, decoded."""
        return [self.decoded(*entry).value for entry in self.log]
