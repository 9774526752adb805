"""kill -9 of a driver at every step of the lake commit, and a signal that lets it finish its batch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from cluster_under_test import Cluster
from lake_kills import (
    BAD_VALUES,
    CONFIGURATION,
    DRIVER_SECONDS,
    GOOD_IDS,
    STEPS,
    kill_at_every_step,
    send_good_and_bad,
)
from pipeline_process import driver_environment
from pipelines import send, table_rows
from waiting import wait_until


def configuration(folder: Path, bootstrap: str, topic: str) -> Path:
    path = folder / "job.toml"
    table, dead_letters = 'path = "rows"', 'path = "bad"'
    path.write_text(
        CONFIGURATION.format(bootstrap=bootstrap, topic=topic, table=table, dead_letters=dead_letters)
    )
    return path


def test_every_step_survives_the_death_of_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=2)
    send_good_and_bad(cluster.bootstrap, topic)
    kill_at_every_step(configuration(tmp_path, cluster.bootstrap, topic), STEPS)
    assert sorted(row[0] for row in table_rows(tmp_path / "rows", "id")) == GOOD_IDS
    assert sorted(row[0] for row in table_rows(tmp_path / "bad", "value")) == BAD_VALUES


def test_a_signal_finishes_the_batch_that_runs(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """The stream is continuous; after the signal it ends by itself, with exit code 0 and a status that says so."""
    send(cluster.bootstrap, topic, [{"value": {"id": each}} for each in range(20)])
    config, state = configuration(tmp_path, cluster.bootstrap, topic), tmp_path / "state"
    config.write_text(config.read_text() + '[trigger]\nmode = "continuous"\ninterval_seconds = 0\n')
    program = [sys.executable, "-m", "tidemill.cli.main", "pipeline", "run", "archive", "-c", str(config)]
    environment = driver_environment() | {"TIDEMILL_PIPELINES": str(state)}
    process = subprocess.Popen([*program, "--master", "local[2]", "--quiet"], env=environment)
    status = state / "killed" / "status.json"

    def a_batch_is_done() -> bool:
        assert process.poll() is None, "the pipeline ended by itself"
        return status.exists() and bool(json.loads(status.read_text())["queries"])

    try:
        wait_until(a_batch_is_done, "a first batch", DRIVER_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DRIVER_SECONDS) == 0
    finally:
        process.kill()
    facts = json.loads(status.read_text())
    found = sorted(row[0] for row in table_rows(tmp_path / "rows", "id"))
    assert facts["state"] == "stopped"
    assert found == list(range(facts["queries"]["archive"]["rows"]))
