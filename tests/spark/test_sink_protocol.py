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
from sink_crashes import (
    CrashPlan,
    Drivers,
    committed_messages,
    committed_values,
    expected_values,
    sink_settings,
    stage_tasks,
)
from waiting import wait_until

from tidemill.spark.client.cluster import EARLIEST, LATEST, BrokerError, Cluster, TopicPartition
from tidemill.spark.sink.decisions import KEPT_DECISIONS
from tidemill.spark.sink.publication import DriverReplaced, publish
from tidemill.spark.sink.staging import staged_ends
from tidemill.spark.sink.steps import Step
from tidemill.spark.sink.topics import COMMITS
from tidemill.testing import SubprocessBroker

PARTITIONS = 3
ROWS = 60
KILLED, FAILED = -9, 1
STEPS_OF_A_BATCH = [step for step in Step if step is not Step.SKIPPED]
STAGED_IN_TOPIC = {"stagingInlineBytes": "0"}
QUICK_TRANSACTIONS = {"kafka.transaction.timeout.ms": "1000"}
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="module")
def broker() -> Iterator[SubprocessBroker]:
    """A broker that these tests may kill."""
    with SubprocessBroker(settings=QUICK_TIMEOUTS) as running:
        yield running


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


class Room:
    """One target topic, the broker, and drivers that write to it."""

    def __init__(self, broker: SubprocessBroker, drivers: Drivers, plan: CrashPlan) -> None:
        self.broker, self.drivers, self.plan = broker, drivers, plan
        self.topic = broker.create_topic(f"target-{uuid.uuid4().hex[:8]}", partitions=PARTITIONS)

    def start(self, query: str, batch: int, tasks: int = 2, **options: str) -> int:
        """A driver that does this batch; its process id."""
        place = (self.plan.folder, self.broker.bootstrap, self.topic)
        return self.drivers.start(*place, query, batch, ROWS, tasks, options)

    def run(self, query: str, batch: int, tasks: int = 2, **options: str) -> int:
        """The exit code of a driver that does this batch."""
        return self.drivers.wait(self.start(query, batch, tasks, **options))

    def settings(self, **options: str) -> Any:
        return sink_settings(self.broker.bootstrap, self.topic, **options)

    def committed(self) -> list[str]:
        return committed_values(self.broker.bootstrap, self.topic, PARTITIONS)

    def stable_offsets(self) -> list[tuple[int, int]]:
        """Last stable offset and high watermark of each partition."""
        asked = {TopicPartition(self.topic, number): LATEST for number in range(PARTITIONS)}
        with Cluster(self.settings().client) as cluster:
            stable = cluster.list_offsets(asked, committed=True)
            ends = cluster.list_offsets(asked, committed=False)
        return [(stable[where], ends[where]) for where in asked]

    def wait_aborted(self) -> None:
        wait_until(
            lambda: all(stable == end > 0 for stable, end in self.stable_offsets()),
            "the abort of the transaction",
        )

    def wait_paused(self) -> None:
        wait_until(lambda: (self.plan.folder / "paused").exists(), "the pause")

    def resume(self) -> None:
        (self.plan.folder / "resume").touch()


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    found = Drivers()
    yield found
    found.close()


@pytest.fixture
def room(broker: SubprocessBroker, drivers: Drivers, tmp_path: Path) -> Room:
    (tmp_path / "plan").mkdir()
    return Room(broker, drivers, CrashPlan(tmp_path / "plan"))


@pytest.mark.parametrize("options", [STAGED_IN_TOPIC, {}], ids=["staged", "inline"])
def test_a_driver_killed_at_any_step_and_restarted_with_other_tasks(
    room: Room, query: str, options: dict[str, str]
) -> None:
    for batch, step in enumerate(STEPS_OF_A_BATCH):
        room.plan.add(batch, step, "self")
        assert room.run(query, batch, tasks=2, **options) == KILLED, step
        assert room.run(query, batch, tasks=3, **options) == 0, step
    assert room.plan.pending == []
    assert room.committed() == expected_values(query, range(len(STEPS_OF_A_BATCH)), ROWS)


