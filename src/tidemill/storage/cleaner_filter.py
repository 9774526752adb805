"""Which records of a batch survive compaction, and what becomes of the batch.

Three memories take part:

- `OffsetMap`: the newest offset of each key in the dirty section. A record is superseded if its key has a
  newer one there.
- `Transactions`: which transactions are open while the log is read from the front. Data of an aborted one
  is dropped; a marker may go only when no data of its transaction is left.
- the last record of each active producer: its batch stays, emptied if need be, because a restart reads
  from it the sequence number that tells a duplicate from new data.

Tombstones and markers are removed in two steps (KIP-534), so that a reader who began before has time to
see them: the pass that finds nothing older behind them writes `now + delete.retention.ms` into the batch
as its delete horizon, and the first pass after that time drops them.

What stays of a batch keeps its base offset and last offset, so the range of offsets that it covers
survives:

    before  offsets 10..14   a=1 b=2 a=3 c=4 b=5         the map says a:12, b:40, c:13
    after   offsets 10..14           a=3 c=4

Records without a key cannot be compacted; they are dropped, as Kafka does (it refuses to take them in).
"""

from __future__ import annotations

import heapq
from hashlib import blake2b

from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.storage.cleaner_job import CleanerJob, LastRecord
from tidemill.storage.cleaner_records import RecordSpan, join_records, join_records_shifted, scan_records
from tidemill.storage.producer_state import read_end_marker
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import COMPRESSION_MASK, DELETE_HORIZON_MASK, HEADER_SIZE, BatchHeader, encode_batch
from tidemill.wire.compression import NONE, compress, decompress

Batch = memoryview | bytes | bytearray

ENTRY_BYTES = 208
"""What a key costs in memory: 16 bytes as an object (49), its offset (32), its slot in a dict that is
between a third and two thirds full (up to 125)."""
MAX_DECOMPRESSED_BYTES = 512 << 20
_DIGEST_BYTES = 16
NO_TIMESTAMP = -1


