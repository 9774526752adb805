"""kill -9 of a driver at every step of the lake commit: the tables hold what the topic holds, once.

A driver takes seconds to start, so one chain of drivers works through all steps: each is killed at the next step, and
the one after it takes over from the checkpoint. Batches are small, so that every driver dies in another batch.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from cluster_under_test import Cluster
from pipeline_process import driver_environment
from pipelines import send, table_rows
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "support" / "killed_driver.py"
MESSAGES = 60
DRIVER_SECONDS = 120
DELTA_STEPS = ("table-ready", "files-written", "committed", "rows-done", "dead-letters-done")


def drive(config: Path, state: Path, deaths: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DRIVER), str(config), str(state), deaths]
    return subprocess.run(
        command,
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS,
        check=False,
    )


def configuration(folder: Path, bootstrap: str, topic: str) -> Path:
    path = folder / "job.toml"
    path.write_text(f"""
job = "archive"
name = "killed"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_messages_per_batch = 8
[value]
format = "json"
columns = {{ id = "bigint" }}
[table]
path = "rows"
[dead_letters]
path = "bad"
[progress]
report = false
[spark]
spark.sql.shuffle.partitions = 1
spark.driver.memory = "1g"
""")
    return path


def test_every_step_survives_the_death_of_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=2)
    messages = [
        {"partition": number % 2, "value": b"bad %d" % number if number % 5 == 0 else {"id": number}}
        for number in range(MESSAGES)
    ]
    send(cluster.bootstrap, topic, messages)
    config, state = configuration(tmp_path, cluster.bootstrap, topic), tmp_path / "state"
    for step in DELTA_STEPS:
        ended = drive(config, state, f'{{"{step}": 2}}')
        assert ended.returncode == -signal.SIGKILL, (step, ended.stderr[-3000:])
    ended = drive(config, state, "{}")
    assert ended.returncode == 0, ended.stderr[-3000:]
    expected = [number for number in range(MESSAGES) if number % 5]
    assert sorted(row[0] for row in table_rows(tmp_path / "rows", "id")) == expected
    bad = sorted(row[0] for row in table_rows(tmp_path / "bad", "value"))
    assert bad == sorted(b"bad %d" % number for number in range(0, MESSAGES, 5))


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
