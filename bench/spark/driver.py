"""One Spark driver that both connectors share: one JVM, one session, `local[2]`, one job after the other.

The process is started with the Python that has pyspark 4.2.0 (the newest one that Spark's own connector exists for)
and that connector's jars. It says `ready`, then answers each line of JSON on standard input with one on standard
output:

    {"job": "read", "contestant": "official", "topic": "t", "columns": "all", "sink": "noop", ...}
    {"seconds": 2.31, "rows": 1000000}

Contestants:

    official    format "kafka" with its default settings
    tuned       format "kafka" with max.poll.records=10000 and max.partition.fetch.bytes=4 MB
    tidemill    format "tidemill", over the wire
    segments    format "tidemill", closed segments read from the broker's own files
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Job = dict[str, Any]
FORMATS = {"official": "kafka", "tuned": "kafka", "tidemill": "tidemill", "segments": "tidemill"}
TUNED = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(4 << 20)}
PRODUCER = {"kafka.linger.ms": "20", "kafka.batch.size": str(512 << 10)}
NARROW = ["value", "offset"]
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def make_session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def options_of(job: Job) -> dict[str, str]:
    """What the reader is told; both connectors understand the same names."""
    options = {
        "kafka.bootstrap.servers": job["bootstrap"],
        "subscribe": job["topic"],
        "startingOffsets": "earliest",
    }
    contestant = job["contestant"]
    if contestant == "tuned":
        options |= TUNED
    if contestant == "segments":
        options |= {"read.mode": "segments", "segments.directories": job["directory"]}
    if FORMATS[contestant] == "tidemill" and job["columns"] == "narrow":
        options["columns"] = ",".join(NARROW)
    return options


def narrowed(frame: DataFrame, job: Job) -> DataFrame:
    return frame.select(*NARROW) if job["columns"] == "narrow" else frame


def read(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """A batch read of everything in the topic, into nothing, a Parquet folder or a Delta table."""
    reader = spark.read.format(FORMATS[job["contestant"]]).options(**options_of(job))
    began = time.monotonic()
    frame = narrowed(reader.load(), job)
    if job["sink"] == "noop":
        frame.write.format("noop").mode("overwrite").save()
    elif job["sink"] == "parquet":
        frame.write.mode("overwrite").parquet(f"{scratch}/parquet")
    else:
        _write_delta(frame, f"{scratch}/delta")
    return {"seconds": time.monotonic() - began}


def _write_delta(frame: DataFrame, path: str) -> None:
    """A Delta table by delta-rs: the tasks write the files, the driver only commits them; the same for everybody."""
    from deltalake import convert_to_deltalake

    shutil.rmtree(path, ignore_errors=True)
    frame.write.parquet(path)
    convert_to_deltalake(path)


def stream(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """An available-now stream over the topic in `batches` micro-batches; seconds in all, and of the median batch."""
    checkpoint = tempfile.mkdtemp(dir=scratch)
    reader = spark.readStream.format(FORMATS[job["contestant"]]).options(**options_of(job))
    if job.get("per_batch"):
        reader = reader.option("maxOffsetsPerTrigger", str(job["per_batch"]))
    began = time.monotonic()
    query = (
        narrowed(reader.load(), job)
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.monotonic() - began
    durations = sorted(
        each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]
    )
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    return {"seconds": seconds, "rows": rows, "batch_ms": durations[len(durations) // 2] if durations else 0}


def write(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """Rows made by Spark itself into a topic; `delivery` is for Tidemill's sink, the official one has only one."""
    frame = spark.range(0, job["rows"], 1, 4).selectExpr(
        "cast(id as binary) as key", f"cast(rpad(cast(id as string), {job['size']}, 'x') as binary) as value"
    )  # fmt: skip
    writer = frame.write.format(FORMATS[job["contestant"]]).option(
        "kafka.bootstrap.servers", job["bootstrap"]
    )
    writer = writer.option("topic", job["topic"]).options(**PRODUCER)
    if FORMATS[job["contestant"]] == "tidemill":
        writer = writer.option("delivery", job["delivery"])
    began = time.monotonic()
    writer.mode("append").save()
    return {"seconds": time.monotonic() - began}


JOBS = {"read": read, "stream": stream, "write": write}


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Spark and its workers may print; the answers have a channel of their own
    spark = make_session(sys.argv[1])
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", file=answers)
    scratch = tempfile.mkdtemp()
    try:
        for line in sys.stdin:
            job = json.loads(line)
            try:
                answer = JOBS[job["job"]](spark, job, scratch)
            except Exception:
                answer = {"error": traceback.format_exc()[-3000:]}
            print(json.dumps(answer), file=answers)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
