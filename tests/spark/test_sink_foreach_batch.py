"""Batch writes inside `foreachBatch`: the function is run again after a failure, and every row is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from cluster_under_test import Cluster
from pipelines import send
from sink_crashes import committed_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 6
EVEN, ODD = [f"v{number}" for number in range(0, ROWS, 2)], [f"v{number}" for number in range(1, ROWS, 2)]
Write = Callable[["DataFrame", int], None]


class Query:
    """A stream over a topic with six messages, one batch, and a function that writes it somewhere."""

    def __init__(self, spark: SparkSession, cluster: Cluster, checkpoint: str) -> None:
        self._cluster, self._checkpoint = cluster, checkpoint
        self.topic = cluster.topic()
        send(cluster.bootstrap, self.topic, [{"value": f"v{number}".encode()} for number in range(ROWS)])
        reader = spark.readStream.format("tidemill").option("kafka.bootstrap.servers", cluster.bootstrap)
        self._rows = reader.option("subscribe", self.topic).option("startingOffsets", "earliest").load()

    def run(self, write: Write) -> None:
        """To its end; raises what the function raised."""
        writer = self._rows.selectExpr("cast(value as string) as value").writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", self._checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def save(self, frame: DataFrame, topic: str | None, **options: str) -> None:
        options |= {"kafka.bootstrap.servers": self._cluster.bootstrap} | ({"topic": topic} if topic else {})
        frame.write.format("tidemill").options(**options).mode("append").save()

    def stored(self, topic: str) -> list[str]:
        return committed_values(self._cluster.bootstrap, topic, 1)


@pytest.fixture
def query(spark: SparkSession, cluster: Cluster, checkpoint: str) -> Query:
    return Query(spark, cluster, checkpoint)


def is_even(frame: DataFrame) -> DataFrame:
    return frame.where("substring(value, 2) % 2 = 0")


def is_odd(frame: DataFrame) -> DataFrame:
    return frame.where("substring(value, 2) % 2 = 1")


def test_writes_to_several_topics_are_repeated_without_doubles(query: Query, cluster: Cluster) -> None:
    """The function fails between its second and its third write."""
    first, second, third = (cluster.topic() for _ in range(3))
    failures = ["the cat on the keyboard"]

    def write(batch: DataFrame, batch_id: int) -> None:
        query.save(is_even(batch), first)
        query.save(batch.selectExpr("value", f"'{second}' as topic"), None)
        if failures:
            raise RuntimeError(failures.pop())
        query.save(is_odd(batch), third)

    with pytest.raises(Exception, match="the cat on the keyboard"):
        query.run(write)
    query.run(write)
    assert [query.stored(topic) for topic in (first, second, third)] == [EVEN, sorted(EVEN + ODD), ODD]


def test_a_second_write_to_the_same_topic_is_refused_until_it_has_a_name(
    query: Query, cluster: Cluster
) -> None:
    """However often the query is started, the second is not taken for a repetition of the first."""
    target = cluster.topic()
    named: dict[str, str] = {}

    def write(batch: DataFrame, batch_id: int) -> None:
        query.save(is_even(batch), target)
        query.save(is_odd(batch), target, **named)

    for _ in range(2):
        with pytest.raises(
            Exception, match=rf"batch 0 of query .*/{target} is published already, by another"
        ):
            query.run(write)
        assert query.stored(target) == EVEN
    named["commitKey"] = f"odd/{target}/0"
    query.run(write)
    assert query.stored(target) == sorted(EVEN + ODD)


def test_a_thread_that_is_not_the_querys_needs_a_name(query: Query, cluster: Cluster) -> None:
    from pyspark import InheritableThread

    refused, inherited = cluster.topic(), cluster.topic()
    errors: list[Exception] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        def attempt(topic: str) -> None:
            try:
                batch.sparkSession.createDataFrame([(0,)], "none int")  # makes the session that of the thread
                query.save(batch, topic)
            except Exception as error:
                errors.append(error)

        in_thread(threading.Thread(target=attempt, args=[refused]))
        in_thread(InheritableThread(target=attempt, args=[inherited]))

    query.run(write)
    (error,) = errors
    assert "option commitKey must be set: the rows are those of a stream" in str(error)
    assert query.stored(refused) == []
    assert query.stored(inherited) == sorted(EVEN + ODD)


def in_thread(thread: threading.Thread) -> None:
    thread.start()
    thread.join()
