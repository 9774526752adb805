"""The decision record: the one fact that says whether a batch was published.

It is a record of the compacted topic `tidemill.spark.commits`, written in the transaction that publishes the batch, so
rows and decision become visible together or not at all.

    key     <query id>/<batch id>
    value   {"version": 1, "query": "5d6c…", "batch": 17, "records": 1200, "tasks": 4, "timestamp_ms": 1763430000000,
             "topics": {"orders": {"0": 400, "1": 800}}}
            and for an unnamed write in foreachBatch: "attempt": "local-1763430000000/41", "write": "run-0d2f…"

Batches of a query are decided in order, so the newest decision answers for all before it. Those that are
`KEPT_DECISIONS` or more batches older are removed by tombstones in the same transaction: the one that is exactly so
much older, and, because that one may not exist (a batch without rows has no decision), all that reading came across.

Reading does not use read_committed: its end, the last stable offset, is held back by *any* open transaction in the
partition, also by one of another query whose driver died, and a decision behind it would not be seen. Instead the
markers are read: a record counts when the commit marker of its producer follows. The reader has begun a transaction of
this query before, so each of the query's records has its marker.

    standing_decisions(cluster, "5d6c…", patience_ms=120_000)      # {16: value, 17: value}; empty when it has none

A query's last decision is usually near the end of the partition: the last `TAIL_OFFSETS` offsets are read first, the
whole partition only when they hold none. So the newest is always among what is found, older ones perhaps.

A write in `foreachBatch` that has no name of its own is known by its query, batch and topic. Its decision also says who
came by last (`Writer`: the attempt at the batch, and the write), because such a name can be used twice by mistake:

    write 1 to orders              undecided                published, stamped (attempt 1, write 1)
    write 2 to orders              stamped by attempt 1     another write of this attempt: refused
    after a restart: write 1       stamped by attempt 1     a repetition: skipped, stamped (attempt 2, write 3)
    after a restart: write 2       stamped by attempt 2     refused again, not taken for a repetition of write 1

A marker that compaction has emptied says no longer how its transaction ended; but compaction removes what was aborted,
so records that are still there before it were committed.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.spark.client.cluster import (
    EARLIEST,
    LATEST,
    BrokerError,
    Cluster,
    TopicPartition,
    only_partition,
)
from tidemill.spark.sink.batching import Batch
from tidemill.spark.sink.topics import COMMITS
from tidemill.spark.sink.transaction import patiently
from tidemill.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    iterate_headers,
    iterate_records,
)
from tidemill.wire.compression import decompress
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

VERSION = 1
KEPT_DECISIONS = 10
TAIL_OFFSETS = 1_000
_FETCH_BYTES = 4 << 20
_LARGEST_BATCH_BYTES = 64 << 20
_CONTROL_KEY = struct.Struct(">hh")
_COMMIT = 1


class UnmarkedDecision(TidemillError):
    """The transaction of a decision has not ended."""


class Writer(NamedTuple):
    """Who writes under a name that is not the write's own: an attempt at a batch, and one write of it."""

    attempt: str
    write: str


class Decision(NamedTuple):
    query: str
    batch: int
    tasks: int
    counts: Mapping[TopicPartition, int]
    writer: Writer | None = None

    @property
    def key(self) -> bytes:
        return decision_key(self.query, self.batch)

    def value(self, now_ms: int) -> bytes:
        topics: dict[str, dict[str, int]] = {}
        for where, count in sorted(self.counts.items()):
            topics.setdefault(where.topic, {})[str(where.partition)] = count
        fields = {
            "version": VERSION, "query": self.query, "batch": self.batch, "records": sum(self.counts.values()),
            "tasks": self.tasks, "timestamp_ms": now_ms, "topics": topics,
        }  # fmt: skip
        return _json(fields | (self.writer._asdict() if self.writer is not None else {}))


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def decision_key(query: str, batch: int) -> bytes:
    return f"{query}/{batch}".encode()


