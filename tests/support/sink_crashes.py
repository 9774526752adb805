"""Drivers of the sink without Spark, each a process that dies where its `CrashPlan` says, and what readers see then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crash_plan import CrashPlan

READ_SECONDS = 60.0

# -- a driver without Spark: stages and publishes one batch, in a process of its own -------------------------------


def values_of(query: str, batch: int, rows: int) -> list[str]:
    return [f"{query}/{batch}/{number}" for number in range(rows)]


def sink_settings(bootstrap: str, topic: str, **options: str) -> Any:
    from pyspark.sql import types

    from tidemill.spark.sink.settings import read_settings

    given = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "kafka.request.timeout.ms": "5000",
    } | options
    schema = types.StructType().add("key", types.StringType()).add("value", types.StringType())
    return read_settings(schema, given, overwrite=False, is_stream=True)


def stage_tasks(settings: Any, query: str, batch: int, rows: int, tasks: int) -> list[Any]:
    """What the tasks of a batch return, its rows dealt out among them."""
    import pyarrow as pa

    from tidemill.spark.sink.staging import Task
    from tidemill.spark.sink.tasks import TaskFacts, write_task

    values = values_of(query, batch, rows)
    staged = []
    for task in range(tasks):
        mine = values[task::tasks]
        arrow = pa.RecordBatch.from_pydict({"key": mine, "value": mine})
        staged.append(write_task(settings, [arrow], query, TaskFacts(Task(task, 0), query, batch)))
    return staged


def drive(
    plan: Path,
    bootstrap: str,
    topic: str,
    query: str,
    batch: int,
    rows: int,
    tasks: int,
    options: dict[str, str],
) -> None:
    """One batch of a query from rows to commit."""
    from tidemill.spark.sink.publication import publish

    CrashPlan(plan).install()
    settings = sink_settings(bootstrap, topic, **options)
    publish(settings, query, batch, stage_tasks(settings, query, batch, rows, tasks))


class Drivers:
    """Driver processes that are there at once: forked from a process that has everything imported.

    The server is this module run by itself; it reads a line of JSON for each driver to start or to wait for.
    """

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *arguments: Any) -> int:
        """`drive` in a new process; its id."""
        return self._ask({"drive": [str(arguments[0]), *arguments[1:]]})

    def wait(self, pid: int) -> int:
        """The exit code of a driver, negative when a signal ended it."""
        return self._ask({"wait": pid})

    def _ask(self, question: dict[str, Any]) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(question), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()


def serve() -> None:
    import pyarrow as pa
    from pyspark.sql import types  # noqa: F401

    import tidemill.spark.sink.publication
    import tidemill.spark.sink.tasks  # noqa: F401

    pa.RecordBatch.from_pydict({"value": ["the first one imports pandas"]})
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            print(os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _drive_and_exit(question["drive"])
        print(pid, flush=True)


def _drive_and_exit(arguments: list[Any]) -> None:
    try:
        drive(Path(arguments[0]), *arguments[1:])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# -- what readers see ---------------------------------------------------------------------------------------------


def committed_values(bootstrap: str, topic: str, partitions: int) -> list[str]:
    """Every value a reader of committed data finds, sorted."""
    return sorted(
        (message.value() or b"").decode() for message in committed_messages(bootstrap, topic, partitions)
    )


def committed_messages(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "sink-tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(READ_SECONDS)
        assert message is not None, f"{topic} came to no end"
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return found


def expected_values(query: str, batches: Sequence[int], rows: int) -> list[str]:
    return sorted(value for batch in batches for value in values_of(query, batch, rows))


if __name__ == "__main__":
    serve()
