"""A batch of rows into a table, once: ask, write, commit.

    append_batch(table, frame, application=query_id, batch_id=12)

Called from `foreachBatch`. When the batch is in the table already, nothing is read and nothing is written. A
batch without rows changes nothing, so a repetition of it changes nothing either.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from tidemill.spark.lake import steps
from tidemill.spark.lake.files import write_files
from tidemill.spark.lake.table import Change, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Appended(NamedTuple):
    """What a batch did to a table; `skipped` is not known of a batch that was committed before."""

    rows: int
    files: int
    was_committed: bool
    skipped: int = 0


def append_batch(
    table: LakeTable, frame: DataFrame, application: str, batch_id: int, skip_column: str | None = None
) -> Appended:
    """Put the rows of `frame` into `table`, unless this batch is in it already.

    Rows where `skip_column` is not null are counted and left out.
    """
    steps.reached("batch-begun")
    if table.is_committed(application, batch_id):
        return Appended(0, 0, was_committed=True)
    columns = [field for field in frame.schema.fields if field.name != skip_column]
    schema = table.ensure(StructType(columns))
    steps.reached("table-ready")
    writer = dataclasses.replace(table.writer(schema), skip_column=skip_column)
    reported = write_files(frame, writer)
    files = [file for file in reported if file.path]
    steps.reached("files-written")
    if files and not table.commit(Change(application, batch_id, files)):
        return Appended(0, 0, was_committed=True)
    steps.reached("committed")
    rows, everything = sum(file.rows for file in files), sum(file.rows for file in reported)
    return Appended(rows, len(files), was_committed=False, skipped=everything - rows)
