"""The protocol of the exactly-once sink, with processes that die at each of its steps.

Here the driver is a process that stages and publishes without Spark, so a death costs milliseconds and every step can
be tried; `test_sink_kills.py` does the same to Spark itself. What counts is what a reader of committed data finds.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_under_test import Cluster as Broker
from log_batches import data_batch
from sink_crashes import Drivers, committed_messages, expected_values, stage_tasks
from sink_room import (
    PARTITIONS,
    QUICK_TIMEOUTS,
    ROWS,
    STAGED_IN_TOPIC,
    STEPS_OF_A_BATCH,
    Room,
    kill_the_driver_at_every_step,
    leave_a_transaction_of_another_query_open,
    let_a_driver_be_too_slow,
    overtake_a_driver,
    restart_after_the_transaction_timed_out,
)
from waiting import wait_until

from tidemill.spark.client.cluster import EARLIEST, LATEST, BrokerError, Cluster, TopicPartition, kept_cluster
from tidemill.spark.client.connection import Connection
from tidemill.spark.sink.batching import Batch
from tidemill.spark.sink.decisions import KEPT_DECISIONS, Writer, standing_decisions
from tidemill.spark.sink.publication import BatchOutdated, DriverReplaced, SecondWrite, publish
from tidemill.spark.sink.publisher import Delivery, Publisher
from tidemill.spark.sink.staging import staged_ends
from tidemill.spark.sink.steps import Step
from tidemill.spark.sink.topics import COMMITS
from tidemill.spark.sink.transaction import idempotent_producer
from tidemill.testing import SubprocessBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[SubprocessBroker]:
    """A broker that these tests may kill."""
    with SubprocessBroker(settings=QUICK_TIMEOUTS) as running:
        yield running


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    found = Drivers()
    yield found
    found.close()


@pytest.fixture
def room(broker: SubprocessBroker, drivers: Drivers, tmp_path: Path) -> Room:
    topic = broker.create_topic(f"target-{uuid.uuid4().hex[:8]}", partitions=PARTITIONS)
    return Room(broker.bootstrap, topic, drivers, tmp_path)


@pytest.mark.parametrize("options", [STAGED_IN_TOPIC, {}], ids=["staged", "inline"])
def test_a_driver_killed_at_any_step_and_restarted_with_other_tasks(
    room: Room, query: str, options: dict[str, str]
) -> None:
    kill_the_driver_at_every_step(room, query, options)


def test_a_broker_killed_at_any_step(broker: SubprocessBroker, room: Room, query: str) -> None:
    for batch, step in enumerate(STEPS_OF_A_BATCH):
        room.plan.add(batch, step, "broker")
        driver = room.start(query, batch, **STAGED_IN_TOPIC)
        wait_until(lambda: room.plan.is_broker_to_die, f"a driver at {step}")
        room.plan.kill_broker(broker)
        assert room.drivers.wait(driver) == 0, step
    assert room.committed() == expected_values(query, range(len(STEPS_OF_A_BATCH)), ROWS)


def test_a_batch_that_is_run_again_is_skipped(room: Room, query: str) -> None:
    settings = room.settings()
    assert publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=2)) is True
    assert publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=5)) is False
    assert room.committed() == expected_values(query, [0], ROWS)


def test_a_write_is_told_from_a_repetition_of_another_under_its_name(room: Room, query: str) -> None:
    """Attempts at a batch and the writes of each: the one that comes first counts, in every attempt."""
    settings = room.settings()

    def write(attempt: str, name: str) -> bool:
        staged = stage_tasks(settings, query, 0, ROWS, tasks=2)
        return publish(settings, query, 0, staged, Writer(attempt, name))

    assert write("application/1", "write-1") is True
    assert write("application/1", "write-1") is False, "its own commit, whose answer was lost"
    for attempt, name in (("application/1", "write-2"), ("application/2", "write-4")):
        with pytest.raises(SecondWrite, match="Set the option commitKey of this write to a name of its own"):
            write(attempt, name)
        assert write("application/2", "write-3") is False
    decided = json.loads(standing(settings, query)[0])
    assert (decided["attempt"], decided["write"], decided["records"]) == ("application/2", "write-3", ROWS)
    assert room.committed() == expected_values(query, [0], ROWS)


def standing(settings: Any, query: str) -> dict[int, bytes]:
    with kept_cluster(settings.client) as cluster:
        return standing_decisions(cluster, query, patience_ms=20_000)


def test_a_batch_before_the_newest_is_refused(room: Room, query: str) -> None:
    settings = room.settings()
    for batch in (3, 4):
        publish(settings, query, batch, stage_tasks(settings, query, batch, ROWS, tasks=2))
    with pytest.raises(
        BatchOutdated, match=r"batch 3 of query .* batch 4 of this query is published already"
    ):
        publish(settings, query, 3, stage_tasks(settings, query, 3, ROWS, tasks=2))
    assert room.committed() == expected_values(query, [3, 4], ROWS)


def test_a_restart_after_the_transaction_timed_out(room: Room, query: str) -> None:
    restart_after_the_transaction_timed_out(room, query)


def test_a_driver_too_slow_for_its_transaction_publishes_nothing(room: Room, query: str) -> None:
    let_a_driver_be_too_slow(room, query)


@pytest.mark.parametrize("step", [Step.UNDECIDED, Step.OPENED, Step.PUBLISHED, Step.DECIDED])
def test_an_older_driver_is_fenced_wherever_it_was(room: Room, query: str, step: Step) -> None:
    overtake_a_driver(room, query, step)


def test_a_fenced_driver_says_why(room: Room, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = room.settings()

    def overtaken(_query: str, _batch: int, step: Step) -> None:
        if step is Step.DECIDED:
            assert room.run(query, 0) == 0

    monkeypatch.setattr("tidemill.spark.sink.publication.reached", overtaken)
    with pytest.raises(DriverReplaced, match="another driver of this query has taken over"):
        publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=2))


def test_an_open_transaction_of_another_query_hides_no_decision(room: Room, query: str) -> None:
    leave_a_transaction_of_another_query_open(room, query, dead=str(uuid.uuid4()))


def test_decision_records_have_the_documented_form(room: Room, query: str) -> None:
    settings = room.settings()
    count = KEPT_DECISIONS + 2
    for batch in range(count):
        publish(settings, query, batch, stage_tasks(settings, query, batch, 2, tasks=2))
    records = [
        (message.key().decode(), message.value())
        for message in committed_messages(room.bootstrap, COMMITS.topic, 1)
        if message.key().decode().startswith(query)
    ]
    assert [key for key, value in records if value is None] == [f"{query}/0", f"{query}/1"]
    assert [key for key, value in records if value is not None] == [f"{query}/{n}" for n in range(count)]
    newest = [json.loads(value) for _, value in records if value is not None][-1]
    assert newest.pop("timestamp_ms") > 1_700_000_000_000
    assert sum(newest.pop("topics")[room.topic].values()) == 2
    assert newest == {"version": 1, "query": query, "batch": count - 1, "records": 2, "tasks": 2}


def test_staged_copies_are_gone_after_the_batch(room: Room, query: str) -> None:
    settings = room.settings(**STAGED_IN_TOPIC)
    staged = stage_tasks(settings, query, 0, ROWS, tasks=6)
    ends = staged_ends(staged)
    assert len(ends) == 4
    publish(settings, query, 0, staged)
    with Cluster(settings.client) as cluster:
        assert cluster.list_offsets(dict.fromkeys(ends, EARLIEST), committed=False) == ends
    assert room.committed() == expected_values(query, [0], ROWS)


def test_staged_data_that_are_lost_fail_the_batch_and_show_nothing(room: Room, query: str) -> None:
    settings = room.settings(**STAGED_IN_TOPIC)
    lost = stage_tasks(settings, query, 0, ROWS, tasks=2)
    publish(settings, str(uuid.uuid4()), 0, lost)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        publish(settings, query, 0, lost)
    assert room.committed() == expected_values(query, [0], ROWS)
    assert all(stable == end for stable, end in room.stable_offsets())


def test_tasks_and_batches_of_one_process_share_their_connections(
    room: Room, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = room.settings(**{"kafka.client.id": query})
    assert publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=2))
    connected: list[str] = []
    connect = Connection.__init__

    def remember(self: Connection, address: str, *rest: Any) -> None:
        connected.append(address)
        connect(self, address, *rest)

    monkeypatch.setattr(Connection, "__init__", remember)
    asked: list[str] = []
    find = Cluster._find_coordinator
    monkeypatch.setattr(
        Cluster, "_find_coordinator", lambda self, key, kind: (asked.append(key), find(self, key, kind))[1]
    )
    for batch in (1, 2):
        assert publish(settings, query, batch, stage_tasks(settings, query, batch, ROWS, tasks=2))
    assert (connected, asked) == ([], [])
    assert room.committed() == expected_values(query, [0, 1, 2], ROWS)


def test_a_leader_is_looked_up_while_batches_are_under_way(room: Room) -> None:
    """The first batch to the second topic asks on the connection that owes answers for the first."""
    targets = [TopicPartition(Broker(room.bootstrap).topic(), 0) for _ in range(2)]
    with Cluster(room.settings().client) as cluster:
        delivery = Delivery(-1, None, 20_000)
        publisher = Publisher(cluster, idempotent_producer(cluster, 20_000), delivery)
        for target in targets:
            for _ in range(4):
                publisher.send(Batch(target, 100, data_batch(100, size=200)))
        publisher.flush()
        ends = cluster.list_offsets(dict.fromkeys(targets, LATEST), committed=False)
    assert ends == dict.fromkeys(targets, 400)
