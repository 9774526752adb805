"""The sink inside Spark: what `df.write` and `writeStream` put into topics, read back by librdkafka."""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import TIMESTAMP_CREATE_TIME
from sink_crashes import committed_messages, committed_values

from tidemill.spark.sink.topics import STAGING_PREFIX
from tidemill.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123_456, datetime.UTC)
SCHEMA = "key binary, value string, headers array<struct<key string, value binary>>, partition int, timestamp timestamp"
GOLDEN = [
    (b"key", "value", [("a", b"1"), ("a", b""), ("ü", None)], 0, MOMENT),
    (None, None, None, 1, MOMENT),
    (b"", "", [], 2, MOMENT),
    (
        b"\x00\xff",
        "Grüße" * 500,
        [("long", b"x" * 300)],
        0,
        datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    ),
]


def write(frame: DataFrame, cluster: Cluster, topic: str | None, **options: str) -> None:
    writer = (
        frame.write.format("tidemill").option("kafka.bootstrap.servers", cluster.bootstrap).options(**options)
    )
    (writer if topic is None else writer.option("topic", topic)).mode("append").save()


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as key", "concat('v', id) as value")


def expected_numbers(count: int) -> list[str]:
    return sorted(f"v{number}" for number in range(count))


def seen(message: Any) -> tuple[Any, ...]:
    kind, timestamp_ms = message.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    value = None if message.value() is None else message.value().decode()
    return message.key(), value, message.headers() or None, message.partition(), timestamp_ms


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_librdkafka_reads_what_the_sink_encoded(spark: SparkSession, cluster: Cluster, codec: str) -> None:
    topic = cluster.topic(partitions=PARTITIONS)
    frame = spark.createDataFrame(GOLDEN, SCHEMA).coalesce(1)
    write(frame, cluster, topic, **{"kafka.compression.type": codec})
    expected = [
        (key, value, headers or None, partition, int(moment.timestamp() * 1000 // 1))
        for key, value, headers, partition, moment in GOLDEN
    ]
    found = [seen(message) for message in committed_messages(cluster.bootstrap, topic, PARTITIONS)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_keys_go_where_javas_producer_puts_them(spark: SparkSession, cluster: Cluster) -> None:
    from confluent_kafka import Producer

    ours, theirs = cluster.topic(partitions=7), cluster.topic(partitions=7)
    write(numbers(spark, 200), cluster, ours)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"})
    for number in range(200):
        producer.produce(theirs, key=str(number), value="x")
    assert producer.flush(30) == 0
    places = [
        {message.key(): message.partition() for message in committed_messages(cluster.bootstrap, topic, 7)}
        for topic in (ours, theirs)
    ]
    assert places[0] == places[1]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_topics_come_from_the_column(spark: SparkSession, cluster: Cluster, delivery: str) -> None:
    first, second = cluster.topic(partitions=PARTITIONS), cluster.topic()
    frame = numbers(spark, 300).selectExpr(
        "*", f"if(key < '2', '{first}', '{second}') as topic", "1 as other"
    )
    write(frame, cluster, None, delivery=delivery)
    found = [
        committed_values(cluster.bootstrap, first, PARTITIONS),
        committed_values(cluster.bootstrap, second, 1),
    ]
    assert found[0] == [value for value in expected_numbers(300) if value < "v2"]
    assert found[1] == [value for value in expected_numbers(300) if value >= "v2"]


def staging_topics(cluster: Cluster) -> list[str]:
    return [
        name
        for name in cluster.admin().list_topics(timeout=20).topics
        if name.startswith(STAGING_PREFIX + "run-")
    ]


def test_many_large_rows_are_staged_and_the_staging_topic_goes(spark: SparkSession, cluster: Cluster) -> None:
    """More than one fetch of staged batches for each partition of the staging topic."""
    topic = cluster.topic(partitions=PARTITIONS)
    frame = spark.range(0, 4_000, 1, 2).selectExpr("concat(id, repeat('x', 10000)) as value")
    write(frame, cluster, topic, stagingInlineBytes="0", stagingPartitions="1")
    values = [value.rstrip("x") for value in committed_values(cluster.bootstrap, topic, PARTITIONS)]
    assert sorted(map(int, values)) == list(range(4_000))
    assert staging_topics(cluster) == []


def test_a_job_that_fails_shows_nothing(spark: SparkSession, cluster: Cluster) -> None:
    topic = cluster.topic(partitions=PARTITIONS)
    frame = numbers(spark, 300).selectExpr("*", "if(key = '299', 9, null) as partition")
    with pytest.raises(
        Exception, match=f"column partition is 9 in a row; topic {topic} has the partitions 0 to 2"
    ):
        write(frame, cluster, topic, stagingInlineBytes="0")
    assert committed_messages(cluster.bootstrap, topic, PARTITIONS) == []


def test_a_write_with_a_name_happens_once(spark: SparkSession, cluster: Cluster) -> None:
    topic, name = cluster.topic(partitions=PARTITIONS), f"load/{uuid.uuid4()}"
    for _ in range(2):
        write(numbers(spark, 50), cluster, topic, commitKey=name)
    assert committed_values(cluster.bootstrap, topic, PARTITIONS) == expected_numbers(50)


def test_numbered_writes_happen_once_and_in_order(spark: SparkSession, cluster: Cluster) -> None:
    topic, name = cluster.topic(partitions=PARTITIONS), f"my-query/{uuid.uuid4()}"
    for number in (0, 1, 1):
        write(numbers(spark, 50 * (number + 1)), cluster, topic, commitKey=f"{name}/{number}")
    assert len(committed_values(cluster.bootstrap, topic, PARTITIONS)) == 150
    with pytest.raises(Exception, match=f"batch 0 of query {name} was not published: batch 1 of this query"):
        write(numbers(spark, 50), cluster, topic, commitKey=f"{name}/0")


def test_a_stream_at_least_once(spark: SparkSession, cluster: Cluster, checkpoint: str) -> None:
    source, target = cluster.topic(partitions=2), cluster.topic(partitions=PARTITIONS)
    write(numbers(spark, 500), cluster, source)
    reader = spark.readStream.format("tidemill").option("kafka.bootstrap.servers", cluster.bootstrap)
    rows = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = rows.selectExpr("key", "value", "timestamp").writeStream.format("tidemill")
    writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", target)
    writer = writer.option("delivery", "at-least-once").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert committed_values(cluster.bootstrap, target, PARTITIONS) == expected_numbers(500)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka.transactional.id": "x"}, "option kafka.transactional.id is not supported"),
        ({"delivery": "twice"}, "option delivery is 'twice'; allowed: one of exactly-once, at-least-once"),
    ],
)
def test_spark_shows_the_option_that_is_refused(
    spark: SparkSession, cluster: Cluster, topic: str, options: dict[str, str], named: str
) -> None:
    with pytest.raises(Exception, match="option") as refusal:
        write(numbers(spark, 1), cluster, topic, **options)
    assert named in str(refusal.value)


def test_speculation_is_refused(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    """Tasks see the setting as they would in a session that was started with it; `make interop` starts one."""
    speculative = spark.newSession()
    speculative.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    speculative.conf.set("spark.speculation", "true")
    with pytest.raises(Exception, match=r"spark\.speculation is true: two copies of a task would write"):
        write(numbers(speculative, 3), cluster, topic)
    assert committed_messages(cluster.bootstrap, topic, 1) == []
