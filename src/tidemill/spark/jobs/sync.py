"""sync: change events of Debezium or Canal to a Delta table that is equal to the source's table, deletes included.

    [sync]
    format = "debezium"
    key = ["id"]
    columns = { id = "bigint", name = "string", price = "decimal(12,2)" }

    [table]
    path = "lake/customers"

Changes are applied in order per key (`jobs.changes.newest_per_key`), a batch at a time and each batch once
(`lake.merge`). The table always shows the source as it was after some batch. What cannot be applied goes to
the dead letters, with the reason; without a table for them it stops the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.jobs.changes import CHANGE_FORMATS, TIME_UNITS, bad_changes, changes, newest_per_key
from tidemill.spark.jobs.job import TABLE, BatchResult, Flow, Inputs, Job, Summary
from tidemill.spark.jobs.values import DEAD_LETTERS, BadMessages
from tidemill.spark.lake import steps
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.columns import ColumnError, declared
from tidemill.spark.lake.delta import DeltaLakeTable
from tidemill.spark.lake.merge import POSITION, merge_batch, merged_table, with_bucket
from tidemill.spark.lake.reading import read_table
from tidemill.spark.lake.table import LakeTable
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SYNC: Section = {
    "format": Setting("text", "debezium", CHANGE_FORMATS),
    "key": Setting("texts", help="the columns of the primary key"),
    "columns": Setting("table", help="the columns of the table and their types"),
    "time_unit": Setting("text", "millis", tuple(TIME_UNITS), help="of times that are numbers (debezium)"),
    "buckets": Setting("number", 8, minimum=1, help="parts of the table that are rewritten as a whole"),
}
MERGED_TABLE: Section = {
    "format": Setting("text", "delta", ("delta",)),
    "path": TABLE["path"],
    "options": TABLE["options"],
}


class Sync:
    """Applies a batch of messages to the table."""

    def __init__(self, table: DeltaLakeTable, settings: dict[str, Any], letters: LakeTable | None) -> None:
        self._table, self._letters = table, letters
        self._kind, self._key, self._buckets = settings["format"], settings["key"], settings["buckets"]
        self._schema, self._time_unit = declared(settings["columns"]), settings["time_unit"]

    def __call__(self, batch: DataFrame, query_id: str, batch_id: int) -> BatchResult:
        found = changes(batch, self._kind, self._schema, self._key, self._time_unit)
        bad = self._set_aside(bad_changes(found), query_id, batch_id)
        steps.reached("dead-letters-done")
        last = newest_per_key(found.where("_reason is null"), self._key)
        columns = [*self._schema.names, *POSITION, "_deleted"]
        bucketed = with_bucket(last.select(*columns), self._key, self._buckets)
        done = merge_batch(self._table, bucketed, self._key, query_id, batch_id)
        steps.reached("rows-done")
        return BatchResult(done.rows, bad, reads=2)

    def _set_aside(self, bad: DataFrame, query_id: str, batch_id: int) -> int:
        if self._letters is not None:
            return append_batch(self._letters, bad, query_id, batch_id).rows
        first = bad.head()
        if first is not None:
            raise BadMessages(
                f"{first.topic}-{first.partition} at offset {first.offset}: {first.reason}. "
                "Give the job a table for such messages: [dead_letters] path = ..."
            )
        return 0


def _table(inputs: Inputs) -> DeltaLakeTable:
    settings = inputs["table"]
    return merged_table(inputs.config.path(settings["path"]), settings["options"], inputs["sync"]["buckets"])


def flows(inputs: Inputs) -> list[Flow]:
    letters = inputs.table("dead_letters") if inputs["dead_letters"]["path"] else None
    return [Flow("sync", inputs.messages(), write=Sync(_table(inputs), inputs["sync"], letters))]


def summaries(inputs: Inputs) -> list[Summary]:
    rows = read_table(inputs.spark, _table(inputs))
    if rows is None:
        return []
    counted = rows.groupBy("_bucket").agg(
        sql.count("*").alias("rows"), sql.max("_timestamp").alias("newest_change")
    )
    return [Summary("Rows by bucket", counted.orderBy("_bucket"))]


def problems(sections: dict[str, dict[str, Any]]) -> list[str]:
    sync = sections["sync"]
    try:
        declared(sync["columns"])
    except ColumnError as error:
        return [f"sync.columns: {error}"]
    unknown = [name for name in sync["key"] if name not in sync["columns"]]
    if not sync["key"]:
        return ["sync.key is empty: name the columns of the primary key"]
    return [f"sync.key: {name} is no column; allowed are {', '.join(sync['columns'])}" for name in unknown]


JOB = Job(
    "sync",
    {"sync": SYNC, "table": MERGED_TABLE, "dead_letters": DEAD_LETTERS},
    flows=flows,
    summaries=summaries,
    check=problems,
)
