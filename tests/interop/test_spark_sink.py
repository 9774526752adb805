"""The exactly-once sink on Apache Kafka: the scenarios of `tests/spark/test_sink_protocol.py`, and Spark itself.

The drivers of the first tests are processes without Spark that stage and publish; the last test copies a topic with a
streaming query whose driver is killed in batch 0, with a transaction open, and after its commit.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from kafka_peer import KafkaPeer
from sink_crashes import CrashPlan, Drivers, committed_values
from sink_query import Copy, start_copy
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

from tidemill.spark.sink.steps import Step

BATCH_ROWS = 40
SECONDS = 600.0


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


def test_a_query_of_spark_is_killed_and_copies_everything_once(kafka: Cluster, tmp_path: Path) -> None:
    plan = CrashPlan(tmp_path / "plan")
    plan.folder.mkdir()
    source, target = kafka.topic(partitions=2), kafka.topic(partitions=PARTITIONS)
    place = (kafka.bootstrap, source, target, str(tmp_path), str(plan.folder), BATCH_ROWS)
    first = start_copy(Copy(*place, tasks=2, until_empty=False), tmp_path / "log")
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "checkpoint" / "offsets" / "0").exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    for pid in (plan.folder / "driver.pids").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    first.wait(30)

    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    values = [f"message-{number}" for number in range(4 * BATCH_ROWS)]
    for value in values:
        producer.produce(source, key=value, value=value)
    assert producer.flush(30) == 0
    for batch, step in ((1, Step.DECIDED), (2, Step.COMMITTED)):
        plan.add(batch, step, "driver")
        assert (
            start_copy(Copy(*place, tasks=2 + batch, until_empty=True), tmp_path / "log").wait(SECONDS) != 0
        )
    last = start_copy(Copy(*place, tasks=2, until_empty=True), tmp_path / "log")
    assert last.wait(SECONDS) == 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
    assert plan.pending == []
    assert committed_values(kafka.bootstrap, target, PARTITIONS) == sorted(values)
