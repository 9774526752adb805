"""A driver of pipelines for tests to kill: runs several at once, each to its end.

    python lake_driver.py MASTER PLAN_FOLDER STATE_FOLDER job-0/job.toml job-1/job.toml ...

A pipeline that fails is started again from its checkpoint, as a supervisor would.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from crash_plan import CrashPlan
from spark_sessions import quick_session

from tidemill.spark.jobs.job import Inputs
from tidemill.spark.pipeline.config import load_config
from tidemill.spark.pipeline.progress import LineDisplay
from tidemill.spark.pipeline.runner import PipelineFailed, Runner
from tidemill.spark.pipeline.state import PipelineState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_FAILURES = 20


def run_to_its_end(spark: SparkSession, state: Path, path: str) -> None:
    config = load_config(path)
    for _ in range(MOST_FAILURES):
        try:
            display = LineDisplay(config.name, sys.stderr)
            Runner(config, spark, PipelineState(state, config.name), display).run()
            return
        except PipelineFailed as error:
            print("starting again after", str(error)[:2000], flush=True)


def warm_up(spark: SparkSession, path: str) -> None:
    """Read the topic once: sources that are the first of their session must not start at the same moment."""
    messages = Inputs(spark, load_config(path)).messages()
    messages.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def main(master: str, plan: str, state: str, *configs: str) -> None:
    spark = quick_session(master)
    warm_up(spark, configs[0])
    CrashPlan(Path(plan)).name_driver(spark)
    runs = [threading.Thread(target=run_to_its_end, args=(spark, Path(state), path)) for path in configs]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
