"""The transaction coordinator of one partition of `__transaction_state`: a core without I/O.

The states of a transactional id and the changes between them are the table in `state.py`; who may cause which is in
`rules.py`. This module drives them: it takes requests, timers and reports, and answers with records, replies, timers
and markers to write.

A transaction in two phases:

    client        EndTxn(commit)
    shard         record PrepareCommit                  from here on it *is* committed, whatever crashes
    runtime       appends it; when it is committed, answers the client and carries out `SendMarkers`
    runtime       on_markers_written(...)               which partitions have their marker now
    shard         record CompleteCommit                 when all have it: the producer may begin again

    outcome = shard.end(token, now_ms, "orders", ProducerIdentity(7, 0), commit=True, client_version=2)
    outcome.records, outcome.markers, outcome.replies   # one record, one SendMarkers, one reply

Rules for the runtime: `SendMarkers` is carried out only after the records of the same outcome are committed; if they
are not, it is dropped. Each is reported exactly once, with those partitions that are settled (written, or deleted);
the others are asked for again after `RETRY_MS`. So two markers for one partition are never under way together, which
matters to version 1 of the protocol: there a late marker could end the next transaction. For the same reason a report
counts only for the transaction, and for the life of the coordinator, that asked for it.

After a restart, `on_loaded` asks for the markers of everything that was prepared. Timers are kept by key, and a timer
that is no longer of interest does nothing; what a failed append leaves undone is tried again by a timer.

Limits: markers are asked for all partitions of a transaction at once; the list of transactions is made in one go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple, cast

from tidemill.coordination.core import CoordinatorRecord, Outcome, Reply, SetTimer, Token
from tidemill.coordination.records.transaction_records import TransactionLogKey, TransactionLogValue
from tidemill.coordination.transaction.producer_ids import ProducerIds
from tidemill.coordination.transaction.rules import (
    Claim,
    Ending,
    check_adding,
    check_member,
    claim,
    ending,
    epoch_before,
)
from tidemill.coordination.transaction.state import (
    AT_REST,
    EPOCH_BUMP_SINCE,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMEOUT,
    PREPARED,
    ProducerIdentity,
    State,
    TransactionMetadata,
    from_record,
    is_exhausted,
    to_record,
    tombstone,
)
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import NO_PRODUCER_ID, TopicPartition

RETRY_MS = 500
"""Until something that failed is tried again."""
EXPIRED_AT_ONCE = 500
"""Tombstones in one batch."""
EXPIRE = ("expire",)


class TransactionConfig(NamedTuple):
    transaction_version: int = 2
    """The finalised level of the feature `transaction.version`."""
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    expiration_interval_ms: int = 3_600_000
    is_two_phase_commit_enabled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the end of this transaction to these partitions, then report to `on_markers_written`."""

    transactional_id: str
    producer_id: int
    epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


@dataclasses.dataclass(slots=True)
class TransactionOutcome(Outcome):
    markers: list[SendMarkers] = dataclasses.field(default_factory=list)
    """To be carried out once the records are committed, never before."""


class ProducerResult(NamedTuple):
    """The answer to InitProducerId and EndTxn."""

    error: ErrorCode
    identity: ProducerIdentity = NO_PRODUCER


class ListFilter(NamedTuple):
    """Which transactions to list; an empty collection stands for all."""

    states: Collection[State] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1


