"""One Spark session and one broker for all tests of the data pipeline.

    def test_it(spark, cluster, topic): ...

`spark` is a session on `local[2]`; starting it takes some seconds, so every test of a process shares it and leaves
its settings as they were. `cluster` and `topic` are those of all other tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.streaming.noDataProgressEventInterval": "200",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.python.authenticate.socketTimeout": "120s",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session; its Python workers run this interpreter and see these sources."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    sources = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests' / 'support'}"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sources, os.environ.get("PYTHONPATH", "")]))
    builder = SparkSession.builder.master("local[2]").appName("tidemill-tests")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.config("spark.local.dir", str(tmp_path_factory.mktemp("spark"))).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")
