"""The exactly-once sink on Apache Kafka: the scenarios of `tests/spark/test_sink_protocol.py`, and Spark itself.

The drivers of the first tests are processes without Spark that stage and publish; then Spark itself is killed, as
`sink_kills` says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from kafka_peer import KafkaPeer
from sink_crashes import Drivers, committed_messages
from sink_kills import STEPS, Copies
from sink_room import (
    PARTITIONS,
    QUICK_TIMEOUTS,
    STAGED_IN_TOPIC,
    Room,
    kill_the_driver_at_every_step,
    leave_a_transaction_of_another_query_open,
    let_a_driver_be_too_slow,
    overtake_a_driver,
    restart_after_the_transaction_timed_out,
)
from spark_sessions import spark_environment

from tidemill.spark.sink.steps import Step


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with KafkaPeer(settings=dict(QUICK_TIMEOUTS)) as peer:
        yield Cluster(peer.bootstrap)


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    found = Drivers()
    yield found
    found.close()


@pytest.fixture
def room(kafka: Cluster, drivers: Drivers, tmp_path: Path) -> Room:
    return Room(kafka.bootstrap, kafka.topic(partitions=PARTITIONS), drivers, tmp_path)


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


@pytest.mark.parametrize("options", [STAGED_IN_TOPIC, {}], ids=["staged", "inline"])
def test_a_driver_killed_at_any_step(room: Room, query: str, options: dict[str, str]) -> None:
    kill_the_driver_at_every_step(room, query, options)


def test_a_restart_after_the_transaction_timed_out(room: Room, query: str) -> None:
    restart_after_the_transaction_timed_out(room, query)


def test_a_driver_too_slow_for_its_transaction(room: Room, query: str) -> None:
    let_a_driver_be_too_slow(room, query)


@pytest.mark.parametrize("step", [Step.OPENED, Step.DECIDED])
def test_an_older_driver_is_fenced(room: Room, query: str, step: Step) -> None:
    overtake_a_driver(room, query, step)


def test_an_open_transaction_of_another_query(room: Room, query: str) -> None:
    leave_a_transaction_of_another_query_open(room, query, dead=str(uuid.uuid4()))


def test_queries_of_spark_are_killed_and_copy_everything_once(kafka: Cluster, tmp_path: Path) -> None:
    copies = Copies(kafka, tmp_path)
    copies.kill_a_driver_at_every_step()
    for step in STEPS:
        copies.plan.add(2, step, "self")
    copies.produce(batches=2)
    copies.finish(tasks=3)
    copies.check()


SPECULATIVE = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.speculation", "true")
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
writer = spark.range(3).selectExpr("cast(id as string) as value").write.format("tidemill")
for name, value in zip(sys.argv[1::2], sys.argv[2::2]):
    writer = writer.option(name, value)
try:
    writer.mode("append").save()
except Exception as error:
    print("refused:", "spark.speculation is true" in str(error))
spark.stop()
"""


def test_speculation_is_refused(kafka: Cluster) -> None:
    """By a session that really speculates; it can only be switched on when a session starts."""
    topic = kafka.topic()
    options = ["kafka.bootstrap.servers", kafka.bootstrap, "topic", topic]
    command = [sys.executable, "-c", SPECULATIVE, *options]
    environment = os.environ | spark_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "refused: True" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert committed_messages(kafka.bootstrap, topic, 1) == []
