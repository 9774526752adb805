"""Small micro-batches that are read where they are planned: the same rows as a task's, and tasks for all the rest."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from log_batches import data_batch
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from source_rows import Row, produce, stream_reader, transactions

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.source import driver_reading
from tidemill.spark.source.driver_reading import PAUSE_BATCHES, DriverReading
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.planning import ReadTask
from tidemill.spark.source.schema import source_schema
from tidemill.spark.source.settings import stream_settings
from tidemill.testing import SubprocessBroker
from tidemill.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL = ReadAllAvailable()


class Planned:
    """What a reader answers to Spark about one batch: its tasks, and the rows that it hands over with them."""

    def __init__(self, reader: Any, start: Any, end: Any) -> None:
        self.tasks = reader.partitions(start, end)
        self.is_offered = isinstance(reader, _SimpleStreamReaderWrapper)
        found = reader.getCache(start, end) if self.is_offered else None
        self.handed_over = None if found is None else [row for batch in found for row in batch.to_pylist()]
        assert not isinstance(reader, _SimpleStreamReaderWrapper)
        self.rows_of_tasks = [
            row for task in self.tasks for batch in reader.read(task) for row in batch.to_pylist()
        ]

    @property
    def values(self) -> list[int]:
        return _numbers(self.handed_over or [])


def _numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def reader_of(cluster: Cluster, topic: str, **options: Any) -> Any:
    return stream_reader(cluster.bootstrap, **{"subscribe": topic, "startingOffsets": "earliest", **options})


def everything(reader: Any) -> Planned:
    """All there is, as one batch."""
    start = reader.initialOffset()
    return Planned(reader, start, reader.latestOffset(start, ALL))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each round of requests asked for."""
    rounds: list[int] = []
    ask = DriverReading._ask

    def counting(self: Any, cluster: Any, tasks: Any, positions: Any) -> Any:
        rounds.append(len(tasks))
        return ask(self, cluster, tasks, positions)

    monkeypatch.setattr(DriverReading, "_ask", counting)
    return rounds


# -- the same rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_is_handed_over_is_what_the_task_reads(cluster: Cluster, asked: list[int], codec: str) -> None:
    topic = cluster.topic(partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
    for number in range(300):
        headers = [("h", b"%d" % number), ("none", None)] if number % 3 else None
        key, value = (b"k%d" % number, None) if number % 5 else (None, b"v" * number)
        producer.produce(topic, value, key, partition=number % 2, headers=headers, timestamp=1_000 + number)
    assert producer.flush(20) == 0
    planned = everything(reader_of(cluster, topic, includeHeaders="true"))
    assert len(planned.tasks) == 1
    assert planned.handed_over == planned.rows_of_tasks
    assert len(planned.rows_of_tasks) == 300
    assert asked[0] == 2, "all partitions in one round"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("limit", [100, 3])
def test_transactions_are_seen_as_by_tasks(cluster: Cluster, topic: str, isolation: str, limit: int) -> None:
    transactions(cluster, topic)
    settings = {"kafka__isolation__level": isolation, "maxOffsetsPerTrigger": limit}
    reader = reader_of(cluster, topic, **settings)
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        planned = Planned(reader, start, end)
        assert (planned.handed_over or []) == planned.rows_of_tasks
        found += planned.values
        start = end
    is_committed = isolation == "read_committed"
    assert found == [number for number in range(15) if not is_committed or not 5 <= number < 10]


def test_a_range_without_visible_records_needs_no_task(cluster: Cluster, topic: str) -> None:
    transactions(cluster, topic)
    reader = reader_of(cluster, topic, kafka__isolation__level="read_committed")
    aborted = Planned(reader, {topic: {"0": 6}}, {topic: {"0": 12}})
    assert (aborted.tasks, aborted.is_offered) == ([], False)


def test_a_backlog_is_fetched_once_for_many_batches(cluster: Cluster, topic: str, asked: list[int]) -> None:
    """One batch of a producer serves several micro-batches; their rows are those of tasks all the same."""
    produce(cluster.bootstrap, topic, 100)
    reader = reader_of(cluster, topic)
    offsets = [0, 10, 20, 40, 99, 100]
    for start, end in itertools.pairwise(offsets):
        planned = Planned(reader, {topic: {"0": start}}, {topic: {"0": end}})
        assert planned.handed_over == planned.rows_of_tasks
        assert planned.values == list(range(start, end))
    assert len(asked) < 4
    again = Planned(reader, {topic: {"0": 5}}, {topic: {"0": 30}})
    assert again.values == list(range(5, 30))


def test_what_is_kept_does_not_grow_younger_by_being_used(
    cluster: Cluster, topic: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(driver_reading.time, "monotonic", lambda: clock[0])
    produce(cluster.bootstrap, topic, 40)
    reader, rounds = reader_of(cluster, topic), []
    for start in (0, 10, 20, 30):
        assert Planned(reader, {topic: {"0": start}}, {topic: {"0": start + 10}}).values
        rounds.append(len(asked))
        clock[0] += 6
    assert rounds == [1, 1, 2, 2]


def test_what_is_kept_grows_old(
    cluster: Cluster, topic: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reading, "KEPT_SECONDS", -1.0)
    produce(cluster.bootstrap, topic, 20)
    reader = reader_of(cluster, topic)
    for start in (0, 10):
        Planned(reader, {topic: {"0": start}}, {topic: {"0": start + 10}})
    assert len(asked) == 2


class Leader:
    """A connection to a broker that answers a list of partitions, each with a batch of ten records."""

    def __init__(self, transcript: list[str], name: str) -> None:
        self._transcript, self._name = transcript, name
        self._asked: list[FetchPartition] = []

    def send(self, request: FetchRequest) -> None:
        (topic,) = request.topics
        self._asked = topic.partitions
        self._transcript.append(f"{self._name} is asked for {[part.partition for part in self._asked]}")

    def receive(self) -> FetchResponse:
        self._transcript.append(f"{self._name} answers")
        parts = [
            PartitionData(partition_index=part.partition, records=bytes(data_batch(10)))
            for part in self._asked
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=parts)])


