"""kill -9 of driver, Python workers and broker at every step of the lake commit, and signals that end a pipeline."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from lake_kills import BAD_VALUES, GOOD_IDS, STEPS, Archives
from pipeline_process import PipelineProcess
from pipelines import send, table_rows
from spark_sessions import JAVA_OPTIONS

from tidemill.spark.pipeline.runner import stopping_on_signals
from tidemill.testing import SubprocessBroker

TABLES = {"table": 'path = "rows"', "dead_letters": 'path = "bad"'}
CONTINUOUS = """
job = "archive"
name = "archive"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
[value]
format = "json"
columns = {{ id = "bigint" }}
[table]
path = "rows"
[trigger]
mode = "continuous"
interval_seconds = 0
[progress]
report = false
[spark]
spark.driver.memory = "1g"
spark.driver.extraJavaOptions = "{java}"
"""


def test_every_step_survives_the_death_of_anybody(
    own_broker: Callable[..., SubprocessBroker], tmp_path: Path
) -> None:
    archives = Archives(own_broker(), tmp_path, STEPS, lambda _: TABLES)
    archives.kill_everybody_at_every_step()
    for folder in archives.folders:
        assert sorted(row[0] for row in table_rows(folder / "rows", "id")) == GOOD_IDS
        assert sorted(row[0] for row in table_rows(folder / "bad", "value")) == BAD_VALUES


def test_an_interrupt_from_the_keyboard_finishes_the_batch_that_runs(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The stream is continuous; Spark's processes get the signal too, and the pipeline ends by itself all the same."""
    send(cluster.bootstrap, topic, [{"value": {"id": each}} for each in range(20)])
    given = CONTINUOUS.format(bootstrap=cluster.bootstrap, topic=topic, java=JAVA_OPTIONS)
    pipeline = PipelineProcess(tmp_path, "archive", given, "local[2]")
    pipeline.start()
    pipeline.wait_for_batches(1)
    pipeline.signal_group(signal.SIGINT)
    pipeline.finish()
    facts = pipeline.status()
    found = sorted(row[0] for row in table_rows(tmp_path / "rows", "id"))
    assert facts["state"] == "stopped"
    assert found == list(range(facts["queries"]["archive"]["rows"]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_asks_for_a_stop_and_a_second_interrupt_insists(number: int) -> None:
    stop = threading.Event()
    before = signal.getsignal(number)
    with stopping_on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
    assert signal.getsignal(number) is before
