"""A lake table as a DataFrame, whatever its format, with no jar: executors read the files that the driver names.

    rows = read_table(spark, table, since=("_timestamp", first), until=("_timestamp", last))

The list of files is taken once, so a reader sees one version of the table although writers go on. `between`
goes down to the row groups' statistics: files outside the range are opened but not read.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidemill.spark.lake.columns import arrow_schema
from tidemill.spark.lake.files import conform, file_system

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.spark.lake.table import LakeTable

FILES_PER_TASK = 4


class Between(NamedTuple):
    """A range of a time column, the end excluded; None is open."""

    column: str
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

    def expression(self) -> ds.Expression | None:
        import pyarrow.compute as pc

        found = None
        if self.since is not None:
            found = pc.field(self.column) >= self.since
        if self.until is not None:
            later = pc.field(self.column) < self.until
            found = later if found is None else found & later
        return found


@dataclasses.dataclass(frozen=True)
class FileReader:
    """Travels to the executors; gets rows of (path, partition values as JSON)."""

    root: str
    schema: pa.Schema
    between: Between | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from self.read(row["path"], json.loads(row["partition"]))

    def read(self, path: str, partition: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds

        files, base = file_system(self.root)
        inside = self._inside(partition)
        found = ds.dataset(f"{base}/{path}", schema=inside, filesystem=files, format="parquet")
        wanted = None if self.between is None else self.between.expression()
        for batch in found.to_batches(filter=wanted):
            if batch.num_rows:
                yield from self._completed(batch, partition)

    def _inside(self, partition: dict[str, str | None]) -> pa.Schema:
        """The table's columns that files have; an older file lacks the newer ones, which are null then."""
        import pyarrow as pa

        return pa.schema([field for field in self.schema if field.name not in partition])

    def _completed(self, batch: pa.RecordBatch, partition: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        table = pa.Table.from_batches([batch])
        for name, text in partition.items():
            if name not in table.column_names:
                values = pa.repeat(pa.scalar(text, pa.string()), table.num_rows)
                table = table.append_column(name, values.cast(self.schema.field(name).type))
        yield from conform(table, self.schema).to_batches()


def read_table(spark: SparkSession, table: LakeTable, between: Between | None = None) -> DataFrame | None:
    """The rows of the table's newest version; None when there is no table yet."""
    schema = table.schema()
    if schema is None:
        return None
    files = [(file.path, json.dumps(file.partition)) for file in table.files()]
    listed = spark.createDataFrame(files, "path string, partition string")
    reader = FileReader(table.root(), arrow_schema(schema), between)
    tasks = max(1, -(-len(files) // FILES_PER_TASK))
    return listed.repartition(tasks).mapInArrow(reader, schema)
