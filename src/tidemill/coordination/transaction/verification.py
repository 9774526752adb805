"""What a partition's leader asks before it takes a transactional batch (KIP-890).

A batch that arrives after its transaction ended would hang: no marker would ever come for it, and the last stable
offset would stand still. So a leader takes a transactional batch only for a transaction that is open *on this
partition*, or that its coordinator has just said is open:

    the partition has the transaction of this producer and epoch open     ACCEPT
    otherwise, a producer of version 2 (Produce v12, TxnOffsetCommit v5)  ADD_FIRST: AddPartitionsToTxn for it
    otherwise                                                             VERIFY_FIRST: the same with verify_only

Between the coordinator's word and the append the transaction may end after all. A *guard* catches that: it is taken
before the coordinator is asked, and every marker for this producer on this partition takes it away.

    guard = guards.take(partition, header.producer_id)
    error = await ask_the_coordinator(...)
    if error or not guards.is_held(partition, header.producer_id, guard): refuse
    append; guards.drop(partition, header.producer_id, guard)

The coordinator's error is not always the client's: `client_error` says what the client is told.

Limits: guards are in memory only; a leader that restarts has forgotten them, and the batches that waited, too.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tidemill.model.errors import ErrorCode
from tidemill.model.ids import TopicPartition


class Operation(NamedTuple):
    """A request that writes in a transaction: since which version it can what."""

    adds_since: int
    """From this version on the request itself adds the partition to the transaction."""
    abortable_since: int
    """From this version on the client understands TRANSACTION_ABORTABLE."""


PRODUCE = Operation(adds_since=12, abortable_since=11)
OFFSET_COMMIT = Operation(adds_since=5, abortable_since=4)


class Verdict(enum.Enum):
    ACCEPT = "accept"
    ADD_FIRST = "add first"
    VERIFY_FIRST = "verify first"


def verdict(open_epoch: int | None, epoch: int, api_version: int, operation: Operation = PRODUCE) -> Verdict:
    """`open_epoch` is the epoch of the transaction that this producer has open on the partition, if any."""
    if open_epoch == epoch:
        return Verdict.ACCEPT
    return Verdict.ADD_FIRST if api_version >= operation.adds_since else Verdict.VERIFY_FIRST


_COME_BACK = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def client_error(error: ErrorCode, api_version: int, operation: Operation = PRODUCE) -> ErrorCode:
    """The coordinator's answer in words that a client of this version knows.

    A producer writes to a partition and looks for no coordinator there: it is told to come back. Only one of version 2
    expects to hear that the transaction before has not ended yet.
    """
    if operation is PRODUCE:
        is_busy = error is ErrorCode.CONCURRENT_TRANSACTIONS and api_version < PRODUCE.adds_since
        if is_busy or error in _COME_BACK:
            return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < operation.abortable_since:
        return ErrorCode.INVALID_TXN_STATE
    return error


class VerificationGuards:
    """Batches that wait for their coordinator's word, by partition and producer."""

    def __init__(self) -> None:
        self._guards: dict[tuple[TopicPartition, int], int] = {}
        self._last_guard = 0

    def take(self, partition: TopicPartition, producer_id: int) -> int:
        """The guard of this producer here; batches that wait together share it."""
        key = (partition, producer_id)
        if key not in self._guards:
            self._last_guard += 1
            self._guards[key] = self._last_guard
        return self._guards[key]

    def is_held(self, partition: TopicPartition, producer_id: int, guard: int) -> bool:
        return self._guards.get((partition, producer_id)) == guard

    def drop(self, partition: TopicPartition, producer_id: int, guard: int) -> None:
        """The batch is in the log (the open transaction speaks for the next one), or it was refused."""
        if self.is_held(partition, producer_id, guard):
            del self._guards[(partition, producer_id)]

    def on_marker(self, partition: TopicPartition, producer_id: int) -> None:
        """A transaction of this producer ended here: who was verified for it comes too late."""
        self._guards.pop((partition, producer_id), None)
