"""A pipeline on a standalone Spark cluster with an executor killed, and a pipeline against Apache Kafka."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from kafka_peer import KafkaPeer
from pipeline_process import PipelineProcess
from pipelines import consume, send, table_rows
from waiting import wait_until

from tidemill.spark.pipeline.cluster import StandaloneCluster

MESSAGES = 4000
ARCHIVE = """
job = "archive"
name = "archive"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_messages_per_batch = {batch}
[value]
format = "json"
columns = {{ id = "bigint" }}
[table]
path = "rows"
[spark]
spark.driver.host = "127.0.0.1"
spark.executor.memory = "512m"
spark.sql.shuffle.partitions = 2
"""
REPLAY = """
job = "replay"
name = "replay"
[source]
bootstrap = "{bootstrap}"
[replay]
topic = "{again}"
filter = "id >= 100"
[table]
path = "rows"
"""


def executors_of(worker: int) -> list[int]:
    """Executors are children of their worker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == worker and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(path.parent.name))
    return found


def test_an_executor_that_is_killed_costs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=4)
    send(cluster.bootstrap, topic, [{"partition": n % 4, "value": {"id": n}} for n in range(MESSAGES)])
    given = ARCHIVE.format(bootstrap=cluster.bootstrap, topic=topic, batch=MESSAGES // 20)
    with StandaloneCluster(workers=2) as spark_cluster:
        pipeline = PipelineProcess(tmp_path, "archive", given, spark_cluster.master)
        pipeline.start()
        pipeline.wait_for_batches(2)
        worker = spark_cluster.workers[0].pid
        (first,) = executors_of(worker)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: executors_of(worker) not in ([], [first]), "another executor", 60)
        assert pipeline.status()["queries"]["archive"]["messages"] < MESSAGES, (
            "killed too late to say anything"
        )
        pipeline.finish()
    assert sorted(row[0] for row in table_rows(tmp_path / "rows", "id")) == list(range(MESSAGES))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with KafkaPeer() as peer:
        yield Cluster(peer.bootstrap)


def test_a_table_from_kafka_and_back(kafka: Cluster, tmp_path: Path) -> None:
    topic, again = kafka.topic(partitions=2), kafka.topic()
    send(kafka.bootstrap, topic, [{"key": str(n), "value": {"id": n}} for n in range(200)])
    given = ARCHIVE.format(bootstrap=kafka.bootstrap, topic=topic, batch=60)
    PipelineProcess(tmp_path, "archive", given, "local[2]").run()
    assert sorted(row[0] for row in table_rows(tmp_path / "rows", "id")) == list(range(200))
    given = REPLAY.format(bootstrap=kafka.bootstrap, again=again)
    PipelineProcess(tmp_path, "replay", given, "local[2]").run()
    found = consume(kafka.bootstrap, again, 100)
    assert sorted(json.loads(message.value())["id"] for message in found) == list(range(100, 200))
