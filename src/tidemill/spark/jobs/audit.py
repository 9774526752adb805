"""audit: what was produced, stored and consumed per window, and every difference by name.

Producers and consumers write audit records to `tidemill.audit`, JSON values of this schema
(docs/guides/pipelines.md):

    {"version": 1, "kind": "produced", "topic": "orders", "who": "checkout-1",
     "window_start_ms": 1794970800000, "window_ms": 60000, "count": 3, "ids": ["a", "b", "c"]}

`kind` is produced (who: the producer) or consumed (who: the group). A message belongs to the window of its own
timestamp, whoever counts it, so all sides count the same messages. What is stored, the job counts itself in the topics.
`ids` are optional, the values of the header `tidemill-id`; with them, differences name the messages.

A producer or consumer may report a window in several records; they add up. A record that is itself doubled
(same topic, partition and offset cannot be) would be counted twice, so reporters use an idempotent producer.

Differences:
    lost       produced and not stored          doubled    stored more often than produced
    unread     stored and not consumed (yet)    reread     consumed more often than stored
    unclaimed  stored, and nobody reports to have produced it
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.jobs.headers import header_text
from tidemill.spark.jobs.job import TABLES, BatchResult, Inputs, Job, Summary
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.reading import read_table
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AUDIT_TOPIC = "tidemill.audit"
AUDIT: Section = {
    "audit_topic": Setting("text", AUDIT_TOPIC, help="where the records are"),
    "window": Setting("duration", "1 minute", help="windows of this length are compared"),
    "settled_seconds": Setting(
        "number", 60, minimum=0, help="windows that ended later than this are left alone"
    ),
}
RECORD = (
    "version int, kind string, topic string, who string, window_start_ms bigint, window_ms bigint, "
    "count bigint, ids array<string>"
)
KEY = ["topic", "window_start"]
IDS = ("produced_ids", "stored_ids", "consumed_ids")


def audit_records(messages: DataFrame) -> DataFrame:
    """The records of the audit topic; what is none of version 1 is left out."""
    record = sql.from_json(sql.col("value").cast("string"), RECORD).alias("record")
    start = sql.timestamp_millis("window_start_ms").alias("start")
    rows = (
        messages.select(record)
        .select("record.*")
        .where("version = 1 and count is not null and topic is not null")
    )
    return rows.select(
        "kind",
        "topic",
        "who",
        start,
        "count",
        sql.coalesce("ids", sql.array().cast("array<string>")).alias("ids"),
    )


def reported(records: DataFrame, kind: str, window: str) -> DataFrame:
    """Counts and ids per topic, window and reporter; finer windows add up to coarser ones."""
    mine = records.where(sql.col("kind") == kind)
    grouped = mine.groupBy("topic", sql.window("start", window), "who")
    counted = grouped.agg(sql.sum("count").alias("count"), sql.flatten(sql.collect_list("ids")).alias("ids"))
    return counted.select("topic", sql.col("window.start").alias("window_start"), "who", "count", "ids")


def stored(messages: DataFrame, window: str) -> DataFrame:
    """The same of what is in the topics; ids are those of the header `tidemill-id`."""
    grouped = messages.groupBy("topic", sql.window("timestamp", window))
    ids = sql.array_compact(sql.collect_list(header_text("tidemill-id")))
    counted = grouped.agg(sql.count("*").alias("stored"), ids.alias("stored_ids"))
    return counted.select("topic", sql.col("window.start").alias("window_start"), "stored", "stored_ids")


def reconciled(produced: DataFrame, stored: DataFrame, consumed: DataFrame) -> DataFrame:
    """One row per topic, window and group (null: no group reports); counts that nobody gave are 0 or null."""
    made = produced.groupBy(*KEY).agg(
        sql.sum("count").alias("produced"), sql.flatten(sql.collect_list("ids")).alias("produced_ids")
    )
    read = consumed.select(
        *KEY,
        sql.col("who").alias("group"),
        sql.col("count").alias("consumed"),
        sql.col("ids").alias("consumed_ids"),
    )
    groups = consumed.select("topic", sql.col("who").alias("group")).distinct()
    windows = made.select(*KEY).union(stored.select(*KEY)).union(read.select(*KEY)).distinct()
    joined = windows.join(made, KEY, "left").join(stored, KEY, "left").join(groups, ["topic"], "left")
    everything = joined.join(read, [*KEY, "group"], "left")
    return everything.select(
        *KEY,
        "group",
        "produced",
        sql.coalesce("stored", sql.lit(0)).alias("stored"),
        sql.when(sql.col("group").isNotNull(), sql.coalesce("consumed", sql.lit(0))).alias("consumed"),
        *[sql.coalesce(name, _no_ids()).alias(name) for name in IDS],
    )


def _no_ids() -> Column:
    return sql.array().cast("array<string>")


def differences(windows: DataFrame) -> DataFrame:
    """One row per difference: its name, how many messages, and which, where ids were given."""
    found = sql.array(
        _difference("unclaimed", sql.col("produced").isNull() & (sql.col("stored") > 0), sql.col("stored"), _no_ids()),
        _difference("lost", sql.col("produced") > sql.col("stored"), sql.col("produced") - sql.col("stored"),
                    sql.array_except("produced_ids", "stored_ids")),
        _difference("doubled", sql.col("stored") > sql.col("produced"), sql.col("stored") - sql.col("produced"),
                    _repeated("stored_ids")),
        _difference("unread", sql.col("stored") > sql.col("consumed"), sql.col("stored") - sql.col("consumed"),
                    sql.array_except("stored_ids", "consumed_ids")),
        _difference("reread", sql.col("consumed") > sql.col("stored"), sql.col("consumed") - sql.col("stored"),
                    _repeated("consumed_ids")),
    )  # fmt: skip
    rows = windows.select(*KEY, "group", sql.explode(sql.array_compact(found)).alias("found"))
    plain = rows.select(*KEY, _only_for_readers("group"), "found.*").distinct()
    return plain.orderBy("window_start", "topic", "difference", "group")


def _difference(name: str, condition: Column, messages: Column, ids: Column) -> Column:
    facts = sql.struct(
        sql.lit(name).alias("difference"),
        messages.cast("bigint").alias("messages"),
        sql.array_sort(ids).alias("ids"),
    )
    return sql.when(condition, facts)


def _repeated(column: str) -> Column:
    """The ids that occur more than once."""
    ids = sql.col(column)
    return sql.filter(
        sql.array_distinct(ids), lambda each: sql.size(sql.filter(ids, lambda other: other == each)) > 1
    )


def _only_for_readers(column: str) -> Column:
    """A difference between producer and log does not depend on who reads."""
    readers = sql.col("found.difference").isin("unread", "reread")
    return sql.when(readers, sql.col(column)).alias(column)


def settled(windows: DataFrame, window: str, now_ms: int, settled_seconds: int) -> DataFrame:
    """Without the windows that may still change."""
    limit = sql.timestamp_millis(sql.lit(now_ms - settled_seconds * 1000))
    return windows.where(sql.col("window_start") + sql.expr(f"interval {window}") <= limit)


def run(inputs: Inputs) -> BatchResult:
    """One look at everything that is there; its rows carry the time of the look."""
    settings, now_ms = inputs["audit"], time.time_ns() // 1_000_000
    records = audit_records(inputs.stored_messages([settings["audit_topic"]])).persist()
    log = stored(inputs.stored_messages(inputs["source"]["topics"], include_headers=True), settings["window"])
    compared = reconciled(
        reported(records, "produced", settings["window"]),
        log,
        reported(records, "consumed", settings["window"]),
    )
    final = settled(compared, settings["window"], now_ms, settings["settled_seconds"]).persist()
    looked = sql.timestamp_millis(sql.lit(now_ms)).alias("looked")
    run_id = f"{inputs.config.name}-{now_ms}"
    counts = final.drop(*IDS).select(looked, "*")
    done = append_batch(inputs.table("tables", "windows"), counts, run_id, 0)
    found = append_batch(
        inputs.table("tables", "differences"), differences(final).select(looked, "*"), run_id, 0
    )
    return BatchResult(done.rows + found.rows)


def summaries(inputs: Inputs) -> list[Summary]:
    found = []
    for name, title in (("differences", "Differences"), ("windows", "Produced, stored, consumed")):
        rows = read_table(inputs.spark, inputs.table("tables", name))
        if rows is not None:
            newest = rows.where(sql.col("looked") == rows.agg(sql.max("looked")).collect()[0][0])
            found.append(Summary(title, newest.orderBy("window_start", "topic", "group")))
    return found


def problems(sections: dict[str, dict[str, Any]]) -> list[str]:
    """Every topic is compared by name, also one that holds nothing, so a pattern will not do."""
    pattern = sections["source"]["pattern"]
    return (
        [f"source.pattern is {pattern!r}; audit needs source.topics, the topics by name"] if pattern else []
    )


JOB = Job(
    "audit",
    {"audit": AUDIT, "tables": TABLES},
    run=run,
    summaries=summaries,
    check=problems,
    table_names=("windows", "differences"),
)
