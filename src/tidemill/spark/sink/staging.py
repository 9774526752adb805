"""Where rows wait between the task that made them and the driver that publishes them.

A task makes finished batches for the target partitions. Up to `stagingInlineBytes` of them travel to the driver in the
task's commit message; what is more goes into the query's staging topic, each batch as the value of one record:

    key        <name>/<task>/<attempt>                   value      the batch, byte for byte
    headers    topic, partition, count                   timestamp  now, whatever the rows' own are

The commit message names the offsets of the records it stands for. What no message names (a task that died, an attempt
that was sent twice) is never read. Staged data may be lost or damaged without harm: the driver notices, the batch fails
and Spark runs it again.

    stage = Stage(cluster, topics, settings, name, task)
    stage.add(batch)
    stage.close()                        # -> Staged
    read_staged(cluster, [staged, …])      # -> the batches, ready to be stamped
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, MalformedMessage
from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition
from tidemill.spark.sink.batching import Batch, verify
from tidemill.spark.sink.decisions import fetch_uncommitted
from tidemill.spark.sink.publisher import Delivery, Publisher
from tidemill.spark.sink.settings import SinkSettings
from tidemill.spark.sink.topics import SinkTopics, staging_topic
from tidemill.spark.sink.transaction import idempotent_producer
from tidemill.wire.batch import (
    HEADER_SIZE,
    Buffer,
    Record,
    build_batch,
    iterate_headers,
    iterate_records,
    read_header,
)

_FETCH_BYTES = 8 << 20


class Task(NamedTuple):
    """Who stages."""

    number: int
    attempt: int


class Staged(NamedTuple):
    """What a task has to show: batches that travel with this, and offsets of those that do not."""

    counts: dict[TopicPartition, int]
    inline: list[Batch]
    where: TopicPartition
    offsets: list[int]


class Stage:
    """Takes in a task's batches; connects to the staging topic only when they become many."""

    def __init__(
        self, cluster: Cluster, topics: SinkTopics, settings: SinkSettings, name: str, task: Task
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._settings = settings
        self._name = name
        self._task = task
        self._counts: Counter[TopicPartition] = Counter()
        self._inline: list[Batch] = []
        self._inline_bytes = 0
        self._publisher: Publisher | None = None
        self._where = TopicPartition(staging_topic(name), -1)

    def add(self, batch: Batch) -> None:
        self._counts[batch.target] += batch.record_count
        self._inline.append(batch)
        self._inline_bytes += len(batch.data)
        if self._inline_bytes > self._settings.inline_bytes:
            self._move_out()

    def _move_out(self) -> None:
        """Everything held goes to the topic, in order, so that what comes later is later."""
        if self._publisher is None:
            self._publisher = self._open()
        for batch in self._inline:
            self._publisher.send(self._wrapped(batch))
        self._inline, self._inline_bytes = [], 0

    def _open(self) -> Publisher:
        count = self._topics.ensure_staging(self._where.topic, self._settings.staging_partitions)
        self._where = self._where._replace(partition=self._task.number % count)
        patience_ms = self._settings.delivery_timeout_ms
        return Publisher(
            self._cluster, idempotent_producer(self._cluster, patience_ms), Delivery(-1, None, patience_ms)
        )

    def _wrapped(self, batch: Batch) -> Batch:
        topic, partition = batch.target
        headers = (
            ("topic", topic.encode()), ("partition", b"%d" % partition), ("count", b"%d" % batch.record_count)
        )  # fmt: skip
        key = f"{self._name}/{self._task.number}/{self._task.attempt}".encode()
        now_ms = time.time_ns() // 1_000_000
        record = Record(0, now_ms, key, batch.data, headers)  # type: ignore[arg-type]  # a copy less
        return Batch(self._where, 1, build_batch([record], leader_epoch=-1, is_final=False))

    def close(self) -> Staged:
        """Wait until the cluster has everything that does not travel inline."""
        offsets: list[int] = []
        if self._publisher is not None:
            self._publisher.flush()
            offsets = sorted(self._publisher.offsets)
        return Staged(dict(self._counts), self._inline, self._where, offsets)


def staged_ends(staged: list[Staged]) -> dict[TopicPartition, int]:
    """For each partition of the staging topic the offset below which these tasks' data lie."""
    ends: dict[TopicPartition, int] = {}
    for each in staged:
        if each.offsets:
            ends[each.where] = max(ends.get(each.where, 0), each.offsets[-1] + 1)
    return ends


def read_staged(cluster: Cluster, staged: list[Staged]) -> Iterator[Batch]:
    """All batches of these tasks: a task's own in the order in which it made them."""
    by_partition: dict[TopicPartition, set[int]] = {}
    for each in staged:
        if each.offsets:
            by_partition.setdefault(each.where, set()).update(each.offsets)
    for where, offsets in sorted(by_partition.items()):
        yield from _read_partition(cluster, where, offsets)
    for each in staged:
        for batch in each.inline:
            yield Batch(batch.target, batch.record_count, bytearray(batch.data))


def _read_partition(cluster: Cluster, where: TopicPartition, wanted: set[int]) -> Iterator[Batch]:
    """One pass from the first wanted offset to the last; what lies between and is not wanted is left out."""
    position, last = min(wanted), max(wanted)
    found = 0
    while position <= last:
        data = fetch_uncommitted(cluster, where, position, _FETCH_BYTES).records or b""
        before = position
        for place, header in iterate_headers(data):
            if header.base_offset in wanted and header.base_offset >= position:
                found += 1
                yield _unwrapped(data[place : place + header.size], where)
            position = header.last_offset + 1
        if position == before:
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, f"reading {where} at offset {position}")
    if found != len(wanted):
        raise MalformedMessage(
            f"{where} lacks {len(wanted) - found} staged batches; it must be neither changed nor compacted"
        )


def _unwrapped(data: Buffer, where: TopicPartition) -> Batch:
    """The checksum of the record covers the batch in it, which gets its own when it is stamped."""
    header = verify(data)
    (record,) = iterate_records(header, memoryview(data)[HEADER_SIZE:])
    described = dict(record.headers)
    topic, partition, count = described["topic"], described["partition"], described["count"]
    if record.value is None or topic is None or partition is None or count is None:
        raise MalformedMessage(f"a record of {where} at offset {record.offset} is no staged batch")
    if read_header(record.value).size != len(record.value):
        raise MalformedMessage(f"a record of {where} at offset {record.offset} holds half a batch")
    return Batch(TopicPartition(topic.decode(), int(partition)), int(count), bytearray(record.value))
