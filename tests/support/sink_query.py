"""A driver of Spark for tests to kill: copies a topic to another until it has everything.

Run as a process with a line of JSON (see `Copy`). The query goes on from its checkpoint at every start; when a batch
fails the query is started again in the same session, as a supervisor would. Input is read by the source and written by
the sink, both of the format `tidemill`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
MOST_RESTARTS = 30


class Copy(NamedTuple):
    bootstrap: str
    source: str
    target: str
    folder: str
    plan: str
    batch_rows: int
    tasks: int
    until_empty: bool
    """Stop when everything is copied; otherwise wait for more until killed."""


def start_copy(copy: Copy, log: Path) -> subprocess.Popen[bytes]:
    paths = [ROOT / "src", SUPPORT / "crashing", SUPPORT]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TIDEMILL_CRASH_PLAN": copy.plan,
        "SPARK_LOCAL_DIRS": copy.folder,
    }
    command = [sys.executable, __file__, json.dumps(copy._asdict())]
    with log.open("ab") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def session() -> Any:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.streaming.stopTimeout": "20s",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("copy")
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def start_query(spark: Any, copy: Copy) -> Any:
    reader = spark.readStream.format("tidemill")
    reader = reader.option("kafka.bootstrap.servers", copy.bootstrap).option("subscribe", copy.source)
    reader = reader.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", copy.batch_rows)
    rows = reader.option("minPartitions", copy.tasks).load().selectExpr("key", "value")
    writer = rows.writeStream.format("tidemill").option("kafka.bootstrap.servers", copy.bootstrap)
    writer = writer.option("topic", copy.target).option("stagingInlineBytes", "500")
    writer = writer.option("checkpointLocation", f"{copy.folder}/checkpoint")
    return (writer.trigger(availableNow=True) if copy.until_empty else writer).start()


def main(copy: Copy) -> None:
    from pyspark.errors import StreamingQueryException

    spark = session()
    (Path(copy.plan) / "driver.pids").write_text(f"{os.getpid()} {spark.sparkContext._gateway.proc.pid}")
    for _ in range(MOST_RESTARTS):
        try:
            start_query(spark, copy).awaitTermination()
            break
        except StreamingQueryException as error:
            print("restarting after", str(error)[:2000], flush=True)
    else:
        sys.exit("the query failed too often")
    spark.stop()


if __name__ == "__main__":
    main(Copy(**json.loads(sys.argv[1])))
