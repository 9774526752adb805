"""A chain of drivers, each killed by SIGKILL at another step of the lake commit, and one that ends the work.

A driver takes seconds to start, so one chain works through all steps: each driver is killed at the second occurrence
of its step, and the next one takes over from the checkpoint. Batches are small, so that the drivers die in different
batches.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline_process import ROOT, driver_environment
from pipelines import send

DRIVER = ROOT / "tests" / "support" / "killed_driver.py"
DRIVER_SECONDS = 240
MESSAGES = 60
GOOD_IDS = [number for number in range(MESSAGES) if number % 5]
BAD_VALUES = sorted(b"bad %d" % number for number in range(0, MESSAGES, 5))
STEPS = ("batch-begun", "table-ready", "files-written", "committed", "rows-done", "dead-letters-done")
MANIFEST_STEPS = ("manifest-written", "one-file-moved")

CONFIGURATION = """
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
{table}
[dead_letters]
{dead_letters}
[progress]
report = false
[spark]
spark.sql.shuffle.partitions = 1
spark.driver.memory = "1g"
"""


def send_good_and_bad(bootstrap: str, topic: str) -> None:
    """Every fifth message is none of JSON; the topic has two partitions."""
    messages = [
        {"partition": number % 2, "value": {"id": number} if number % 5 else b"bad %d" % number}
        for number in range(MESSAGES)
    ]
    send(bootstrap, topic, messages)


def drive(config: Path, state: Path, deaths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DRIVER), str(config), str(state), deaths],
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS,
        check=False,
    )


def kill_at_every_step(config: Path, steps: Sequence[str]) -> None:
    """Afterwards the pipeline has read everything."""
    state = config.parent / "state"
    for step in steps:
        ended = drive(config, state, f'{{"{step}": 2}}')
        assert ended.returncode == -signal.SIGKILL, (step, ended.stderr[-3000:])
    ended = drive(config, state, "{}")
    assert ended.returncode == 0, ended.stderr[-3000:]
