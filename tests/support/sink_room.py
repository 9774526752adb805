"""A place where drivers of the sink write and die: the scenarios that Tidemill and Apache Kafka must both survive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crash_plan import CrashPlan
from sink_crashes import Drivers, committed_values, expected_values, sink_settings
from waiting import wait_until

from tidemill.spark.client.cluster import LATEST, Cluster, TopicPartition
from tidemill.spark.sink.steps import Step

PARTITIONS = 3
ROWS = 60
KILLED, FAILED = -9, 1
STEPS_OF_A_BATCH = [step for step in Step if step is not Step.SKIPPED]
STAGED_IN_TOPIC = {"stagingInlineBytes": "0"}
QUICK_TRANSACTIONS = {"kafka.transaction.timeout.ms": "3000"}
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""Setting of a broker: it looks for transactions that are too old this often."""


class Room:
    """One target topic, the broker, and drivers that write to it."""

    def __init__(self, bootstrap: str, topic: str, drivers: Drivers, folder: Path) -> None:
        """The topic has `PARTITIONS` partitions and belongs to this test alone."""
        self.bootstrap, self.topic, self.drivers = bootstrap, topic, drivers
        self.plan = CrashPlan(folder / "plan")
        self.plan.folder.mkdir()

    def start(self, query: str, batch: int, tasks: int = 2, **options: str) -> int:
        """A driver that does this batch; its process id."""
        place = (self.plan.folder, self.bootstrap, self.topic)
        return self.drivers.start(*place, query, batch, ROWS, tasks, options)

    def run(self, query: str, batch: int, tasks: int = 2, **options: str) -> int:
        """The exit code of a driver that does this batch."""
        return self.drivers.wait(self.start(query, batch, tasks, **options))

    def settings(self, **options: str) -> Any:
        return sink_settings(self.bootstrap, self.topic, **options)

    def committed(self) -> list[str]:
        return committed_values(self.bootstrap, self.topic, PARTITIONS)

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
        wait_until(lambda: self.plan.is_paused, "the pause")

    def resume(self) -> None:
        self.plan.resume()


# -- scenarios ------------------------------------------------------------------------------------------------


def kill_the_driver_at_every_step(room: Room, query: str, options: dict[str, str]) -> None:
    """Each batch once with two tasks, killed, and then with three."""
    for batch, step in enumerate(STEPS_OF_A_BATCH):
        room.plan.add(batch, step, "self")
        assert room.run(query, batch, tasks=2, **options) == KILLED, step
        assert room.run(query, batch, tasks=3, **options) == 0, step
    assert room.plan.pending == []
    assert room.committed() == expected_values(query, range(len(STEPS_OF_A_BATCH)), ROWS)


def restart_after_the_transaction_timed_out(room: Room, query: str) -> None:
    room.plan.add(0, Step.DECIDED, "self")
    assert room.run(query, 0, **QUICK_TRANSACTIONS) == KILLED
    assert any(stable < end for stable, end in room.stable_offsets())
    room.wait_aborted()
    assert room.committed() == []
    assert room.run(query, 0, tasks=3) == 0
    assert room.run(query, 1) == 0
    assert room.committed() == expected_values(query, [0, 1], ROWS)


def let_a_driver_be_too_slow(room: Room, query: str) -> None:
    """Its transaction is aborted under its hands: nothing may be visible."""
    room.plan.add(0, Step.DECIDED, "pause")
    slow = room.start(query, 0, **QUICK_TRANSACTIONS)
    room.wait_paused()
    room.wait_aborted()
    room.resume()
    assert room.drivers.wait(slow) == FAILED
    assert room.committed() == []
    assert room.run(query, 0) == 0
    assert room.committed() == expected_values(query, [0], ROWS)


def overtake_a_driver(room: Room, query: str, step: Step) -> None:
    """An older driver sleeps at this step while a newer one does its batch."""
    room.plan.add(0, step, "pause")
    zombie = room.start(query, 0)
    room.wait_paused()
    assert room.run(query, 0, tasks=3) == 0
    room.resume()
    assert room.drivers.wait(zombie) == FAILED
    assert room.committed() == expected_values(query, [0], ROWS)


def leave_a_transaction_of_another_query_open(room: Room, query: str, dead: str) -> None:
    """The last stable offset of the decisions stands still, for as long as the dead driver's transaction is open."""
    room.plan.add(0, Step.DECIDED, "self")
    assert room.run(dead, 0) == KILLED
    assert room.run(query, 0) == 0
    assert room.run(query, 0) == 0
    assert room.run(dead, 0) == 0
    assert room.committed() == sorted(expected_values(query, [0], ROWS) + expected_values(dead, [0], ROWS))
