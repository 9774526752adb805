"""One transactional id: what its coordinator knows of it, and how that may change.

The states, and from which ones each may be entered; any other change is a defect and raises:

    to                   from                                       why
    Empty                Empty, CompleteCommit, CompleteAbort       InitProducerId: a new epoch, nothing open
    Ongoing              Empty, Ongoing, CompleteCommit,            a partition joins the transaction
                         CompleteAbort
    PrepareCommit        Ongoing                                    EndTxn: decided, and durable with its record
    PrepareAbort         Ongoing, PrepareEpochFence                 EndTxn, time-out, or a new producer
                         Empty, CompleteCommit, CompleteAbort       EndTxn (version 2) with nothing written
    CompleteCommit       PrepareCommit                              every partition has its marker
    CompleteAbort        PrepareAbort                               every partition has its marker
    PrepareEpochFence    Ongoing                                    passed through on the way to PrepareAbort
    Dead                 Empty, CompleteCommit, CompleteAbort       unused for too long: a tombstone

PrepareEpochFence and Dead are never written: fencing and aborting are one record, and a dead id has none.

Epochs. A producer is its id and its epoch; who has an older epoch is fenced. In version 2 of the protocol every
end of a transaction raises the epoch, the marker carries the raised one, and so a request that was late for
transaction n cannot be taken for one of n + 1:

    InitProducerId -> (7, 0)   data at epoch 0   EndTxn -> marker at epoch 1, answered (7, 1)   data at epoch 1 ...

The largest epoch that a producer ever sees is 32766, so that there is always one left to fence it with; after it
comes the next producer id at epoch 0, which the Prepare record already names.

    metadata = TransactionMetadata.fresh("orders", producer_id=7, timeout_ms=60_000, now_ms=0)
    ongoing = metadata.with_partitions({TopicPartition("t", 0)}, 2, now_ms=5)
    prepared = ongoing.ended(commit=True, client_version=2, next_producer_id=-1, now_ms=9)
    prepared.completed(12).producer_epoch                       # one more than before
"""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.records.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tidemill.model.ids import NO_PRODUCER_ID, TopicPartition

TRANSACTION_LOG = 0
"""The only record type of `__transaction_state`."""
NO_EPOCH = -1
NO_TIME = -1
LAST_CLIENT_EPOCH = 32_766
"""No producer is given a larger one: one more is kept to fence it."""
FENCING_EPOCH = 32_767
EPOCH_BUMP_SINCE = 2
"""From this transaction version on, each end of a transaction raises the epoch."""
FLEXIBLE_RECORDS_SINCE = 1
NO_TIMEOUT = 0x7FFF_FFFF
"""The time-out of a transaction whose end an outside coordinator decides."""


class State(enum.IntEnum):
    """The numbers are those of the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """As ListTransactions and DescribeTransactions spell it."""
        return self.name.title().replace("_", "")


AT_REST = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

PREVIOUS_STATES: dict[State, frozenset[State]] = {
    State.EMPTY: AT_REST,
    State.ONGOING: AT_REST | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: AT_REST | {State.ONGOING, State.PREPARE_EPOCH_FENCE},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: AT_REST,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}


class IllegalTransition(Exception):
    """A change that the table does not have."""


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


def is_exhausted(epoch: int) -> bool:
    return epoch >= LAST_CLIENT_EPOCH


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One state of one transactional id; every change makes another one, and a record of it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Whom the producer becomes when the transaction is complete, if its epochs are used up."""
    client_version: int = 0
    """The transaction version of the client that made this state."""

    @classmethod
    def fresh(
        cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """A new transactional id, before its first epoch is given out."""
        return cls(transactional_id, producer_id, NO_EPOCH, timeout_ms, State.EMPTY, now_ms)

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_commit(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    # -- changes --------------------------------------------------------------------------------------

    def with_identity(self, identity: ProducerIdentity, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """InitProducerId gave out this id and epoch; nothing is open."""
        return self._changed(
            State.EMPTY, now_ms, producer_id=identity.producer_id, producer_epoch=identity.epoch,
            timeout_ms=timeout_ms, partitions=frozenset(), start_ms=NO_TIME,
        )  # fmt: skip

    def with_partitions(
        self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int
    ) -> TransactionMetadata:
        return self._changed(
            State.ONGOING, now_ms, partitions=self.partitions | frozenset(partitions),
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms, client_version=client_version,
        )  # fmt: skip

    def ended(
        self, commit: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """The decision. In version 2 it raises the epoch, which the markers then carry."""
        bump = 1 if client_version >= EPOCH_BUMP_SINCE else 0
        return self._changed(
            State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, now_ms,
            producer_epoch=self.producer_epoch + bump, next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms, client_version=client_version,
        )  # fmt: skip

    def fenced(self, now_ms: int) -> TransactionMetadata:
        """The broker aborts what a producer of version 1 left open, and locks that producer out."""
        fencing = self._changed(
            State.PREPARE_EPOCH_FENCE, now_ms, producer_epoch=min(self.producer_epoch + 1, FENCING_EPOCH)
        )
        return fencing._changed(State.PREPARE_ABORT, now_ms, start_ms=self.start_ms, client_version=0)

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Every partition has its marker."""
        identity = self.identity_when_complete
        return self._changed(
            State.COMPLETE_COMMIT if self.is_commit else State.COMPLETE_ABORT, now_ms,
            producer_id=identity.producer_id, producer_epoch=identity.epoch,
            next_producer_id=NO_PRODUCER_ID, partitions=frozenset(),
        )  # fmt: skip

    @property
    def identity_when_complete(self) -> ProducerIdentity:
        """Who the producer is after this transaction: what EndTxn answers."""
        if self.client_version >= EPOCH_BUMP_SINCE and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.identity

    def check_change_to(self, state: State) -> None:
        if self.state not in PREVIOUS_STATES[state]:
            raise IllegalTransition(f"{self.transactional_id}: {self.state.text} to {state.text}")

    def _changed(self, state: State, now_ms: int, **changes: Any) -> TransactionMetadata:
        self.check_change_to(state)
        changed = dataclasses.replace(
            self, state=state, last_update_ms=now_ms, previous_producer_id=self.producer_id, **changes
        )
        assert 0 <= changed.producer_epoch <= FENCING_EPOCH and changed.producer_id >= 0
        return changed


# -- records ------------------------------------------------------------------------------------------


def to_record(metadata: TransactionMetadata, transaction_version: int) -> CoordinatorRecord:
    """The whole state as one record, in the schema that this finalised transaction version allows."""
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=None if metadata.state is State.EMPTY else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    value_version = 1 if transaction_version >= FLEXIBLE_RECORDS_SINCE else 0
    return CoordinatorRecord(TRANSACTION_LOG, _key(metadata.transactional_id), value, value_version)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(TRANSACTION_LOG, _key(transactional_id), None)


def from_record(key: TransactionLogKey, value: TransactionLogValue) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=key.transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=State(value.transaction_status),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _key(transactional_id: str) -> TransactionLogKey:
    return TransactionLogKey(transactional_id=transactional_id)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
