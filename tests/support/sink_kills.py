"""Spark, killed at the steps of the exactly-once sink: what happens to it and what must be there afterwards.

A driver takes seconds to start, and a query only a moment. So one driver copies the same topic by as many queries as
there are steps; each query comes to a stand at another step of its first batch with rows, one more inside its batch 0;
then the driver is killed, and the next one, with another number of tasks, has to finish what all of them left behind.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from cluster_under_test import Cluster
from confluent_kafka import Producer
from crash_plan import CrashPlan
from sink_crashes import committed_values
from sink_query import TAKEN, Copy, start_copy
from waiting import wait_until

from tidemill.spark.sink.steps import Step

STEPS = [step for step in Step if step is not Step.SKIPPED]
PARTITIONS = 3
BATCH_ROWS = 40
SECONDS = 600.0


class Copies:
    """The input, the targets, and the drivers one after the other."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._bootstrap, self._folder = cluster.bootstrap, folder
        self.plan = CrashPlan(folder / "plan")
        self._source = cluster.topic(partitions=2)
        self._targets = [cluster.topic(partitions=PARTITIONS) for _ in STEPS]
        self._by_hand = cluster.topic(partitions=PARTITIONS)
        self._expected: list[str] = []
        self._log = folder / "driver.log"

    def produce(self, batches: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        first = len(self._expected)
        values = [f"message-{number}" for number in range(first, first + batches * BATCH_ROWS)]
        for value in values:
            producer.produce(self._source, key=value, value=value)
        assert producer.flush(30) == 0
        self._expected += values

    def start(self, tasks: int, until_empty: bool) -> subprocess.Popen[bytes]:
        place = (str(self._folder), str(self.plan.folder))
        topics = (self._bootstrap, self._source, self._targets, self._by_hand)
        return start_copy(Copy(*topics, *place, BATCH_ROWS, tasks, until_empty), self._log)

    def kill_a_driver_at_every_step(self) -> None:
        """The queries begin at the end of the input, so what is produced after their batch 0 is theirs."""
        self.plan.add(0, TAKEN, "pause")
        for step in STEPS:
            self.plan.add(1, step, "pause")
        driver = self.start(tasks=2, until_empty=False)
        started = [self._folder / "checkpoints" / target / "commits" / "0" for target in self._targets]
        held = f"0.{TAKEN}.pause"
        self._wait(driver, lambda: held not in self.plan.pending and all(path.exists() for path in started))
        self.produce(batches=1)
        self._wait(driver, lambda: not self.plan.pending)
        self.plan.kill_driver()
        assert driver.wait(30) == -9

    def _wait(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            assert driver.poll() is None, self.tail()
            return condition()

        wait_until(holds, f"{self.plan.pending}", SECONDS)

    def finish(self, tasks: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """A driver that ends when everything is copied, whoever dies."""
        driver = self.start(tasks, until_empty=True)
        deadline = time.monotonic() + SECONDS
        while driver.poll() is None:
            assert time.monotonic() < deadline, self.tail()
            meanwhile()
            time.sleep(0.02)
        assert driver.returncode == 0, self.tail()
        assert self.plan.pending == []

    def check(self) -> None:
        """A reader of committed data finds the input, each message once, in every target."""
        for target in [*self._targets, self._by_hand]:
            assert committed_values(self._bootstrap, target, PARTITIONS) == sorted(self._expected), target

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:] if self._log.exists() else ""
