"""A standalone Spark cluster on this machine, from PyPI's pyspark alone: a master and some workers.

    with StandaloneCluster(workers=2) as cluster:
        cluster.master                          # "spark://127.0.0.1:40123"
        cluster.workers[0].pid                  # processes of this machine, to look at or to kill

PyPI's pyspark has no `sbin`, but it has `spark-class` and all jars, and that is enough. Executors run the
Python of this environment: it has the same path for all of them, because they are on the same machine.
Everything a worker writes goes below one folder (`-d`), which is removed at the end.

For a cluster of several machines see docs/guides/spark-cluster.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
HOST = "127.0.0.1"
START_SECONDS = 60.0


class ClusterFailed(Exception):
    """A process of the cluster did not come up; the end of its output is part of the sentence."""


class StandaloneCluster:
    """Processes of one cluster; a context manager that ends what it started."""

    def __init__(
        self,
        workers: int = 2,
        cores_per_worker: int = 1,
        memory_per_worker: str = "1g",
        port: int | None = None,
    ) -> None:
        self._count, self._cores, self._memory = workers, cores_per_worker, memory_per_worker
        self._port = port or free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-spark-cluster-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        return self._processes[1:]

    def __enter__(self) -> Self:
        try:
            self._start_master()
            for number in range(self._count):
                self._start_worker(number)
            for number in range(self._count):
                self._wait_for(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(START_SECONDS / 4)
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_master(self) -> None:
        options = ["--host", HOST, "--port", str(self._port), "--webui-port", str(free_port())]
        self._start("master", MASTER, options)
        self._wait_for("master", "I have been elected leader")

    def _start_worker(self, number: int) -> None:
        options = [
            "--host",
            HOST,
            "--webui-port",
            str(free_port()),
            "-c",
            str(self._cores),
            "-m",
            self._memory,
        ]
        self._start(
            f"worker-{number}", WORKER, [*options, "-d", str(self._folder / f"work-{number}"), self.master]
        )

    def _start(self, name: str, main: str, options: list[str]) -> None:
        home = spark_home()
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(home / "bin" / "spark-class"), main, *options]
            started = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )
        self._processes.append(started)

    def _wait_for(self, name: str, words: str) -> None:
        log, deadline = self._folder / f"{name}.log", time.monotonic() + START_SECONDS
        while words not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise ClusterFailed(f"{name} did not come up: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)


def spark_home() -> Path:
    """The folder of PyPI's pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


def serve(cluster: StandaloneCluster) -> None:
    """Run until SIGTERM or SIGINT."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with cluster:
        print(f"ready {cluster.master}", flush=True)
        ended.wait()
