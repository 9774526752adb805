"""A driver of Spark for tests to kill: copies one topic to many others, each by a query of its own.

Run as a process with a line of JSON (see `Copy`). Every query goes on from its checkpoint; when a batch fails its query
is started again in the same session, as a supervisor would. Input is read by the source and written by the sink, both
of the format `tidemill`. The query of the topic `by_hand` writes its batches itself, in `foreachBatch`, under numbered
commit keys: so it can be held inside its first batch, which is empty and passes none of the sink's steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crash_plan import CrashPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MOST_RESTARTS = 60
POLL_SECONDS = 0.1
TAKEN = "taken"
"""The step at which the query by hand has a batch and has done nothing with it."""
TASK_STEPS = ("writing", "staged")
"""A driver that stands still at all steps has a task at each of these that never ends, and needs others to go on."""


class Copy(NamedTuple):
    bootstrap: str
    source: str
    targets: list[str]
    by_hand: str
    folder: str
    plan: str
    batch_rows: int
    tasks: int
    until_empty: bool
    """Stop when everything is copied; otherwise wait for more until killed."""


def start_copy(copy: Copy, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, json.dumps(copy._asdict())]
    with log.open("ab") as output:
        environment = CrashPlan(Path(copy.plan)).environment() | {"SPARK_LOCAL_DIRS": copy.folder}
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def read_source(spark: SparkSession, copy: Copy) -> DataFrame:
    reader = spark.readStream.format("tidemill")
    reader = reader.option("kafka.bootstrap.servers", copy.bootstrap).option("subscribe", copy.source)
    reader = reader.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", copy.batch_rows)
    return reader.option("minPartitions", copy.tasks).load().selectExpr("key", "value")


def start_query(spark: SparkSession, copy: Copy, target: str) -> StreamingQuery:
    rows = read_source(spark, copy)
    options = {"kafka.bootstrap.servers": copy.bootstrap, "topic": target, "stagingInlineBytes": "500"}
    if target == copy.by_hand:
        writer = rows.writeStream.foreachBatch(lambda batch, number: write(copy, batch, number, options))
    else:
        writer = rows.writeStream.format("tidemill").options(**options)
    writer = writer.option("checkpointLocation", f"{copy.folder}/checkpoints/{target}")
    return (writer.trigger(availableNow=True) if copy.until_empty else writer).start()


def write(copy: Copy, batch: DataFrame, number: int, options: dict[str, str]) -> None:
    CrashPlan(Path(copy.plan)).reached(number, TAKEN)
    named = options | {"commitKey": f"{copy.by_hand}/{number}"}
    batch.write.format("tidemill").options(**named).mode("append").save()


def main(copy: Copy) -> None:
    from spark_sessions import quick_session

    from tidemill.spark.pipeline.runner import wait_for_source

    spark = quick_session("local[2,4]" if copy.until_empty else f"local[{len(TASK_STEPS) + 2},4]")
    CrashPlan(Path(copy.plan)).name_driver(spark)
    queries: dict[str, StreamingQuery] = {}
    for target in [*copy.targets, copy.by_hand]:
        queries[target] = start_query(spark, copy, target)
        if len(queries) == 1:
            wait_for_source(queries[target])
    restarts = 0
    while queries:
        for target, query in [each for each in queries.items() if not each[1].isActive]:
            error = query.exception()
            if error is None:
                del queries[target]
                continue
            restarts += 1
            assert restarts <= MOST_RESTARTS, "the queries failed too often"
            print("restarting after", str(error)[:2000], flush=True)
            queries[target] = start_query(spark, copy, target)
        time.sleep(POLL_SECONDS)
    spark.stop()


if __name__ == "__main__":
    main(Copy(**json.loads(sys.argv[1])))
