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


def frame_of(spark: SparkSession, job: Job) -> DataFrame:
    reader = spark.read.format(FORMATS[job["contestant"]]).options(**options_of(job))
    return narrowed(reader.load(), job)


def read(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """A batch read of everything in the topic, into nothing, a Parquet folder or a Delta table."""
    began = time.monotonic()
    _save(frame_of(spark, job), job["sink"], f"{scratch}/table")
    seconds = time.monotonic() - began
    shutil.rmtree(f"{scratch}/table", ignore_errors=True)
    return {"seconds": seconds}


def count(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """Not measured: whether a contestant finds everything."""
    began = time.monotonic()
    rows = frame_of(spark, job).count()
    return {"seconds": time.monotonic() - began, "rows": rows}


def _save(frame: DataFrame, sink: str, path: str) -> None:
    """A Delta table by delta-rs: the tasks write the files, the driver only commits them; the same for everybody."""
    if sink == "noop":
        frame.write.format("noop").mode("overwrite").save()
        return
    frame.write.mode("append").parquet(path)
    if sink == "delta":
        _commit_delta(path)


def _commit_delta(path: str) -> None:
    from deltalake import convert_to_deltalake

    shutil.rmtree(f"{path}/_delta_log", ignore_errors=True)
    convert_to_deltalake(path)


def stream(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """An available-now stream over the topic; seconds and rows in all, and the time of the median batch."""
    checkpoint = tempfile.mkdtemp(dir=scratch)
    reader = spark.readStream.format(FORMATS[job["contestant"]]).options(**options_of(job))
    if job.get("per_batch"):
        reader = reader.option("maxOffsetsPerTrigger", str(job["per_batch"]))
    began = time.monotonic()
    writer = narrowed(reader.load(), job).writeStream.option("checkpointLocation", checkpoint)
    if job["sink"] == "noop":
        writer = writer.format("noop")
    else:
        writer = writer.foreachBatch(lambda frame, _: _save(frame, job["sink"], f"{scratch}/table"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - began
    shutil.rmtree(f"{scratch}/table", ignore_errors=True)
    durations = sorted(
        each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]
    )
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    return {"seconds": seconds, "rows": rows, "batch_ms": durations[len(durations) // 2] if durations else 0}


def messages(spark: SparkSession, job: Job) -> DataFrame:
    """Rows that Spark makes itself."""
    return spark.range(0, job["rows"], 1, 4).selectExpr(
        "cast(cast(id as string) as binary) as key",
        f"cast(rpad(cast(id as string), {job['size']}, 'x') as binary) as value",
    )


def sink_options(job: Job) -> dict[str, str]:
    """`delivery` is for Tidemill's sink, the official one has only one."""
    options = {"kafka.bootstrap.servers": job["bootstrap"], "topic": job["topic"], **PRODUCER}
    if FORMATS[job["contestant"]] == "tidemill":
        options["delivery"] = job["delivery"]
    return options


def write(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """A batch of rows into a topic."""
    writer = messages(spark, job).write.format(FORMATS[job["contestant"]]).options(**sink_options(job))
    began = time.monotonic()
    writer.mode("append").save()
    return {"seconds": time.monotonic() - began}


def write_stream(spark: SparkSession, job: Job, scratch: str) -> dict[str, float]:
    """The same rows, from files, by an available-now stream of one batch."""
    files = f"{scratch}/messages-{job['rows']}-{job['size']}"
    if not os.path.exists(files):
        messages(spark, job).write.parquet(files)
    rows = spark.readStream.schema("key binary, value binary").parquet(files)
    writer = rows.writeStream.format(FORMATS[job["contestant"]]).options(**sink_options(job))
    began = time.monotonic()
    query = (
        writer.option("checkpointLocation", tempfile.mkdtemp(dir=scratch)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return {"seconds": time.monotonic() - began}


JOBS = {each.__name__: each for each in (read, count, stream, write, write_stream)}


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