def test_all_leaders_are_asked_before_one_has_answered() -> None:
    given = stream_settings({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
    transcript: list[str] = []
    leaders = {"a": Leader(transcript, "a"), "b": Leader(transcript, "b")}
    brokers: Any = SimpleNamespace(connection=leaders.__getitem__)
    tasks = [ReadTask(OffsetRange(TopicPartition("t", n), 0, 10), "aba"[n]) for n in range(3)]
    found = DriverReading(source_schema({}), given).read(brokers, tasks)
    assert sum(batch.num_rows for batch in found or []) == 30
    assert transcript == [
        "a is asked for [0, 2]",
        "b is asked for [1]",
        "a answers",
        "b answers",
    ]


# -- left to tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"driverRead__maxBytes": 0},
        {"driverRead__maxBytes": 1000},
        {"minPartitions": 1},
        {"maxRecordsPerPartition": 1000},
    ],
    ids=str,
)
def test_what_is_not_wanted_or_too_large_is_left_to_tasks(
    cluster: Cluster, topic: str, options: dict[str, Any]
) -> None:
    produce(cluster.bootstrap, topic, 100)
    planned = everything(reader_of(cluster, topic, **options))
    assert not planned.is_offered
    assert _numbers(planned.rows_of_tasks) == list(range(100))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_limit_counts_what_the_rows_take(cluster: Cluster, topic: str, codec: str) -> None:
    """100 KB in the log where they are not compressed, a few hundred bytes where they are."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
    for _ in range(100):
        producer.produce(topic, b"x" * 1000, partition=0)
    assert producer.flush(20) == 0
    for limit, fits in ((90_000, False), (200_000, True)):
        planned = everything(reader_of(cluster, topic, driverRead__maxBytes=limit))
        assert planned.is_offered is fits
        assert len(planned.rows_of_tasks) == 100


def test_more_records_than_share_a_task_are_left_to_tasks(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 2001)
    reader = reader_of(cluster, topic)
    assert not everything(reader).is_offered
    assert Planned(reader, {topic: {"0": 1}}, {topic: {"0": 2001}}).values == list(range(1, 2001))


def _refused(*_: Any) -> Iterator[Any]:
    raise BrokerUnavailable("nobody is there")


def _out_of_range(_: Any, __: Any, tasks: Any, ___: Any) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for task in tasks:
        yield task.offsets.where, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)


def _silent(_: Any, __: Any, tasks: Any, ___: Any) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for task in tasks:
        yield task.offsets.where, PartitionData(records=None, high_watermark=100)


def _torn(_: Any, __: Any, tasks: Any, ___: Any) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for task in tasks:
        yield task.offsets.where, PartitionData(records=b"torn", high_watermark=100)


@pytest.mark.parametrize("trouble", [_refused, _out_of_range, _silent, _torn])
def test_whatever_goes_wrong_is_left_to_tasks_for_a_while(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    produce(cluster.bootstrap, topic, 10)
    reader = reader_of(cluster, topic)
    with monkeypatch.context() as patched:
        patched.setattr(DriverReading, "_ask", trouble)
        planned = everything(reader)
    assert not planned.is_offered
    assert _numbers(planned.rows_of_tasks) == list(range(10))
    start, end = {topic: {"0": 0}}, {topic: {"0": 10}}
    assert not any(Planned(reader, start, end).is_offered for _ in range(PAUSE_BATCHES))
    assert Planned(reader, start, end).values == list(range(10))


def test_a_request_that_was_not_answered_is_not_taken_for_the_next(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch is under way when something else fails: the planner's next question must not get its answer."""
    produce(cluster.bootstrap, topic, 10)
    reader = reader_of(cluster, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    monkeypatch.setattr(driver_reading, "_partitions", _refused)
    assert not Planned(reader, start, end).is_offered
    assert reader.latestOffset(start, ALL) == end


# -- what Spark sees --------------------------------------------------------------------------------------------


def test_a_reader_is_a_simple_one_only_while_it_offers_rows(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 10)
    reader = reader_of(cluster, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert reader.partitions(start, end)
    assert isinstance(reader, _SimpleStreamReaderWrapper)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    assert reader.latestOffset(end, ALL) == end, "Spark did not ask for the rows"
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert reader.getCache(start, end) is None


def test_a_spark_that_does_not_ask_is_offered_nothing_more(
    cluster: Cluster, topic: str, asked: list[int]
) -> None:
    produce(cluster.bootstrap, topic, 20)
    reader = reader_of(cluster, topic)
    start, end = {topic: {"0": 0}}, {topic: {"0": 10}}
    assert len(reader.partitions(start, end)) == 1 and asked == [1]
    reader.latestOffset(end, reader.getDefaultReadLimit())
    assert not Planned(reader, end, {topic: {"0": 20}}).is_offered
    assert asked == [1]


def test_a_query_that_rests_keeps_nothing(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(cluster.bootstrap, topic, 20)
    reader = reader_of(cluster, topic)
    end = {topic: {"0": 10}}
    assert Planned(reader, {topic: {"0": 0}}, end).values
    assert reader._driver_reading._kept
    now = driver_reading.time.monotonic()
    monkeypatch.setattr(driver_reading.time, "monotonic", lambda: now + 2 * driver_reading.KEPT_SECONDS)
    reader.latestOffset(end, reader.getDefaultReadLimit())
    assert not reader._driver_reading._kept


def test_without_the_class_of_spark_everything_is_left_to_tasks(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reading, "SimpleReader", None)
    produce(cluster.bootstrap, topic, 10)
    planned = everything(reader_of(cluster, topic))
    assert not planned.is_offered
    assert _numbers(planned.rows_of_tasks) == list(range(10))


class Query:
    """A query whose batches are looked at twice, with something that happens in between."""

    def __init__(self, spark: SparkSession, given: dict[str, Any], between: Callable[[], object]) -> None:
        self.seen: list[list[Any]] = []
        self._between = between
        given = {name.replace("__", "."): str(value) for name, value in given.items()}
        self._frame = spark.readStream.format("tidemill").options(startingOffsets="earliest", **given).load()

    def run(self, checkpoint: str) -> None:
        writer = self._frame.writeStream.foreachBatch(self._look).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def _look(self, frame: DataFrame, _: int) -> None:
        self.seen.append(frame.collect())
        self._between()
        self.seen.append(frame.collect())


def test_spark_takes_the_rows_and_asks_no_task(
    spark: SparkSession, own_broker: Callable[..., SubprocessBroker], checkpoint: str
) -> None:
    """The broker is gone when the batch is looked at again; a task would ask it."""
    broker = own_broker()
    cluster = Cluster(broker.bootstrap)
    topic = cluster.topic(partitions=2)
    rows = [(number, random.randbytes(10 * number)) for number in range(200)]
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in rows:
        headers = [("n", b"%d" % number)] if number % 2 else None
        producer.produce(topic, value, partition=number % 2, key=b"%d" % number, headers=headers)
    assert producer.flush(20) == 0
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    query = Query(spark, given, broker.stop)
    query.run(checkpoint)
    first, second = query.seen
    assert sorted((int(row.key), bytes(row.value)) for row in first) == rows
    assert first == second
    headers = {int(row.key): row.headers for row in first}
    assert headers[0] is None
    assert [(each.key, bytes(each.value)) for each in headers[7]] == [("n", b"7")]


@pytest.mark.parametrize("limit", [0, 4 << 20])
def test_a_restarted_query_reads_the_same_rows_again(
    spark: SparkSession, cluster: Cluster, topic: str, checkpoint: str, limit: int
) -> None:
    """Killed in the middle of a batch; the topic has grown when it is run again."""
    produce(cluster.bootstrap, topic, 7)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    given |= {"maxOffsetsPerTrigger": "5", "driverRead.maxBytes": str(limit)}

    def kill() -> None:
        raise RuntimeError("killed on purpose")

    killed = Query(spark, given, kill)
    with pytest.raises(Exception, match="killed on purpose"):
        killed.run(checkpoint)
    produce(cluster.bootstrap, topic, 5, first=7)
    again = Query(spark, given, lambda: None)
    again.run(checkpoint)
    assert again.seen[0] == killed.seen[0]
    assert [[int(row.value) for row in seen] for seen in again.seen[::2]] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]