class OffsetMap:
    """Key -> newest offset, for as many keys as fit into the memory given."""

    def __init__(self, max_bytes: int) -> None:
        self.capacity = max(1, max_bytes // ENTRY_BYTES)
        self.latest_offset = -1
        """Everything up to here has been put in."""
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_short(key)] = offset
        self.latest_offset = offset

    def is_superseded(self, key: bytes, offset: int) -> bool:
        return offset < self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    """The key itself if it is shorter than a digest, else its digest: the two cannot be mistaken."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Transactions:
    """What is known of transactions at the batch being read, from the front of the log on."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._ahead = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._ahead)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._seen_aborted_data: set[int] = set()
        self._seen_committed_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """For a data batch: whether it belongs to a transaction that was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        aborting = self._aborting.get(header.producer_id)
        if aborting is not None and header.base_offset < aborting.last_offset:
            self._seen_aborted_data.add(header.producer_id)
            return True
        self._seen_committed_data.add(header.producer_id)
        return False

    def end(self, header: BatchHeader, batch: Batch) -> tuple[bool, AbortedTransaction | None]:
        """For a control batch: whether no data of its transaction was seen, and the index entry it needs."""
        self._advance(header.last_offset)
        marker = read_end_marker(batch, header) if header.record_count else None
        if marker is None:
            return header.record_count == 0, None
        producer_id = header.producer_id
        if not marker.is_abort:
            seen = producer_id in self._seen_committed_data
            self._seen_committed_data.discard(producer_id)
            return not seen, None
        entry = self._aborting.pop(producer_id, None)
        seen = producer_id in self._seen_aborted_data
        self._seen_aborted_data.discard(producer_id)
        return not seen, entry if seen else None

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[0][0] <= offset:
            entry = heapq.heappop(self._ahead)[1]
            self._aborting[entry.producer_id] = entry


def payload_of(header: BatchHeader, batch: Batch) -> Batch:
    """The records of a batch, decompressed."""
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    return (
        payload
        if header.compression == NONE
        else decompress(header.compression, payload, MAX_DECOMPRESSED_BYTES)
    )


def spans_of(header: BatchHeader, payload: Batch) -> list[RecordSpan]:
    try:
        return list(scan_records(payload, header.record_count))
    except MalformedMessage as error:
        raise CorruptLog(f"the batch at offset {header.base_offset} cannot be read: {error}") from error


class BatchFilter:
    """Decides batch by batch, from the front of the log on."""

    def __init__(self, job: CleanerJob, offset_map: OffsetMap) -> None:
        self._job = job
        self._map = offset_map
        self._transactions = Transactions(job.aborted)
        self.records_read = 0
        self.records_kept = 0
        self.new_abort: AbortedTransaction | None = None
        """Set by `keep` when the batch is the marker of an abort that readers must still be told of."""

    def keep(self, header: BatchHeader, batch: Batch) -> Batch | None:
        """What stays of this batch: all of it, a smaller or an empty one, or nothing."""
        self.new_abort = None
        self.records_read += header.record_count
        if header.is_control:
            return self._keep_marker(header, batch)
        if self._transactions.is_aborted(header):
            return self._empty_if_needed(header)
        return self._keep_data(header, batch)

    def _keep_marker(self, header: BatchHeader, batch: Batch) -> Batch | None:
        is_removable, self.new_abort = self._transactions.end(header, batch)
        horizon = header.delete_horizon_ms
        if header.record_count == 0 or (is_removable and horizon is not None and horizon <= self._job.now_ms):
            return self._empty_if_needed(header)
        self.records_kept += header.record_count
        if is_removable and horizon is None:
            return self._rebuilt(
                header, payload := payload_of(header, batch), spans_of(header, payload), True
            )
        return batch

    def _keep_data(self, header: BatchHeader, batch: Batch) -> Batch | None:
        if header.record_count == 0:
            return self._empty_if_needed(header)
        if header.base_offset > self._map.latest_offset:
            self.records_kept += header.record_count
            return batch
        payload = payload_of(header, batch)
        spans = spans_of(header, payload)
        kept = [span for span in spans if self._survives(header, span)]
        self.records_kept += len(kept)
        if not kept:
            return self._empty_if_needed(header)
        needs_horizon = header.delete_horizon_ms is None and any(span.is_tombstone for span in kept)
        if len(kept) == len(spans) and not needs_horizon:
            return batch
        return self._rebuilt(header, payload, kept, needs_horizon)

    def _survives(self, header: BatchHeader, span: RecordSpan) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset > self._map.latest_offset:
            return True
        if span.key is None or self._map.is_superseded(span.key, offset):
            return False
        horizon = header.delete_horizon_ms
        return not span.is_tombstone or horizon is None or self._job.now_ms < horizon

    def _rebuilt(
        self, header: BatchHeader, payload: Batch, kept: list[RecordSpan], needs_horizon: bool
    ) -> bytearray:
        """A batch of the same offsets with these records, and a delete horizon if it needs one."""
        if not header.is_log_append_time:
            latest = header.base_timestamp + max(span.timestamp_delta for span in kept)
            header = header._replace(max_timestamp=latest)
        if needs_horizon:
            horizon = self._job.now_ms + self._job.delete_retention_ms
            records = join_records_shifted(payload, kept, horizon - header.base_timestamp)
            header = header._replace(
                base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_MASK
            )
        else:
            records = join_records(payload, kept)
        header = header._replace(record_count=len(kept))
        return encode_batch(
            header, records if header.compression == NONE else compress(header.compression, records)
        )

    def _empty_if_needed(self, header: BatchHeader) -> bytearray | None:
        """An empty batch where a producer's last sequence or the last offset of the pass would be lost."""
        is_last_of_pass = header.last_offset + 1 == self._job.first_uncleanable_offset
        if not is_last_of_pass and not is_last_of_producer(header, self._job.last_records):
            return None
        return encode_batch(
            header._replace(
                attributes=header.attributes & ~DELETE_HORIZON_MASK & ~COMPRESSION_MASK,
                base_timestamp=NO_TIMESTAMP,
                record_count=0,
            ),
            b"",
        )


def is_last_of_producer(header: BatchHeader, last_records: dict[int, LastRecord]) -> bool:
    last = last_records.get(header.producer_id) if header.producer_id >= 0 else None
    if last is None:
        return False
    if last.last_data_offset is not None:
        return header.last_offset == last.last_data_offset
    return header.is_control and header.producer_epoch == last.producer_epoch
