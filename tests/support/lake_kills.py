"""Pipelines, killed at the steps of the lake commit: what happens to them and what must be there afterwards.

A driver takes seconds to start, and a pipeline only a moment. So one driver archives the same topic into as many tables
as there are steps; each pipeline comes to a stand at another step; then the driver is killed. The next one finishes
what all of them left behind, while its Python workers and the broker are killed at every step too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster_under_test import Cluster
from crash_plan import CrashPlan
from pipelines import send
from waiting import wait_until

from tidemill.spark.lake import steps
from tidemill.testing import SubprocessBroker

DRIVER = Path(__file__).resolve().parent / "lake_driver.py"
DRIVER_SECONDS = 600.0
MESSAGES = 40
GOOD_IDS = [number for number in range(MESSAGES) if number % 5]
BAD_VALUES = sorted(b"bad %d" % number for number in range(0, MESSAGES, 5))
PARQUET_STEPS = steps.STEPS
STEPS = [step for step in PARQUET_STEPS if step not in ("manifest-written", "one-file-moved")]
TASK_STEPS = ("file-opened", "file-closed")

Tables = Callable[[Path], dict[str, str]]
CONFIGURATION = """
job = "archive"
name = "{name}"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_messages_per_batch = 10
[value]
format = "json"
columns = {{ id = "bigint" }}
[table]
{table}
[dead_letters]
{dead_letters}
[progress]
report = false
"""


def send_good_and_bad(bootstrap: str, topic: str) -> None:
    """Every fifth message is none of JSON; the topic has two partitions."""
    messages = [
        {"partition": number % 2, "value": {"id": number} if number % 5 else b"bad %d" % number}
        for number in range(MESSAGES)
    ]
    send(bootstrap, topic, messages)


class Archives:
    """One pipeline for each step, each in a folder of its own below `folder`."""

    def __init__(
        self,
        broker: SubprocessBroker,
        folder: Path,
        names: Sequence[str],
        tables: Tables,
        configuration: str = CONFIGURATION,
        fill: Callable[[str, str], None] = send_good_and_bad,
    ) -> None:
        """`tables` gives the sections `table` and `dead_letters` of the pipeline in a folder, `fill` the topic."""
        self._broker, self._folder, self._steps = broker, folder, names
        self.plan = CrashPlan(folder / "plan")
        self.folders = [folder / f"pipeline-{number}" for number in range(len(names))]
        topic = Cluster(broker.bootstrap).topic(partitions=2)
        fill(broker.bootstrap, topic)
        for pipeline in self.folders:
            pipeline.mkdir()
            facts = {"name": pipeline.name, "bootstrap": broker.bootstrap, "topic": topic}
            (pipeline / "job.toml").write_text(configuration.format(**facts, **tables(pipeline)))
        self._log = folder / "driver.log"

    def kill_everybody_at_every_step(self) -> None:
        """Afterwards everything is archived."""
        self._kill_a_driver()
        for step in self._steps:
            self.plan.add(1, step, "self" if step in TASK_STEPS else "workers")
            self.plan.add(2, step, "broker")
        driver = self._start("local[2,4]")
        self._wait(driver, lambda: driver.poll() is not None)
        assert driver.returncode == 0, self._tail()
        assert self.plan.pending == [], self._tail()

    def _kill_a_driver(self) -> None:
        """Each step is reached for the second time: some tables are there by then, some batches are done. The tasks
        that stand still leave two for the others."""
        for step in self._steps:
            self.plan.add(2, step, "pause")
        driver = self._start(f"local[{len(TASK_STEPS) + 2},4]")
        self._wait(driver, lambda: not self.plan.pending)
        self.plan.kill_driver()
        assert driver.wait(30) == -9

    def _start(self, master: str) -> subprocess.Popen[bytes]:
        configs = [str(pipeline / "job.toml") for pipeline in self.folders]
        folders = [str(self.plan.folder), str(self._folder / "state")]
        command = [sys.executable, str(DRIVER), master, *folders, *configs]
        environment = self.plan.environment() | {"SPARK_LOCAL_DIRS": str(self._folder)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _wait(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.plan.kill_broker(self._broker)
            has_ended = driver.poll() is not None
            assert condition() or not has_ended, self._tail()
            return condition()

        wait_until(holds, "the end of the driver", DRIVER_SECONDS)

    def _tail(self) -> str:
        return f"{self.plan.pending} {self._log.read_text(errors='replace')[-6000:]}"
