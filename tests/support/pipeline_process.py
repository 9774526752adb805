"""`tidemill pipeline run` as users run it: a process of its own, a TOML file, a folder for its state.

pipeline = PipelineProcess(tmp_path, "archive", ARCHIVE.format(...), master="local[2]")
pipeline.run()                      # to its end, exit code 0
pipeline.start(); pipeline.wait_for_batches(2); ...; pipeline.finish()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spark_sessions import spark_environment
from waiting import wait_until

SECONDS = 240.0


def driver_environment() -> dict[str, str]:
    """Ours, with the sources of this repository before everything that is installed."""
    return {**os.environ, "PYTHONPATH": spark_environment()["PYTHONPATH"]}


class PipelineProcess:
    """One pipeline; `name` in the file must be the job's name."""

    def __init__(
        self,
        folder: Path,
        job: str,
        configuration: str,
        master: str,
        *options: str,
        python: str = sys.executable,
    ) -> None:
        """`options` are further ones of the command; `python` is that of another environment."""
        self._job, self._master, self._options, self._python = job, master, options, python
        self._config, self._state = folder / f"{job}.toml", folder / "state"
        self._config.write_text(configuration)
        self._log = folder / f"{job}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._python, "-m", "tidemill.cli.main", "pipeline", "run", self._job, "--quiet"]
        command += ["-c", str(self._config), "--master", self._master, "--state", str(self._state)]
        command += self._options
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=driver_environment(), stdout=log, stderr=log, start_new_session=True
            )

    def status(self) -> dict[str, Any]:
        path = self._state / self._job / "status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"queries": {}}
        return found

    def wait_for_batches(self, batches: int) -> None:
        def done() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the pipeline ended by itself: {self.log()}"
            return any(facts["batches"] >= batches for facts in self.status()["queries"].values())

        wait_until(done, f"{batches} batches", SECONDS)

    def signal_group(self, number: int) -> None:
        """To the pipeline and every process it started, as a terminal does."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def finish(self) -> None:
        assert self._process is not None
        try:
            assert self._process.wait(SECONDS) == 0, self.log()
        finally:
            self._process.kill()

    def run(self) -> None:
        self.start()
        self.finish()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]
