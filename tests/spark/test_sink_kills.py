"""Spark itself, killed: the driver, its Python workers and the broker, at the steps of the exactly-once sink.

One streaming query copies a topic, from `latest`, and is killed and restarted with other numbers of tasks until
everything is copied. In the end a reader of committed data must find the input, each message once. Set
TIDEMILL_SINK_KILLS=all to kill the driver at every step rather than at the telling ones; starting Spark takes seconds.
`test_sink_protocol.py` goes through every step without Spark.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sink_crashes import CrashPlan, committed_values
from sink_query import Copy, start_copy

from tidemill.spark.sink.steps import Step
from tidemill.testing import SubprocessBroker

PARTITIONS = 3
BATCH_ROWS = 40
ALL_STEPS = [step for step in Step if step is not Step.SKIPPED]
TELLING_STEPS = [Step.STAGED, Step.UNDECIDED, Step.DECIDED, Step.COMMITTED]
DRIVER_STEPS = ALL_STEPS if os.environ.get("TIDEMILL_SINK_KILLS") == "all" else TELLING_STEPS
COMMIT_STEPS = ALL_STEPS[2:]
"""Steps of the process in which the driver commits; its death fails the batch, and the query is started again."""
TASK_STEPS = ALL_STEPS[:2]
"""Steps of a task; Spark runs it again."""
SECONDS = 600.0


class Query:
    """The query, its input, and how it is killed."""

    def __init__(self, broker: SubprocessBroker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.plan = CrashPlan(folder / "plan")
        self.plan.folder.mkdir()
        self.source = broker.create_topic("input", partitions=2)
        self.target = broker.create_topic("output", partitions=PARTITIONS)
        self.expected: list[str] = []
        self.log = folder / "driver.log"

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        values = [f"message-{len(self.expected) + number}" for number in range(count)]
        for value in values:
            producer.produce(self.source, key=value, value=value)
        assert producer.flush(30) == 0
        self.expected += values

    def start(self, tasks: int, until_empty: bool) -> subprocess.Popen[bytes]:
        (self.plan.folder / "broker.pid").write_text(str(self.broker.pid))
        place = (self.broker.bootstrap, self.source, self.target, str(self.folder), str(self.plan.folder))
        return start_copy(Copy(*place, BATCH_ROWS, tasks, until_empty), self.log)

    def finish(self, driver: subprocess.Popen[bytes]) -> int:
        """The driver's exit code; a broker that was killed meanwhile is started again."""
        deadline = time.monotonic() + SECONDS
        while driver.poll() is None:
            assert time.monotonic() < deadline, self.tail()
            if not self.broker.is_running:
                self.broker.restart()
                (self.plan.folder / "broker.pid").write_text(str(self.broker.pid))
            time.sleep(0.05)
        return driver.returncode

    def is_begun(self) -> bool:
        """Whether batch 0 is in the checkpoint's log of offsets."""
        return (self.folder / "checkpoint" / "offsets" / "0").exists()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        for pid in (self.plan.folder / "driver.pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        driver.wait(30)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with SubprocessBroker() as broker:
        found = Query(broker, tmp_path)
        yield found


def test_everything_is_copied_once_whoever_is_killed(query: Query) -> None:
    first = query.start(tasks=2, until_empty=False)
    deadline = time.monotonic() + SECONDS
    while not query.is_begun():
        assert first.poll() is None and time.monotonic() < deadline, query.tail()
        time.sleep(0.02)
    query.kill(first)
    batches = 1 + len(DRIVER_STEPS) + len(COMMIT_STEPS) + 2 * len(TASK_STEPS)
    query.produce(batches * BATCH_ROWS)

    batch = 1
    for number, step in enumerate(DRIVER_STEPS):
        query.plan.add(batch + number, step, "driver")
        driver = query.start(tasks=2 + number % 3, until_empty=True)
        assert query.finish(driver) != 0, f"not killed at {step}\n{query.tail()}"
        assert query.plan.pending == [], step
    batch += len(DRIVER_STEPS)
    for number, step in enumerate(COMMIT_STEPS):
        query.plan.add(batch + number, step, "self")
    batch += len(COMMIT_STEPS)
    for number, step in enumerate(TASK_STEPS):
        query.plan.add(batch + 2 * number, step, "self")
        query.plan.add(batch + 2 * number + 1, step, "broker")
    assert query.finish(query.start(tasks=4, until_empty=True)) == 0, query.tail()

    assert query.plan.pending == []
    assert committed_values(query.broker.bootstrap, query.target, PARTITIONS) == sorted(query.expected)
