"""replay: rows of a table back to a topic, by time or by filter.

    [replay]
    topic = "orders-again"
    since = "2026-11-17T00:00:00"
    until = "2026-11-18T00:00:00"
    filter = "item = 'tea' and price > 2"

A table of `archive` gives messages as they were: the key (`_key`), the headers (`_headers`, where the table has them),
the value (raw bytes, or the columns as JSON), the order inside a partition (`_partition`, `_offset`), and with
`keep_timestamp` the time. With `keep_partition` they go to the partitions they came from, which the topic must have;
otherwise the key decides.

One run is one batch of the sink: a transaction, all or nothing. A run that is repeated sends again, unless it has a
name: with `once = "tea of tuesday"` a second run of that name, after a crash or by mistake, sends nothing.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.jobs.job import TABLE, BatchResult, Inputs, Job, sink_options
from tidemill.spark.lake.reading import Between, read_table
from tidemill.spark.lake.table import LakeError
from tidemill.spark.pipeline.settings import Section, Setting
from tidemill.spark.sink.asking import is_published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLAY: Section = {
    "topic": Setting("text", help="where the messages go"),
    "since": Setting("text", "", help="ISO time, included; UTC without a zone"),
    "until": Setting("text", "", help="ISO time, excluded"),
    "time_column": Setting("text", "_timestamp", help="the column that since and until are about"),
    "filter": Setting("text", "", help="a condition of SQL over the table's columns"),
    "once": Setting("text", "", help="a name for this replay; a second run of that name sends nothing"),
    "keep_partition": Setting("flag", False, help="to the partitions the messages came from"),
    "keep_timestamp": Setting("flag", False, help="with the timestamps they had"),
}


def moment(text: str) -> datetime.datetime | None:
    if not text:
        return None
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def chosen(rows: DataFrame, condition: str) -> DataFrame:
    return rows.where(condition) if condition else rows


def messages(rows: DataFrame, keep_partition: bool = False, keep_timestamp: bool = False) -> DataFrame:
    """The columns of the sink: key, value, headers, and partition and timestamp where they are to be kept."""
    own = [name for name in rows.columns if not name.startswith("_")]
    value = sql.col("value") if own == ["value"] else sql.to_json(sql.struct(*own)).cast("binary")
    columns = [value.alias("value")]
    kept = {"_key": True, "_headers": True, "_partition": keep_partition, "_timestamp": keep_timestamp}
    for name, is_wanted in kept.items():
        if is_wanted and name in rows.columns:
            columns.append(sql.col(name).alias(name.removeprefix("_")))
    if {"_partition", "_offset"} <= set(rows.columns):
        rows = rows.repartition("_partition").sortWithinPartitions("_partition", "_offset")
    return rows.select(*columns)


def run(inputs: Inputs) -> BatchResult:
    """The rows that were sent: none, and nothing is read, when a replay of that name was published before."""
    settings, table = inputs["replay"], inputs.table()
    options = sink_options(inputs["source"], settings["topic"])
    if settings["once"]:
        options["commitKey"] = settings["once"]
        if is_published(options):
            return BatchResult(0)
    between = Between(settings["time_column"], moment(settings["since"]), moment(settings["until"]))
    rows = read_table(inputs.spark, table, between)
    if rows is None:
        raise LakeError(f"there is no table at {table.path}")
    found = messages(chosen(rows, settings["filter"]), settings["keep_partition"], settings["keep_timestamp"])
    counted = found.persist()
    try:
        total = counted.count()
        counted.write.format("tidemill").options(**options).mode("append").save()
    finally:
        counted.unpersist()
    return BatchResult(total)


def problems(sections: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for name in ("since", "until"):
        try:
            moment(sections["replay"][name])
        except ValueError:
            text = sections["replay"][name]
            found.append(f"replay.{name} is {text!r}; allowed is a time such as 2026-11-18T03:00:00+01:00")
    return found


JOB = Job("replay", {"replay": REPLAY, "table": TABLE}, run=run, check=problems, reads_topics=False)
