"""What a partition remembers of its producers: to refuse, to recognise, and to know what is undecided.

For each producer id: its epoch, its last five batches (sequence numbers and offsets), the transaction it has
open. From that follow

- *duplicate*: a batch with the sequence numbers of one of the last five is answered with the offsets it got
  the first time, not appended again;
- *out of order*: the first sequence number must follow the last one; a new epoch begins at zero; a producer
  that nobody remembers may begin anywhere (its past may have been deleted), unless it has a new epoch for each
  transaction (version 2): then what comes before this batch is still under way (`check_begins_at_zero`);
- *fenced*: an epoch below the known one is refused;
- *last stable offset*: the first offset of the oldest transaction that is open, or that ended above the high
  watermark.

    state = ProducerState()
    state.check(header)                     # None: append it.  (100, 104): it is a duplicate with these offsets
    state.record(header, first_offset)      # after the append

A check never changes anything; `record` and `complete` never refuse. Recovery calls only the latter two.

Limits: sequence numbers wrap at 2^31 - 1; a producer idle for `producer.id.expiration.ms` is forgotten, unless
its transaction is open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    iterate_records,
)

REMEMBERED_BATCHES = 5
NO_OFFSET = -1
NO_SEQUENCE = -1
NO_EPOCH = -1
MAX_SEQUENCE = 0x7FFF_FFFF
DEFAULT_EXPIRATION_MS = 24 * 3600 * 1000
TRANSACTION_VERSION_2 = 2
_ABORT, _COMMIT = 0, 1


class RememberedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class EndMarker(NamedTuple):
    """The control record that ends a transaction."""

    is_abort: bool
    coordinator_epoch: int


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerEntry:
    """One producer, as this partition knows it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int = NO_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.transaction_first_offset = NO_OFFSET
        self.batches: list[RememberedBatch] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Of the last data batch, or -1."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        return self.transaction_first_offset < 0 and now_ms - self.last_timestamp >= expiration_ms


def read_end_marker(batch: Buffer, header: BatchHeader) -> EndMarker | None:
    """The marker of a control batch, or None if it is another kind of control record (or cleaned away)."""
    if not header.record_count:
        return None
    record = next(iterate_records(header, memoryview(batch)[HEADER_SIZE : header.size]))
    try:
        kind = struct.unpack_from(">hh", record.key or b"")[1]
        if kind not in (_ABORT, _COMMIT):
            return None
        return EndMarker(kind == _ABORT, struct.unpack_from(">hi", record.value or b"")[1])
    except struct.error as error:
        raise MalformedMessage(f"control batch at offset {header.base_offset} holds no marker") from error


def _fenced(entry: ProducerEntry, epoch: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {entry.producer_id} has epoch {entry.epoch}, the batch {epoch}",
    )


