"""Rows of the Spark source without Spark: plan and read in this process, as Spark's planner and tasks would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer

from pyspark_tidemill import DefaultSource

Row = dict[str, Any]
_pickles = CloudPickleSerializer()


def arrow_batches(bootstrap: str, **options: Any) -> Iterator[pa.RecordBatch]:
    """What the tasks of a batch read deliver; options by keyword, `__` for a dot."""
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    source = DefaultSource({"kafka.bootstrap.servers": bootstrap, **given})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    travelled = _pickles.loads(_pickles.dumps(reader))
    for task in tasks:
        yield from travelled.read(_pickles.loads(_pickles.dumps(task)))


def rows(bootstrap: str, **options: Any) -> list[Row]:
    return [row for batch in arrow_batches(bootstrap, **options) for row in batch.to_pylist()]


def values(bootstrap: str, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(bootstrap, columns="value", **options)]


def stream_reader(bootstrap: str, **options: Any) -> Any:
    """The reader of a stream, whose methods a test calls as Spark would."""
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    source = DefaultSource({"kafka.bootstrap.servers": bootstrap, **given})
    return source.streamReader(source.schema())