def test_a_broker_killed_at_any_step(room: Room, query: str) -> None:
    for batch, step in enumerate(STEPS_OF_A_BATCH):
        (room.plan.folder / "broker.pid").write_text(str(room.broker.pid))
        room.plan.add(batch, step, "broker")
        driver = room.start(query, batch, **STAGED_IN_TOPIC)
        wait_until(lambda: not room.broker.is_running, f"the broker killed at {step}")
        room.broker.restart()
        assert room.drivers.wait(driver) == 0, step
    assert room.committed() == expected_values(query, range(len(STEPS_OF_A_BATCH)), ROWS)


def test_a_batch_that_is_run_again_is_skipped(room: Room, query: str) -> None:
    settings = room.settings()
    assert publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=2)) is True
    assert publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=5)) is False
    assert room.committed() == expected_values(query, [0], ROWS)


def test_a_restart_after_the_transaction_timed_out(room: Room, query: str) -> None:
    room.plan.add(0, Step.DECIDED, "self")
    assert room.run(query, 0, **QUICK_TRANSACTIONS) == KILLED
    assert any(stable < end for stable, end in room.stable_offsets())
    room.wait_aborted()
    assert room.committed() == []
    assert room.run(query, 0, tasks=3, **QUICK_TRANSACTIONS) == 0
    assert room.run(query, 1, **QUICK_TRANSACTIONS) == 0
    assert room.committed() == expected_values(query, [0, 1], ROWS)


def test_a_driver_too_slow_for_its_transaction_publishes_nothing(room: Room, query: str) -> None:
    room.plan.add(0, Step.DECIDED, "pause")
    slow = room.start(query, 0, **QUICK_TRANSACTIONS)
    room.wait_paused()
    room.wait_aborted()
    room.resume()
    assert room.drivers.wait(slow) == FAILED
    assert room.committed() == []
    assert room.run(query, 0) == 0
    assert room.committed() == expected_values(query, [0], ROWS)


@pytest.mark.parametrize("step", [Step.UNDECIDED, Step.OPENED, Step.PUBLISHED, Step.DECIDED])
def test_an_older_driver_is_fenced_wherever_it_was(room: Room, query: str, step: Step) -> None:
    room.plan.add(0, step, "pause")
    zombie = room.start(query, 0)
    room.wait_paused()
    assert room.run(query, 0, tasks=3) == 0
    room.resume()
    assert room.drivers.wait(zombie) == FAILED
    assert room.committed() == expected_values(query, [0], ROWS)


def test_a_fenced_driver_says_why(room: Room, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = room.settings()

    def overtaken(_query: str, _batch: int, step: Step) -> None:
        if step is Step.DECIDED:
            assert room.run(query, 0) == 0

    monkeypatch.setattr("tidemill.spark.sink.publication.reached", overtaken)
    with pytest.raises(DriverReplaced, match="another driver of this query has taken over"):
        publish(settings, query, 0, stage_tasks(settings, query, 0, ROWS, tasks=2))


def test_an_open_transaction_of_another_query_hides_no_decision(room: Room, query: str) -> None:
    """The last stable offset of the decisions stands still, for as long as the dead driver's transaction is open."""
    dead = str(uuid.uuid4())
    room.plan.add(0, Step.DECIDED, "self")
    assert room.run(dead, 0) == KILLED
    assert room.run(query, 0) == 0
    assert room.run(query, 0) == 0
    assert room.run(dead, 0) == 0
    assert room.committed() == sorted(expected_values(query, [0], ROWS) + expected_values(dead, [0], ROWS))


def test_decision_records_have_the_documented_form(room: Room, query: str) -> None:
    settings = room.settings()
    count = KEPT_DECISIONS + 2
    for batch in range(count):
        publish(settings, query, batch, stage_tasks(settings, query, batch, 2, tasks=2))
    records = [
        (message.key().decode(), message.value())
        for message in committed_messages(room.broker.bootstrap, COMMITS.topic, 1)
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
