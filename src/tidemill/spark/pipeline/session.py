"""A Spark session for a pipeline: the same job on one machine and on a cluster, by `master` alone.

Spark starts Python on the executors by the name in PYSPARK_PYTHON. Unless somebody has set it, that is the
interpreter which runs the driver: right for `local[*]` and for clusters where the environment has the same
path everywhere. Where it has not, ship it: `environment` is an archive of a virtual environment (made by
venv-pack), which Spark unpacks as `./environment` beside every executor. The driver's planner uses the same
relative path, so the driver moves to a folder that has a link of that name to its own environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.spark.pipeline.config import PipelineConfig

CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "60s",
}
LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SHIPPED_PYTHON = "./environment/bin/python"


def start_session(config: PipelineConfig, master: str, environment: str | None = None) -> SparkSession:
    """The session of this process; settings of the configuration win over ours."""
    from pyspark.sql import SparkSession

    settings = dict(DEFAULTS)
    if master.startswith("local"):
        settings |= LOCAL_DEFAULTS
    if "://" not in config.checkpoint:
        settings["spark.sql.streaming.checkpointFileManagerClass"] = CHECKPOINT_FILES
    if environment is not None:
        settings["spark.archives"] = f"{Path(environment).resolve()}#environment"
        _stand_beside_environment()
    os.environ.setdefault("PYSPARK_PYTHON", SHIPPED_PYTHON if environment else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(f"tidemill {config.name}")
    for name, value in (settings | config.spark).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _stand_beside_environment() -> None:
    """Paths of the configuration are absolute by now, so the process may move; the folder goes when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "environment").symlink_to(sys.prefix)
    os.chdir(folder)
