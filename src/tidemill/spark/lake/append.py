"""A batch of rows into a table, once: ask, write, commit.

    append_batch(table, frame, application=query_id, batch_id=12)

Called from `foreachBatch`. When the batch is in the table already, nothing is read and nothing is written. A
batch without rows changes nothing, so a repetition of it changes nothing either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemill.spark.lake import steps
from tidemill.spark.lake.files import write_files
from tidemill.spark.lake.table import Change, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Appended(NamedTuple):
    """What a batch did to a table."""

    rows: int
    files: int
    was_committed: bool


def append_batch(table: LakeTable, frame: DataFrame, application: str, batch_id: int) -> Appended:
    """Put the rows of `frame` into `table`, unless this batch is in it already."""
    steps.reached("batch-begun")
    if table.is_committed(application, batch_id):
        return Appended(0, 0, was_committed=True)
    schema = table.ensure(frame.schema)
    steps.reached("table-ready")
    files = write_files(frame, table.writer(schema))
    steps.reached("files-written")
    if files and not table.commit(Change(application, batch_id, files)):
        return Appended(0, 0, was_committed=True)
    steps.reached("committed")
    return Appended(sum(file.rows for file in files), len(files), was_committed=False)
