"""A job on pyspark 4.2, and a job with a shipped environment on a cluster that the command line started."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from official_connector import connector_python
from pipeline_process import PipelineProcess, driver_environment
from pipelines import send, table_rows
from spark_sessions import ROOT

from tidemill.spark.pipeline.cluster import free_port

MESSAGES = 60
HEADERS = [("trace", b"\x00\xff")]
ARCHIVE = """
job = "archive"
name = "archive"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_messages_per_batch = 25
[value]
format = "json"
columns = {{ id = "bigint" }}
[table]
path = "rows"
[dead_letters]
path = "bad"
[spark]
spark.driver.host = "127.0.0.1"
spark.executor.memory = "512m"
"""
VERSION = "import pyspark; print(pyspark.__version__)"


def archive(cluster: Cluster) -> str:
    """A topic with messages, two of them bad, and the pipeline that archives it."""
    topic = cluster.topic(partitions=2)
    messages = [{"key": str(n), "value": {"id": n}, "headers": HEADERS} for n in range(MESSAGES)]
    send(cluster.bootstrap, topic, [*messages, {"value": b"noise"}, {"value": None}])
    return ARCHIVE.format(bootstrap=cluster.bootstrap, topic=topic)


def check(folder: Path, pipeline: PipelineProcess) -> None:
    headers = [{"key": key, "value": value} for key, value in HEADERS]
    assert sorted(table_rows(folder / "rows", "id", "_headers")) == [(n, headers) for n in range(MESSAGES)]
    assert table_rows(folder / "bad", "reason") == [("no-value",), ("not-json",)]
    facts = pipeline.status()["queries"]["archive"]
    assert (facts["messages"], facts["rows"], facts["bad_rows"], facts["behind"]) == (
        MESSAGES + 2,
        MESSAGES,
        2,
        0,
    )


def test_archive_on_pyspark_4_2(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = connector_python()
    shown = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("4.2.")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    given = archive(cluster)
    pipeline = PipelineProcess(tmp_path, "archive", given, "local[2]", python=python)
    pipeline.run()
    check(tmp_path, pipeline)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[str]:
    """What `make spark-cluster` runs, on another port; stopped as Ctrl-C stops it, with nothing left behind."""
    port, folder = free_port(), tmp_path / "temporary"
    folder.mkdir()
    planned = ["make", "--no-print-directory", "--dry-run", "spark-cluster", f"SPARK_PORT={port}"]
    lines = subprocess.run(planned, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    program, *arguments = shlex.split(lines[-1].removeprefix("exec "))
    assert program.endswith("/tidemill")
    command = [sys.executable, "-m", "tidemill.cli.main", *arguments]
    environment = driver_environment() | {"TMPDIR": str(folder)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready spark://127.0.0.1:{port}\n"
        yield f"spark://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
    assert list(folder.glob("tidemill-spark-cluster-*")) == []
    assert processes_with(f"127.0.0.1:{port}") == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def processes_with(words: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


def packed_environment(folder: Path) -> Path:
    """A virtual environment that finds the packages of this one, and tells where it was run from."""
    venv.create(folder / "environment", symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder / "environment")})
    tell = f"import sys; open({str(folder / 'used')!r}, 'a').write(sys.prefix + '\\n')"
    lines = [str(ROOT / "src"), sysconfig.get_path("purelib"), tell]
    (Path(packages) / "packages.pth").write_text("\n".join(lines) + "\n")
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "environment", ".")
    return archive


def test_a_cluster_by_the_command_line_runs_a_job_in_a_shipped_environment(
    cluster: Cluster, spark_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    environment = packed_environment(tmp_path)
    given = archive(cluster)
    pipeline = PipelineProcess(tmp_path, "archive", given, spark_cluster, "--environment", str(environment))
    pipeline.run()
    check(tmp_path, pipeline)
    used = set((tmp_path / "used").read_text().split())
    assert used, "nobody ran the environment that was shipped"
    assert all(f"{tmp_path}/temporary/tidemill-spark-cluster-" in prefix for prefix in used), used
