"""The section `value`: how messages become rows, and the section `dead_letters`: where those go that do not.

[value]
format = "json"                               # raw, json, avro
columns = { id = "bigint", item = "string" }  # or columns = "infer"
required = ["id"]

[dead_letters]
path = "lake/orders-bad"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.lake import steps
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.avro import FRAMINGS, AvroError, AvroFormat
from tidemill.spark.lake.columns import ColumnError, declared
from tidemill.spark.lake.parsing import ValueFormat, bad_rows, inferred, parse
from tidemill.spark.lake.table import LakeTable
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.spark.jobs.job import Inputs

VALUE: Section = {
    "format": Setting("text", "raw", ("raw", "json", "avro")),
    "columns": Setting("columns", {}, help="for json: names and types, or 'infer'"),
    "required": Setting("texts", [], help="columns that make a bad row when they are null"),
    "schema": Setting("text", "", help="for avro: the file of the reader's schema"),
    "framing": Setting("text", "none", FRAMINGS, help="for avro: what stands before the datum"),
    "writers": Setting("table", {}, help="for avro with framing: schema number to file"),
}
DEAD_LETTERS: Section = {
    "format": Setting("text", "delta", ("delta", "parquet", "iceberg")),
    "path": Setting(
        "text", "", help="a table for messages that cannot be read; without it they stop the job"
    ),
    "options": Setting("table", {}),
}


class BadMessages(Exception):
    """Messages that cannot be read, in a job that has no table for them."""


def value_problems(sections: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with the section `value` beyond single settings."""
    value = sections["value"]
    if value["format"] == "json" and not value["columns"]:
        return ["value.columns is missing: a table of columns and types, or 'infer'"]
    if value["format"] == "avro" and not value["schema"]:
        return ["value.schema is missing: the file of the Avro schema"]
    if value["format"] == "json" and value["columns"] != "infer":
        return _column_problems(value)
    return []


def _column_problems(value: dict[str, Any]) -> list[str]:
    try:
        declared(value["columns"])
    except ColumnError as error:
        return [f"value.columns: {error}"]
    unknown = [name for name in value["required"] if name not in value["columns"]]
    columns = ", ".join(value["columns"])
    return [f"value.required: {name} is no column; allowed are {columns}" for name in unknown]


def value_format(inputs: Inputs) -> ValueFormat:
    """The section as `parse` wants it."""
    value, required = inputs["value"], tuple(inputs["value"]["required"])
    if value["format"] == "avro":
        avro = AvroFormat(
            _text(inputs, value["schema"]),
            value["framing"],
            {int(number): _text(inputs, path) for number, path in value["writers"].items()},
        )
        return ValueFormat("avro", avro.columns(), required, avro)
    if value["format"] == "json" and value["columns"] != "infer":
        return ValueFormat("json", declared(value["columns"]), required)
    return ValueFormat(value["format"], None, required)


def _text(inputs: Inputs, path: str) -> str:
    try:
        return Path(inputs.config.path(path)).read_text()
    except OSError as error:
        raise AvroError(f"{path} cannot be read: {error.strerror}") from error


def parse_batch(batch: DataFrame, form: ValueFormat, table: LakeTable) -> tuple[DataFrame, ValueFormat]:
    """Parse a batch; columns that are to be inferred are those of the table and those that are new in the batch."""
    if form.kind == "json" and form.schema is None:
        known = table.schema()
        fields = [field for field in (known.fields if known else []) if not field.name.startswith("_")]
        form = ValueFormat("json", inferred(batch, type(batch.schema)(fields)), form.required)
    return parse(batch, form), form


class DeadLetters:
    """The table of messages that could not be read, or the refusal to go on without one."""

    def __init__(self, table: LakeTable | None) -> None:
        self._table = table

    @classmethod
    def of(cls, inputs: Inputs) -> DeadLetters:
        return cls(inputs.table("dead_letters") if inputs["dead_letters"]["path"] else None)

    def write(self, parsed: DataFrame, form: ValueFormat, query_id: str, batch_id: int) -> int:
        """How many rows of this batch were bad."""
        bad = bad_rows(parsed, form)
        if self._table is None:
            first = bad.head()
            if first is not None:
                raise BadMessages(
                    f"{first.topic}-{first.partition} at offset {first.offset}: {first.reason}: {first.detail}. "
                    "Give the job a table for such messages: [dead_letters] path = ..."
                )
            return 0
        done = append_batch(self._table, bad, query_id, batch_id)
        steps.reached("dead-letters-done")
        return done.rows


def with_time_columns(rows: DataFrame, partition_by: tuple[str, ...]) -> DataFrame:
    """`_day` and `_hour` of the message's timestamp, where the table is partitioned by them."""
    formats = {"_day": "yyyy-MM-dd", "_hour": "yyyy-MM-dd-HH"}
    wanted = {name: formats[name] for name in partition_by if name in formats}
    return rows.withColumns({name: sql.date_format("_timestamp", text) for name, text in wanted.items()})
