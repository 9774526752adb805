"""The source inside Spark: found by its name, batch and stream, restarts, push-down, lag."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
)
from waiting import wait_until

from tidemill.spark.source.lag_listener import Lag, LagListener
from tidemill.testing import SubprocessBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Produce = Callable[..., None]


@pytest.fixture
def produce(cluster: Cluster, topic: str) -> Produce:
    def write(numbers: range, partition: int = 0, **message: Any) -> None:
        produce_to(cluster, topic, numbers, partition=partition, **message)

    return write


def produce_to(cluster: Cluster, topic: str, numbers: range, **message: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, **message)
    assert producer.flush(20) == 0


def options(cluster: Cluster, topic: str, **more: Any) -> dict[str, str]:
    extra = {name.replace("__", "."): str(value) for name, value in more.items()}
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **extra}


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


class Copy:
    """A query that copies a topic into a list, batch by batch, and can be run again on its checkpoint."""

    def __init__(self, spark: SparkSession, given: dict[str, str], checkpoint: str) -> None:
        self._spark, self._given, self._checkpoint = spark, given, checkpoint
        self.batches: dict[int, list[int]] = {}
        self.fails_in: int | None = None

    def run(self, **more: str) -> list[list[int]]:
        """Read what there is; the batches of this run that held something."""
        before = dict(self.batches)
        frame = self._spark.readStream.format("tidemill").options(**{**self._given, **more}).load()
        writer = frame.select("value").writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [found for batch, found in self.batches.items() if found and before.get(batch) != found]

    def _take(self, frame: DataFrame, batch: int) -> None:
        if batch == self.fails_in:
            raise RuntimeError("killed on purpose")
        self.batches[batch] = numbers(frame)


def test_a_batch_has_the_columns_of_the_connector_of_spark(
    spark: SparkSession, cluster: Cluster, topic: str, produce: Produce
) -> None:
    produce(range(3), key=b"k", headers=[("h", b"x"), ("n", None)], timestamp=1_700_000_000_123)
    frame = spark.read.format("tidemill").options(**options(cluster, topic, includeHeaders="true")).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    row = frame.orderBy("offset").collect()[2]
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (
        b"k",
        b"2",
        topic,
        0,
        2,
    )
    assert row.timestampType == 0
    assert [(each.key, each.value) for each in row.headers] == [("h", b"x"), ("n", None)]
    (moment,) = frame.filter("offset = 0").selectExpr("unix_millis(timestamp)").first() or (None,)
    assert moment == 1_700_000_000_123


def test_filters_are_pushed_down_where_spark_allows_it(
    spark: SparkSession, cluster: Cluster, topic: str, produce: Produce
) -> None:
    for number in range(6):
        produce(range(number, number + 1), timestamp=1_700_000_000_000 + number * 60_000)
    given = options(cluster, topic, filterPushdown="true")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("tidemill").options(**given).load()
        assert numbers(frame.filter("offset >= 2 and offset < 4 and partition = 0")) == [2, 3]
        assert numbers(frame.filter(frame.timestamp >= datetime.fromtimestamp(1_700_000_200, UTC))) == [4, 5]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_bad_option_is_named_by_sparks_error(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    given = options(cluster, topic, minPartitions="none")
    with pytest.raises(
        Exception, match="option minPartitions is 'none'; allowed: a whole number of at least 1"
    ):
        spark.read.format("tidemill").options(**given).load().count()


def test_a_stream_goes_on_where_it_was_and_sees_new_partitions(
    spark: SparkSession, cluster: Cluster, topic: str, produce: Produce, checkpoint: str
) -> None:
    given = options(cluster, topic, startingOffsets="earliest", commitGroupId=f"{topic}-group")
    copy = Copy(spark, given, checkpoint)
    lags: list[Lag] = []
    listener = LagListener(lags.append)
    spark.streams.addListener(listener)
    produce(range(10))
    assert copy.run(maxOffsetsPerTrigger="4") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    wait_until(lambda: len(lags) >= 3, "the progress of three batches")
    spark.streams.removeListener(listener)
    assert [lag.total for lag in lags[:3]] == [6, 2, 0]
    assert committed(cluster, f"{topic}-group", topic) == 10
    cluster.admin().create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    wait_until(lambda: cluster.serves(topic, 2), "two partitions")
    produce(range(10, 12))
    produce(range(50, 53), partition=1)
    assert copy.run() == [[10, 11, 50, 51, 52]]
    assert copy.run() == []


def committed(cluster: Cluster, group: str, topic: str) -> int:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    offset: int = (
        cluster.admin().list_consumer_group_offsets([asked])[group].result(20).topic_partitions[0].offset
    )
    return offset


@pytest.mark.parametrize("fails_in", [0, 1])
def test_a_query_killed_in_its_first_batches_loses_nothing_after_its_start(
    spark: SparkSession, cluster: Cluster, topic: str, produce: Produce, checkpoint: str, fails_in: int
) -> None:
    produce(range(5))
    copy = Copy(spark, options(cluster, topic, startingOffsets="latest"), checkpoint)
    copy.fails_in = fails_in
    if fails_in:
        copy.run()
        produce(range(5, 8))
    with pytest.raises(Exception, match="killed on purpose"):
        copy.run()
    produce(range(8, 10))
    copy.fails_in = None
    expected = [8, 9] if fails_in == 0 else [5, 6, 7, 8, 9]
    assert sorted(number for batch in copy.run() for number in batch) == expected


class HeldCopy:
    """A running query of two messages a batch, that stays in its first batch until it is let go."""

    def __init__(self, spark: SparkSession, given: dict[str, str], checkpoint: str) -> None:
        self.seen: list[int] = []
        self.is_held, self.may_go = threading.Event(), threading.Event()
        frame = spark.readStream.format("tidemill").options(maxOffsetsPerTrigger="2", **given).load()
        writer = frame.select("value").writeStream.foreachBatch(self._take)
        self.query = writer.option("checkpointLocation", checkpoint).start()

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.seen += numbers(frame)
        self.is_held.set()
        assert self.may_go.wait(120)


def test_partitions_that_appear_while_a_query_runs_are_read_from_their_beginning(
    spark: SparkSession, cluster: Cluster, topic: str, produce: Produce, checkpoint: str
) -> None:
    produce(range(3))
    copy = HeldCopy(spark, options(cluster, topic, startingOffsets="earliest"), checkpoint)
    assert copy.is_held.wait(120)
    cluster.admin().create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    wait_until(lambda: cluster.serves(topic, 2), "two partitions")
    produce(range(50, 53), partition=1)
    assert copy.seen == [0, 1]
    copy.may_go.set()
    wait_until(lambda: len(copy.seen) >= 6, "the messages of both partitions", 120)
    copy.query.stop()
    assert sorted(copy.seen) == [0, 1, 2, 50, 51, 52]


@pytest.fixture
def short_lived(own_broker: Callable[..., SubprocessBroker]) -> Cluster:
    """A broker that looks for messages to forget all the time."""
    return Cluster(own_broker(settings={"log.retention.check.interval.ms": "100"}).bootstrap)


def forget_everything(cluster: Cluster, topic: str) -> None:
    """Retention deletes what is older than a minute; what comes afterwards stays."""

    def start() -> int:
        asked = {TopicPartition(topic, 0): OffsetSpec.earliest()}
        (found,) = cluster.admin().list_offsets(asked).values()
        offset: int = found.result(20).offset
        return offset

    setting = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[setting])
    cluster.admin().incremental_alter_configs([resource])[resource].result(20)
    wait_until(lambda: start() == 10, "the end of ten old messages")


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_retention_overtakes_a_running_query(
    spark: SparkSession, short_lived: Cluster, checkpoint: str, fail_on_data_loss: str
) -> None:
    topic = short_lived.topic(retention_ms=-1)
    produce_to(short_lived, topic, range(10), timestamp=1_700_000_000_000)
    given = options(short_lived, topic, startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    given["driverRead.maxBytes"] = "0"  # the driver keeps for some seconds what it has fetched
    copy = HeldCopy(spark, given, checkpoint)
    assert copy.is_held.wait(120)
    forget_everything(short_lived, topic)
    produce_to(short_lived, topic, range(10, 13))
    copy.may_go.set()
    if fail_on_data_loss == "true":
        with pytest.raises(Exception, match=f"{topic}-0 begins at 10, and 2 is wanted"):
            copy.query.awaitTermination(120)
        assert copy.seen == [0, 1]
    else:
        wait_until(lambda: len(copy.seen) >= 5, "the messages that are left", 120)
        copy.query.stop()
        assert copy.seen == [0, 1, 10, 11, 12]
