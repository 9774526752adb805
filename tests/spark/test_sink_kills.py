"""Spark itself, killed: the driver, its Python workers and the broker, at every step of the exactly-once sink.

`sink_kills` says how. `test_sink_protocol.py` goes through the same steps without Spark, one death at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster_under_test import Cluster
from sink_kills import STEPS, Copies

from tidemill.testing import SubprocessBroker

OwnBroker = Callable[..., SubprocessBroker]


def test_everything_is_copied_once_whoever_is_killed(own_broker: OwnBroker, tmp_path: Path) -> None:
    broker = own_broker()
    copies = Copies(Cluster(broker.bootstrap), tmp_path)
    copies.kill_a_driver_at_every_step()
    for step in STEPS:
        copies.plan.add(2, step, "self")
        copies.plan.add(3, step, "broker")
    copies.produce(batches=2)
    copies.finish(tasks=3, meanwhile=lambda: copies.plan.kill_broker(broker))
    copies.check()
