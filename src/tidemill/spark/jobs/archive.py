"""archive: topics to a table, each message once.

    [value]  format = "json"  columns = "infer"
    [table]  path = "lake/orders"  partition_by = ["_day"]
    [dead_letters]  path = "lake/orders-bad"

A row is the fields of the message, its place (`_topic`, `_partition`, `_offset`, `_timestamp`, `_key`) and its headers
(`_headers`, empty where it has none), unless `[archive] headers = false` leaves them out; a table begun without
headers gains the column. With the format `raw` the value stays bytes in the column `value`.

Good rows and bad rows are two tables and two commits of the same (query, batch): whichever of them a crash separated,
the repetition adds only what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidemill.spark.jobs.job import TABLE, BatchResult, Flow, Inputs, Job, Summary
from tidemill.spark.jobs.values import (
    DEAD_LETTERS,
    VALUE,
    DeadLetters,
    parse_batch,
    value_format,
    value_problems,
    with_time_columns,
)
from tidemill.spark.lake import steps
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.parsing import ValueFormat
from tidemill.spark.lake.table import LakeTable
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE: Section = {
    "headers": Setting("flag", True, help="keep the messages' headers, in the column _headers")
}


class Archive:
    """Writes a batch of messages: rows to the table, the rest to the dead letters."""

    def __init__(self, table: LakeTable, form: ValueFormat, dead_letters: DeadLetters) -> None:
        self._table, self._form, self._dead_letters = table, form, dead_letters

    def __call__(self, batch: DataFrame, query_id: str, batch_id: int) -> BatchResult:
        """The bad rows are counted while the good ones are written; only if there are any, the batch is read again."""
        parsed, form = parse_batch(batch, self._form, self._table)
        reads = 1 if self._form == form else 2
        rows = with_time_columns(parsed.drop("_value"), self._table.partition_by)
        done = append_batch(self._table, rows, query_id, batch_id, skip_column="_reason")
        steps.reached("rows-done")
        if not done.was_committed and not done.skipped:
            return BatchResult(done.rows, reads=reads)
        reads += not done.was_committed
        return BatchResult(done.rows, self._dead_letters.write(parsed, form, query_id, batch_id), reads)


def flows(inputs: Inputs) -> list[Flow]:
    write = Archive(inputs.table(), value_format(inputs), DeadLetters.of(inputs))
    return [Flow("archive", inputs.messages(inputs["archive"]["headers"]), write=write)]


def by_topic(rows: DataFrame) -> DataFrame:
    """How much of each partition is in the table, and whether an offset is there twice."""
    return (
        rows.groupBy("_topic", "_partition")
        .agg(
            sql.count("*").alias("rows"),
            sql.min("_offset").alias("first_offset"),
            sql.max("_offset").alias("last_offset"),
            (sql.count("*") - sql.count_distinct("_offset")).alias("doubled"),
        )
        .orderBy("_topic", "_partition")
    )


def summaries(inputs: Inputs) -> list[Summary]:
    from tidemill.spark.lake.reading import read_table

    rows = read_table(inputs.spark, inputs.table())
    return [] if rows is None else [Summary("What the table holds", by_topic(rows))]


JOB = Job(
    "archive",
    {"archive": ARCHIVE, "value": VALUE, "table": TABLE, "dead_letters": DEAD_LETTERS},
    flows=flows,
    summaries=summaries,
    check=value_problems,
)
