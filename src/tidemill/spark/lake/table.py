"""What a lake table can do, whatever its format, and how a configuration names one.

    table = open_table("delta", "lake/orders", partition_by=("day",))
    table.ensure(schema)                                # made, or grown by new columns
    table.is_committed("7f1c…", 12)                     # has batch 12 of that query been put in?
    table.commit(Change("7f1c…", 12, added=files))      # all of it or nothing, once

The pair (application, batch) is Spark's query id, which lives in the checkpoint, and its batch id. A new
checkpoint is a new query: it is not mistaken for the old one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tidemill.spark.lake.files import FileWriter, WrittenFile

FORMATS = ("delta", "parquet", "iceberg")


class LakeError(Exception):
    """A table that cannot do what was asked, with what to do instead."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One batch as a change of a table: files that come, files that go."""

    application: str
    batch_id: int
    added: list[WrittenFile]
    removed: list[WrittenFile] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Upkeep:
    """What compaction or vacuum did, or would do."""

    files_before: int
    files_after: int
    files_deleted: int = 0


def is_repetition(newest: int | None, batch_id: int, path: str, application: str) -> bool:
    """Whether the batch is the newest that the table holds of this query; an older one cannot be repeated honestly.

    Spark repeats the last batch only. An older one means that the checkpoint is older than the table, and that its
    batches may hold other messages than those of the same numbers that are in the table.
    """
    if newest is None or newest < batch_id:
        return False
    if newest == batch_id:
        return True
    raise LakeError(
        f"table {path} holds batch {newest} of query {application}, and batch {batch_id} comes now: the checkpoint "
        "was set back, or another driver with the same checkpoint is ahead; go on with the newest checkpoint and one "
        "driver, or begin with a new checkpoint and a new table"
    )


def check_partitions(path: str, actual: tuple[str, ...], configured: tuple[str, ...]) -> None:
    """A table keeps the partitions it was made with."""
    if actual != configured:
        raise LakeError(
            f"table {path} is partitioned by {_names(actual)}, the configuration says {_names(configured)}: "
            "partitions cannot change, choose another table"
        )


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "nothing"


class LakeTable(Protocol):
    """A table that takes each batch once."""

    format: str
    path: str
    partition_by: tuple[str, ...]

    def schema(self) -> StructType | None:
        """Its columns; None when there is no table yet."""
        ...

    def ensure(self, schema: StructType) -> StructType:
        """Make the table, or add the columns it lacks; its columns afterwards."""
        ...

    def is_committed(self, application: str, batch_id: int) -> bool:
        """Whether this batch is the newest of its query in the table; LakeError if the table is ahead of it."""
        ...

    def writer(self, schema: StructType) -> FileWriter:
        """What executors need to write files for this table."""
        ...

    def commit(self, change: Change) -> bool:
        """Put the change in, unless its batch is in already (False)."""
        ...

    def root(self) -> str:
        """Where `files` are, for executors."""
        ...

    def files(self) -> list[WrittenFile]:
        """The files that make up the table now, with the partition values that are not inside them."""
        ...

    def compact(self, target_bytes: int) -> Upkeep:
        """Join small files."""
        ...

    def vacuum(self, older_than_hours: float, dry_run: bool) -> Upkeep:
        """Delete files that no version within the retention names."""
        ...


def open_table(
    format: str,
    path: str,
    partition_by: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
) -> LakeTable:
    """A handle; nothing is created before `ensure`."""
    settings = dict(options or {})
    if format == "delta":
        from tidemill.spark.lake.delta import DeltaLakeTable

        return DeltaLakeTable(path, partition_by, settings)
    if format == "parquet":
        from tidemill.spark.lake.parquet import ParquetTable

        return ParquetTable(path, partition_by)
    if format == "iceberg":
        from tidemill.spark.lake.iceberg import IcebergTable

        return IcebergTable(path, partition_by, settings)
    raise LakeError(f"format {format!r} is unknown; allowed are {', '.join(FORMATS)}")
