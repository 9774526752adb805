"""A Spark driver with both connectors: Spark's own (`kafka`) and this project's (`tidemill`), told what to do by lines.

    with ConnectorDriver() as driver:
        driver.rows("kafka", {"kafka.bootstrap.servers": ..., "subscribe": "t"})  # every row, as plain values
        driver.copy("tidemill", {...}, checkpoint)  # values a stream finds, to its end
        driver.write("kafka", {...}, source, checkpoint)  # the rows of a topic into another, by batch or stream

The driver is a process of the environment of `official_connector`, because Spark's own connector needs pyspark 4.2.0.
Started as a program with the jars as its argument, this module is that process: each line of JSON in is a task, each
line of JSON out its result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
Options = dict[str, str]


class ConnectorDriver:
    """The test's side."""

    def __enter__(self) -> Self:
        from official_connector import connector_jars, connector_python

        python = connector_python()
        environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests' / 'support'}"
        command = [python, str(Path(__file__).resolve()), connector_jars()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def rows(self, kind: str, options: Options) -> list[dict[str, Any]]:
        """A batch read: all rows with headers, by partition and offset."""
        found: list[dict[str, Any]] = self._ask({"task": "rows", "format": kind, "options": options})
        return found

    def copy(self, kind: str, options: Options, checkpoint: str) -> list[str]:
        """A stream that ends when it has read what is there: the values of this run."""
        task = {"task": "copy", "format": kind, "options": options, "checkpoint": checkpoint}
        found: list[str] = self._ask(task)
        return found

    def write(self, kind: str, options: Options, source: Options, checkpoint: str | None) -> None:
        """Copy a topic, read by this project's source; with a checkpoint by a stream, else by a batch."""
        task = {"task": "write", "format": kind, "options": options, "source": source}
        self._ask({**task, "checkpoint": checkpoint})

    def _ask(self, task: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]


# -- the process ----------------------------------------------------------------------------------------------


def _rows(spark: SparkSession, task: dict[str, Any]) -> list[Any]:
    frame = spark.read.format(task["format"]).options(includeHeaders="true", **task["options"]).load()
    shown = frame.selectExpr(
        "hex(key) key", "hex(value) value", "topic", "partition", "offset", "unix_millis(timestamp) milliseconds",
        "timestampType", "to_json(headers) headers",
    )  # fmt: skip
    return [row.asDict() for row in shown.orderBy("partition", "offset").collect()]


def _copy(spark: SparkSession, task: dict[str, Any]) -> list[Any]:
    seen: list[str] = []

    def take(frame: DataFrame, _: int) -> None:
        seen.extend(row.value for row in frame.selectExpr("cast(value as string) value").collect())

    frame = spark.readStream.format(task["format"]).options(**task["options"]).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", task["checkpoint"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(value for value in seen if value is not None)


def _write(spark: SparkSession, task: dict[str, Any]) -> None:
    options = {**task["source"], "includeHeaders": "true", "startingOffsets": "earliest"}
    if task["checkpoint"] is None:
        frame = spark.read.format("tidemill").options(**options).load()
        _sent(frame).write.format(task["format"]).options(**task["options"]).mode("append").save()
        return
    frame = spark.readStream.format("tidemill").options(**options).load()
    writer = _sent(frame).writeStream.format(task["format"]).options(**task["options"])
    query = writer.option("checkpointLocation", task["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def _sent(frame: DataFrame) -> DataFrame:
    return frame.select("key", "value", "headers", "partition")


def _serve(jars: str, out: IO[str]) -> None:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    )
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "1")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    tasks = {"rows": _rows, "copy": _copy, "write": _write}
    for line in sys.stdin:
        task = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": tasks[task["task"]](spark, task)}
        except Exception as error:
            answer = {"error": str(error)[:4000]}
        out.write(json.dumps(answer) + "\n")
        out.flush()
    spark.stop()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever else prints goes to standard error
        _serve(sys.argv[1], answers)