class TransactionShard:
    """All transactional ids of one partition."""

    def __init__(self, config: TransactionConfig, coordinator_epoch: int, producer_ids: ProducerIds) -> None:
        self._config = config
        self._coordinator_epoch = coordinator_epoch
        self._producer_ids = producer_ids
        self._transactions: dict[str, TransactionMetadata] = {}
        """Durable: changed by `replay` alone."""
        self._unwritten: dict[str, set[TopicPartition]] = {}
        """Of prepared transactions: the partitions that have no marker, as far as this life knows."""
        self._last_epochs: dict[str, tuple[ProducerIdentity, int]] = {}
        """A producer that went on after an error: its new identity and the epoch before; good for a repeated
        request, and forgotten by a restart, as in Kafka."""

    # -- the records ----------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        transactional_id = cast(TransactionLogKey, record.key).transactional_id
        self._unwritten.pop(transactional_id, None)
        if record.value is None:
            self._transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
            return
        metadata = from_record(cast(TransactionLogKey, record.key), cast(TransactionLogValue, record.value))
        self._transactions[transactional_id] = metadata
        if metadata.state in PREPARED:
            self._unwritten[transactional_id] = set(metadata.partitions)

    def on_loaded(self, now_ms: int) -> TransactionOutcome:
        outcome = TransactionOutcome()
        for metadata in self._transactions.values():
            if metadata.state in PREPARED:
                self._ask_for_markers(outcome, metadata, now_ms)
            elif metadata.state is State.ONGOING:
                self._set_timeout(outcome, metadata)
        outcome.timers.append(SetTimer(EXPIRE, now_ms + self._config.expiration_interval_ms))
        return outcome

    def _write(self, outcome: TransactionOutcome, metadata: TransactionMetadata) -> None:
        outcome.records.append(to_record(metadata, self._config.transaction_version))

    # -- InitProducerId -------------------------------------------------------------------------------

    def init_producer_id(
        self,
        token: Token,
        now_ms: int,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None = None,
    ) -> TransactionOutcome:
        """A producer begins, or goes on after an error (then it names who it was). Replies a ProducerResult."""
        if not transactional_id:
            return _refused(token, ErrorCode.INVALID_REQUEST)
        if not self._is_valid_timeout(timeout_ms):
            return _refused(token, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self._transactions.get(transactional_id)
        if known is None:
            new_id = self._producer_ids.take()
            if new_id is None:
                return _refused(token, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            known = TransactionMetadata.fresh(transactional_id, new_id, timeout_ms, now_ms)
        decision = claim(known, expected, self._last_epoch(known))
        if isinstance(decision, ErrorCode):
            return _refused(token, decision)
        if decision is Claim.ABORT_FIRST:
            outcome = self._abort_and_fence(known, now_ms)
            error = ErrorCode.CONCURRENT_TRANSACTIONS if outcome.records else _NO_IDS
            outcome.replies.append(Reply(token, ProducerResult(error)))
            return outcome
        return self._give_identity(token, now_ms, known, decision, timeout_ms, expected)

    def _give_identity(
        self,
        token: Token,
        now_ms: int,
        known: TransactionMetadata,
        decision: Claim,
        timeout_ms: int,
        expected: ProducerIdentity | None,
    ) -> TransactionOutcome:
        identity = known.identity
        last_epoch = known.producer_epoch if expected is not None else NO_EPOCH
        if decision is Claim.NEXT_EPOCH:
            identity = ProducerIdentity(known.producer_id, known.producer_epoch + 1)
        elif decision is Claim.NEW_PRODUCER_ID:
            new_id = self._producer_ids.take()
            if new_id is None:
                return _refused(token, _NO_IDS)
            identity = ProducerIdentity(new_id, 0)
        else:
            last_epoch = self._last_epoch(known)
        self._last_epochs[known.transactional_id] = (identity, last_epoch)
        outcome = TransactionOutcome(replies=[Reply(token, ProducerResult(ErrorCode.NONE, identity))])
        self._write(outcome, known.with_identity(identity, timeout_ms, now_ms))
        return outcome

    def _last_epoch(self, metadata: TransactionMetadata) -> int:
        """The epoch that the current one was made from for the same producer, or -1."""
        identity, last_epoch = self._last_epochs.get(metadata.transactional_id, (NO_PRODUCER, NO_EPOCH))
        if metadata.state is State.EMPTY:
            return last_epoch if identity == metadata.identity else NO_EPOCH
        return epoch_before(metadata)

    def _is_valid_timeout(self, timeout_ms: int) -> bool:
        if timeout_ms == NO_TIMEOUT and self._config.is_two_phase_commit_enabled:
            return True
        return 0 < timeout_ms <= self._config.max_timeout_ms

    def _abort_and_fence(self, metadata: TransactionMetadata, now_ms: int) -> TransactionOutcome:
        """End an open transaction without its producer, which is fenced by that. Empty if ids ran out."""
        version = self._config.transaction_version
        if version < EPOCH_BUMP_SINCE:
            return self._decided(metadata.fenced(now_ms), now_ms)
        next_id = self._next_producer_id(metadata)
        if next_id is None:
            return TransactionOutcome()
        return self._decided(metadata.ended(False, version, next_id, now_ms), now_ms)

    def _next_producer_id(self, metadata: TransactionMetadata) -> int | None:
        """-1 if the epoch can still be raised; None if an id is needed and there is none."""
        return self._producer_ids.take() if is_exhausted(metadata.producer_epoch) else NO_PRODUCER_ID

    # -- partitions of a transaction ------------------------------------------------------------------

    def add_partitions(
        self,
        token: Token,
        now_ms: int,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        client_version: int = 0,
    ) -> TransactionOutcome:
        """The transaction begins, or grows. Replies an ErrorCode."""
        if not transactional_id:
            return _answered(token, ErrorCode.INVALID_REQUEST)
        metadata = self._transactions.get(transactional_id)
        error = check_adding(metadata, identity)
        if metadata is None or error:
            return _answered(token, error)
        if metadata.state is State.ONGOING and metadata.partitions.issuperset(partitions):
            return _answered(token, ErrorCode.NONE)
        outcome = _answered(token, ErrorCode.NONE)
        ongoing = metadata.with_partitions(partitions, client_version, now_ms)
        self._write(outcome, ongoing)
        if metadata.state is not State.ONGOING:
            self._set_timeout(outcome, ongoing)
        return outcome

    def verify_partitions(
        self,
        token: Token,
        now_ms: int,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> TransactionOutcome:
        """A leader asks whether these are part of the transaction. Replies {partition: ErrorCode}."""
        metadata = self._transactions.get(transactional_id)
        error = check_member(metadata, identity) if transactional_id else ErrorCode.INVALID_REQUEST
        if metadata is None or error:
            return _answered(token, dict.fromkeys(partitions, error))
        added = metadata.partitions
        errors = {each: ErrorCode.NONE if each in added else _NOT_ADDED for each in partitions}
        return _answered(token, errors)

    # -- EndTxn ---------------------------------------------------------------------------------------

    def end(
        self,
        token: Token,
        now_ms: int,
        transactional_id: str,
        identity: ProducerIdentity,
        commit: bool,
        client_version: int = 0,
    ) -> TransactionOutcome:
        """Decide the transaction. Replies a ProducerResult; its identity is of interest to version 2."""
        if not transactional_id:
            return _refused(token, ErrorCode.INVALID_REQUEST)
        metadata = self._transactions.get(transactional_id)
        decision = ending(metadata, identity, commit, client_version)
        if metadata is None or isinstance(decision, ErrorCode):
            assert isinstance(decision, ErrorCode)
            return _refused(token, decision)
        if decision is Ending.DONE:
            return _answered(token, ProducerResult(ErrorCode.NONE, metadata.identity))
        next_id = self._next_producer_id(metadata) if client_version >= EPOCH_BUMP_SINCE else NO_PRODUCER_ID
        if next_id is None:
            return _refused(token, _NO_IDS)
        prepared = metadata.ended(commit, client_version, next_id, now_ms)
        outcome = self._decided(prepared, now_ms)
        outcome.replies.append(Reply(token, ProducerResult(ErrorCode.NONE, prepared.identity_when_complete)))
        return outcome

    def _decided(self, prepared: TransactionMetadata, now_ms: int) -> TransactionOutcome:
        outcome = TransactionOutcome()
        self._write(outcome, prepared)
        if prepared.partitions:
            outcome.markers.append(self._markers(prepared, prepared.partitions))
        else:
            self._write(outcome, prepared.completed(now_ms))
        return outcome

    # -- markers --------------------------------------------------------------------------------------

    def on_markers_written(
        self, sent: SendMarkers, settled: Iterable[TopicPartition], now_ms: int
    ) -> TransactionOutcome:
        """The report about one SendMarkers: where the marker is committed, or the partition is gone."""
        transactional_id = sent.transactional_id
        metadata = self._transactions.get(transactional_id)
        outcome = TransactionOutcome()
        if metadata is None or metadata.state not in PREPARED or not self._is_current(sent, metadata):
            return outcome
        unwritten = self._unwritten[transactional_id]
        unwritten.difference_update(settled)
        if not unwritten:
            self._write(outcome, metadata.completed(now_ms))
        outcome.timers.append(SetTimer(("markers", transactional_id), now_ms + RETRY_MS))
        return outcome

    def _is_current(self, sent: SendMarkers, metadata: TransactionMetadata) -> bool:
        """Not a report about an earlier transaction, nor one that an earlier coordinator waits for."""
        identity = ProducerIdentity(sent.producer_id, sent.epoch)
        return metadata.identity == identity and sent.coordinator_epoch == self._coordinator_epoch

    def _ask_for_markers(
        self, outcome: TransactionOutcome, metadata: TransactionMetadata, now_ms: int
    ) -> None:
        """Go on with a prepared transaction: write what is missing, or complete it."""
        unwritten = self._unwritten[metadata.transactional_id]
        if unwritten:
            outcome.markers.append(self._markers(metadata, unwritten))
            return
        self._write(outcome, metadata.completed(now_ms))
        outcome.timers.append(SetTimer(("markers", metadata.transactional_id), now_ms + RETRY_MS))

    def _markers(self, prepared: TransactionMetadata, partitions: Iterable[TopicPartition]) -> SendMarkers:
        return SendMarkers(
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            epoch=prepared.producer_epoch,
            coordinator_epoch=self._coordinator_epoch,
            commit=prepared.is_commit,
            partitions=tuple(sorted(partitions)),
            transaction_version=prepared.client_version,
        )

    # -- timers ---------------------------------------------------------------------------------------

    def on_timer(self, key: Hashable, now_ms: int) -> TransactionOutcome:
        """("timeout", id): an open transaction is too old; ("markers", id): try again; EXPIRE: unused ids."""
        if key == EXPIRE:
            return self._expire(now_ms)
        kind, transactional_id = cast(tuple[str, str], key)
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            return TransactionOutcome()
        if kind == "markers":
            outcome = TransactionOutcome()
            if metadata.state in PREPARED:
                self._ask_for_markers(outcome, metadata, now_ms)
            return outcome
        return self._maybe_time_out(metadata, now_ms)

    def _maybe_time_out(self, metadata: TransactionMetadata, now_ms: int) -> TransactionOutcome:
        outcome = TransactionOutcome()
        if metadata.state is not State.ONGOING or metadata.timeout_ms == NO_TIMEOUT:
            return outcome
        if now_ms < metadata.start_ms + metadata.timeout_ms:
            self._set_timeout(outcome, metadata)
            return outcome
        outcome = self._abort_and_fence(metadata, now_ms)
        outcome.timers.append(SetTimer(("timeout", metadata.transactional_id), now_ms + RETRY_MS))
        return outcome

    def _set_timeout(self, outcome: TransactionOutcome, metadata: TransactionMetadata) -> None:
        if metadata.timeout_ms != NO_TIMEOUT:
            due_ms = metadata.start_ms + metadata.timeout_ms
            outcome.timers.append(SetTimer(("timeout", metadata.transactional_id), due_ms))

    def _expire(self, now_ms: int) -> TransactionOutcome:
        """Forget transactional ids that nobody has used for a week; some at a time."""
        oldest_ms = now_ms - self._config.id_expiration_ms
        expired = [
            metadata
            for metadata in self._transactions.values()
            if metadata.state in AT_REST and metadata.last_update_ms <= oldest_ms
        ]
        outcome = TransactionOutcome()
        for metadata in expired[:EXPIRED_AT_ONCE]:
            metadata.check_change_to(State.DEAD)
            outcome.records.append(tombstone(metadata.transactional_id))
        is_all = len(expired) <= EXPIRED_AT_ONCE
        wait_ms = self._config.expiration_interval_ms if is_all else RETRY_MS
        outcome.timers.append(SetTimer(EXPIRE, now_ms + wait_ms))
        return outcome

    # -- looking --------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def list(self, wanted: ListFilter, now_ms: int) -> list[TransactionMetadata]:
        return [each for each in self._transactions.values() if _is_wanted(each, wanted, now_ms)]


_NO_IDS = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_NOT_ADDED = ErrorCode.TRANSACTION_ABORTABLE


def _answered(token: Token, response: object) -> TransactionOutcome:
    return TransactionOutcome(replies=[Reply(token, response)])


def _refused(token: Token, error: ErrorCode) -> TransactionOutcome:
    return _answered(token, ProducerResult(error))


def _is_wanted(metadata: TransactionMetadata, wanted: ListFilter, now_ms: int) -> bool:
    if wanted.states and metadata.state not in wanted.states:
        return False
    if wanted.producer_ids and metadata.producer_id not in wanted.producer_ids:
        return False
    return wanted.longer_than_ms < 0 or now_ms - metadata.start_ms > wanted.longer_than_ms
