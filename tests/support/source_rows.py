"""Rows of the Spark source without Spark: plan and read in this process, as Spark's planner and tasks would; and what
there is to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from cluster_under_test import Cluster
from confluent_kafka import Producer
from pyspark.serializers import CloudPickleSerializer

from pyspark_tidemill import DefaultSource

Row = dict[str, Any]
_pickles = CloudPickleSerializer()


def arrow_batches(bootstrap: str, **options: Any) -> Iterator[pa.RecordBatch]:
    """What the tasks of a batch read deliver; options by keyword, `__` for a dot."""
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    source = DefaultSource({"kafka.bootstrap.servers": bootstrap, **given})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    travelled = _pickles.loads(_pickles.dumps(reader))
    for task in tasks:
        yield from travelled.read(_pickles.loads(_pickles.dumps(task)))


def rows(bootstrap: str, **options: Any) -> list[Row]:
    return [row for batch in arrow_batches(bootstrap, **options) for row in batch.to_pylist()]


def values(bootstrap: str, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(bootstrap, columns="value", **options)]


def stream_reader(bootstrap: str, **options: Any) -> Any:
    """The reader of a stream, whose methods a test calls as Spark would."""
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    source = DefaultSource({"kafka.bootstrap.servers": bootstrap, **given})
    return source.streamReader(source.schema())


def produce(
    bootstrap: str, topic: str, count: int, partition: int = 0, first: int = 0, **message: Any
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=partition, **message)
    assert producer.flush(20) == 0


def transactions(cluster: Cluster, topic: str) -> None:
    """0..4 committed, 5..9 aborted, 10..14 committed, in transactions of one producer each."""
    for first, is_kept in ((0, True), (5, False), (10, True)):
        settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-{first}"}
        producer = Producer(settings)
        producer.init_transactions(20)
        producer.begin_transaction()
        for number in range(first, first + 5):
            producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(20)
        producer.commit_transaction(20) if is_kept else producer.abort_transaction(20)