class ProducerState:
    """All producers of one partition, and its open transactions."""

    __slots__ = ("_ongoing", "_unreplicated", "producers")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.producers: dict[int, ProducerEntry] = {entry.producer_id: entry for entry in entries}
        open_offsets = sorted(
            (entry.transaction_first_offset, entry.producer_id)
            for entry in self.producers.values()
            if entry.transaction_first_offset >= 0
        )
        self._ongoing: dict[int, int] = dict(open_offsets)
        """First offset -> producer id; in order of offsets, as new ones are always the largest."""
        self._unreplicated: list[CompletedTransaction] = []
        """Ended, but the marker may not be at or below the high watermark yet."""

    # -- checks (the leader, before it writes) --------------------------------------------------------

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Raise if this data batch must be refused; return the remembered one if it is a duplicate."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == entry.epoch:
            if sequence >= 0:
                batches = entry.batches
                if batches and sequence != (batches[-1].last_sequence + 1) & MAX_SEQUENCE:
                    return self._duplicate(entry, header)
                if not batches and sequence != 0:
                    raise self._out_of_order(entry, header)
        elif epoch < entry.epoch:
            raise _fenced(entry, epoch)
        elif sequence > 0 and entry.epoch != NO_EPOCH:
            raise self._out_of_order(entry, header)
        if entry.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_MASK:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {entry.producer_id} has a transaction open on this partition",
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise if a later epoch of this producer has been here."""
        entry = self.producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _fenced(entry, epoch)

    def check_begins_at_zero(self, header: BatchHeader) -> None:
        """Raise if nobody knows this producer here, but this is not the first batch that it sent here."""
        if header.base_sequence != 0 and header.producer_id not in self.producers:
            raise self._out_of_order(ProducerEntry(header.producer_id), header)

    def _duplicate(self, entry: ProducerEntry, header: BatchHeader) -> RememberedBatch:
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch
        raise self._out_of_order(entry, header)

    def _out_of_order(self, entry: ProducerEntry, header: BatchHeader) -> ApiError:
        return ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} epoch {header.producer_epoch}: sequence {header.base_sequence} "
            f"after {entry.last_sequence} of epoch {entry.epoch}",
        )

    def check_marker(self, header: BatchHeader, marker: EndMarker, transaction_version: int = 0) -> None:
        """Raise if this end marker comes from a producer epoch or a coordinator that was replaced."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return
        epoch = header.producer_epoch
        is_retry = epoch == entry.epoch and entry.transaction_first_offset < 0
        must_grow = transaction_version >= TRANSACTION_VERSION_2 and not is_retry
        if epoch < entry.epoch or (must_grow and epoch == entry.epoch):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {entry.producer_id} has epoch {entry.epoch}, the marker {epoch}",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
            )

    def open_transaction_epoch(self, producer_id: int) -> int | None:
        """The epoch of the transaction that this producer has open on the partition, if it has one."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.transaction_first_offset < 0:
            return None
        return entry.epoch

    # -- records (leader, follower and recovery, once the batch is written) ---------------------------

    def record(self, header: BatchHeader, first_offset: int, max_timestamp: int) -> None:
        """A data batch of this producer is in the log at this offset."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id, epoch)
        batches = entry.batches
        if epoch != entry.epoch:
            entry.epoch = epoch
            batches.clear()
        elif len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        first_sequence, delta = header.base_sequence, header.last_offset_delta
        last_sequence = (first_sequence + delta) & MAX_SEQUENCE if first_sequence >= 0 else NO_SEQUENCE
        batches.append(
            RememberedBatch(first_sequence, last_sequence, first_offset, first_offset + delta, max_timestamp)
        )
        entry.last_timestamp = max_timestamp
        if header.attributes & TRANSACTIONAL_MASK and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = first_offset
            self._ongoing[first_offset] = producer_id

    def completion(self, header: BatchHeader, marker: EndMarker, offset: int) -> CompletedTransaction | None:
        """The transaction that this marker would end, if one is open; nothing changes yet."""
        entry = self.producers.get(header.producer_id)
        if entry is None or entry.transaction_first_offset < 0:
            return None
        return CompletedTransaction(
            header.producer_id, entry.transaction_first_offset, offset, marker.is_abort
        )

    def aborted_entry(self, completed: CompletedTransaction) -> AbortedTransaction:
        """What the transaction index notes, with the last stable offset right after the abort."""
        others = (first for first, producer in self._ongoing.items() if producer != completed.producer_id)
        stable = next(others, completed.last_offset + 1)
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def record_marker(
        self, header: BatchHeader, marker: EndMarker, completed: CompletedTransaction | None, timestamp: int
    ) -> None:
        """An end marker is in the log."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_id)
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        entry.transaction_first_offset = NO_OFFSET
        if completed is not None:
            del self._ongoing[completed.first_offset]
            self._unreplicated.append(completed)

    # -- what is undecided ----------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset whose fate is open, or decided by a marker above the high watermark."""
        if not self._ongoing and not self._unreplicated:
            return None
        offsets = [transaction.first_offset for transaction in self._unreplicated]
        return min(offsets + list(self._ongoing)[:1])

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest transaction begins that has no marker yet."""
        return next(iter(self._ongoing), None)

    def forget_completed_below(self, offset: int) -> None:
        """The high watermark (or the log start) passed here: markers below are settled."""
        if self._unreplicated:
            self._unreplicated = [done for done in self._unreplicated if done.last_offset >= offset]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were idle for too long; how many."""
        expired = [
            entry.producer_id for entry in self.producers.values() if entry.is_expired(now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def settle(self, batch: Buffer, header: BatchHeader) -> AbortedTransaction | None:
        """Take over a batch that is already in a log (replication, recovery): nothing is refused.

        Returns the entry for the transaction index if it is the marker of an abort.
        """
        if header.producer_id < 0:
            return None
        if not header.attributes & CONTROL_MASK:
            self.record(header, header.base_offset, header.max_timestamp)
            return None
        marker = read_end_marker(batch, header)
        if marker is None:
            return None
        completed = self.completion(header, marker, header.base_offset)
        aborted = self.aborted_entry(completed) if completed is not None and completed.is_aborted else None
        self.record_marker(header, marker, completed, header.max_timestamp)
        return aborted