def decision_batch(decision: Decision, standing: Iterable[int] = ()) -> Batch:
    """The decision as it is published, with tombstones of those it makes superfluous."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(0, now_ms, decision.key, decision.value(now_ms))]
    for place, batch in enumerate(superfluous(decision.batch, standing), 1):
        records.append(Record(place, now_ms, decision_key(decision.query, batch), None))
    return Batch(COMMITS, len(records), build_batch(records, leader_epoch=-1, is_final=False))


def superfluous(batch: int, standing: Iterable[int]) -> list[int]:
    """The batches whose decisions may go once this one is decided."""
    newest = batch - KEPT_DECISIONS
    return sorted({newest, *(each for each in standing if each < newest)}) if newest >= 0 else []


def tombstone_batch(query: str, batch: int) -> Batch:
    return _one_record(query, batch, None)


def stamped_batch(query: str, batch: int, value: bytes, writer: Writer) -> Batch:
    """A decision that stands, as this writer leaves it."""
    return _one_record(query, batch, _json(json.loads(value) | writer._asdict()))


def _one_record(query: str, batch: int, value: bytes | None) -> Batch:
    record = Record(0, time.time_ns() // 1_000_000, decision_key(query, batch), value)
    return Batch(COMMITS, 1, build_batch([record], leader_epoch=-1, is_final=False))


def writer_of(value: bytes) -> Writer:
    """Who came by a decision last."""
    fields = json.loads(value)
    return Writer(fields.get("attempt", ""), fields.get("write", ""))


def standing_decisions(cluster: Cluster, query: str, patience_ms: int) -> dict[int, bytes]:
    """Batches of this query that were published and the decisions' values, the newest always among them.

    Call it only when no transaction of the query is open: see `Transaction.begin`.
    """
    first, end = patiently(cluster, patience_ms, lambda: _bounds(cluster))
    tail = max(first, end - TAIL_OFFSETS)
    found = patiently(cluster, patience_ms, lambda: _scan(cluster, query, tail, end))
    if not found and tail > first:
        found = patiently(cluster, patience_ms, lambda: _scan(cluster, query, first, end))
    return found


def _bounds(cluster: Cluster) -> tuple[int, int]:
    first = cluster.list_offsets({COMMITS: EARLIEST}, committed=False)[COMMITS]
    return first, cluster.list_offsets({COMMITS: LATEST}, committed=False)[COMMITS]


def _scan(cluster: Cluster, query: str, start: int, end: int) -> dict[int, bytes]:
    """The batches of the query that the committed records of these offsets decide."""
    standing: dict[int, bytes] = {}
    pending: dict[int, list[tuple[int, bytes | None]]] = {}
    for header, records in _batches(cluster, start, end):
        if not header.is_control:
            mine = [found for record in records if (found := _batch_of(record, query)) is not None]
            pending.setdefault(header.producer_id, []).extend(mine)
            continue
        for batch, value in pending.pop(header.producer_id, []):
            if _is_commit(records):
                standing.pop(batch, None)
                standing |= {} if value is None else {batch: value}
    if any(pending.values()):
        raise UnmarkedDecision(
            f"a decision of query {query} in {COMMITS} has no marker; its batch may be published or not"
        )
    return standing


def _is_commit(marker: list[Record]) -> bool:
    return not marker or _CONTROL_KEY.unpack_from(marker[0].key or bytes(4))[1] == _COMMIT


def _batch_of(record: Record, query: str) -> tuple[int, bytes | None] | None:
    """The batch of this query that the record is about, and its decision; None removes the decision."""
    name, _, batch = (record.key or b"").decode(errors="replace").rpartition("/")
    return (int(batch), record.value) if name == query and batch.isdigit() else None


def _batches(cluster: Cluster, start: int, end: int) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Batches that begin before `end`, from the one that holds `start` on."""
    position = start
    while position < end:
        answer = fetch_uncommitted(cluster, COMMITS, position, _FETCH_BYTES)
        data = answer.records or b""
        before = position
        for place, header in iterate_headers(data):
            body = memoryview(data)[place + HEADER_SIZE : place + header.size]
            payload = decompress(header.compression, body, _LARGEST_BATCH_BYTES)
            position = header.last_offset + 1
            yield header, list(iterate_records(header, payload))
        if position == before:
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, f"reading {COMMITS} at offset {position}")


def fetch_uncommitted(cluster: Cluster, where: TopicPartition, offset: int, size: int) -> PartitionData:
    """What the leader has from this offset on, at least one batch, up to the high watermark."""
    part = FetchPartition(partition=where.partition, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=size,
        topics=[FetchTopic(topic=where.topic, partitions=[part])],
    )
    answer = cluster.connection(cluster.leader(where)).call(request)
    return only_partition(answer, f"reading {where} at offset {offset}", time.sleep)
