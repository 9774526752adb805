"""Spark's interface to a batch read.

Spark makes the reader in a planner process, asks it for its partitions once, and sends it by pickle to the
executors, where `read` runs once per partition. It holds settings only; connections are made where they are
needed.

Push-down of filters is behind the option `filterPushdown`, because Spark fails every read of a source that
offers it while `spark.sql.python.filterPushdown.enabled` is false, which it is by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tidemill.spark.source.filters import Bounds, take_filters
from tidemill.spark.source.planning import Planner, ReadTask
from tidemill.spark.source.reading import read_task
from tidemill.spark.source.schema import check_schema
from tidemill.spark.source.settings import SourceSettings, batch_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def batch_reader(schema: StructType, given: Mapping[str, str]) -> BatchReader:
    settings = batch_settings(given)
    check_schema(schema)
    return (FilteringReader if settings.pushes_filters else BatchReader)(schema, settings)


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets when the query is planned."""

    def __init__(self, schema: StructType, settings: SourceSettings) -> None:
        self.schema = schema
        self.settings = settings
        self.bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        assert self.settings.end is not None
        planner = Planner(self.settings)
        try:
            start = planner.resolve(self.settings.start, is_start=True)
            end = planner.clip(planner.resolve(self.settings.end, is_start=False))
            ranges = self.bounds.narrow(planner.ranges(start, end), planner.offsets_at)
            return list(planner.tasks(ranges))
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task; where there is nothing to read Spark makes up a partition of its own."""
        if not isinstance(partition, ReadTask):
            return iter(())
        return read_task(partition, self.schema, self.settings)


class FilteringReader(BatchReader):
    """A reader that takes over filters on offset and partition, and uses those on timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self.bounds, left = take_filters(filters)
        return left
