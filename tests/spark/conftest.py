"""One Spark session and one broker for all tests of the data pipeline.

    def test_it(spark, cluster, topic): ...

`spark` is a session on `local[2]`; starting it takes some seconds, so every test of a process shares it and leaves
its settings as they were. `cluster` and `topic` are those of all other tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_sessions import quick_session, spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session; its Python workers run this interpreter and see these sources."""
    os.environ.update(spark_environment())
    warehouse, local = tmp_path_factory.mktemp("warehouse"), tmp_path_factory.mktemp("spark")
    session = quick_session("local[2]", spark_sql_warehouse_dir=str(warehouse), spark_local_dir=str(local))
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")
