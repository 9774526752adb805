"""Sessions of Spark for tests: on this machine alone, and made for many short jobs rather than for one long one.

    os.environ |= spark_environment()
    spark = quick_session("local[2]")

Most of what a test pays for is the JVM warming up. The first of its two compilers is enough for jobs of a second, its
simplest collector for small data, and the code that Spark generates for each query costs more than it saves.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.noDataProgressEventInterval": "200",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.python.authenticate.socketTimeout": "120s",
}


SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]


def spark_environment() -> dict[str, str]:
    """Python processes of Spark run this interpreter, see these sources, and begin as `spark_python` says."""
    paths = [ROOT / "src", SUPPORT / "spark_python", SUPPORT, os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def quick_session(master: str, **more: str) -> SparkSession:
    """The session of this process; further settings by keyword, with underscores for dots."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tidemill-tests")
    for name, value in (SETTINGS | {name.replace("_", "."): value for name, value in more.items()}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
