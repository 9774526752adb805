"""Pipelines for tests: a configuration as a dictionary, topics with messages, and the run in this process.

state = run_pipeline(spark, tmp_path, archive_of(cluster.bootstrap, [topic], tmp_path))
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka

from tidemill.spark.pipeline.config import PipelineConfig, check_config
from tidemill.spark.pipeline.progress import LineDisplay
from tidemill.spark.pipeline.runner import Runner
from tidemill.spark.pipeline.state import PipelineState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Message = dict[str, Any]
FLUSH_SECONDS = 20
ONE_MORE_SECONDS = 1.0


def send(bootstrap: str, topic: str, messages: list[Message]) -> None:
    """Messages with `value` (what is no bytes becomes JSON), and `key`, `partition`, `timestamp`, `headers`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for message in messages:
        value = message["value"]
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, **(message | {"value": data}))
    assert producer.flush(FLUSH_SECONDS) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[confluent_kafka.Message]:
    """`count` committed messages of a topic, from the beginning; fails when there are fewer, or one more.

    The end of a transaction becomes visible a moment after it was acknowledged, so the first end of the log is not
    taken for an answer.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[confluent_kafka.Message] = []
    with contextlib.closing(consumer):
        partitions = consumer.list_topics(topic, timeout=FLUSH_SECONDS).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        while message := consumer.poll(FLUSH_SECONDS if len(found) < count else ONE_MORE_SECONDS):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count, [message.value() for message in found]
    return found


def configuration(job: str, bootstrap: str, topics: list[str], **sections: dict[str, Any]) -> dict[str, Any]:
    """Paths are relative to the folder given to `run_pipeline`."""
    source = {"bootstrap": bootstrap, "topics": topics} | sections.pop("source", {})
    return {"job": job, "name": f"test-{job}", "checkpoint": "checkpoint", "source": source} | sections


def run_pipeline(spark: SparkSession, folder: Path, given: dict[str, Any]) -> PipelineState:
    """Run it in the shared session; the state says what happened."""
    config: PipelineConfig = check_config(given, folder)
    state = PipelineState(folder / "state", config.name)
    assert Runner(config, spark, state, LineDisplay(config.name, io.StringIO())).run() == "finished"
    return state


def table_rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, sorted; read by delta-rs, not by our code."""
    from deltalake import DeltaTable

    found = DeltaTable(str(path)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)
