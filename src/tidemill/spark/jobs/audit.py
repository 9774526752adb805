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

Where both sides give an id for every message they are compared message by message, so that what is missing does not
make up for what is there twice:

    produced a, b   stored a, a      ->   lost 1 (b), doubled 1 (a)

Else only the counts can be compared, and the ids that there are name what they can.

A record that cannot be read would make all of this wrong without a word: it goes to the table of dead letters, once,
or, without such a table, stops the job.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.jobs.headers import header_text
from tidemill.spark.jobs.job import TABLES, BatchResult, Inputs, Job, Summary
from tidemill.spark.jobs.values import DEAD_LETTERS, DeadLetters
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.columns import declared
from tidemill.spark.lake.parsing import ValueFormat, good_rows, parse
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
REQUIRED = {
    "version": "int", "kind": "string", "topic": "string", "who": "string", "window_start_ms": "bigint",
    "count": "bigint",
}  # fmt: skip
RECORD = ValueFormat("json", declared(REQUIRED | {"ids": "array<string>"}), tuple(REQUIRED))
KEY = ["topic", "window_start"]
KINDS = ("produced", "consumed")
SIDES = ("produced", "stored", "consumed")
IDS = tuple(f"{side}_ids" for side in SIDES)
COMPARED = {
    "lost": ("produced", "stored"), "doubled": ("stored", "produced"),
    "unread": ("stored", "consumed"), "reread": ("consumed", "stored"),
}  # fmt: skip
"""Who has more than whom."""


def parsed_records(messages: DataFrame) -> DataFrame:
    """The messages of the audit topic, with the reason where one is no record of version 1."""
    parsed = parse(messages, RECORD)
    reason = (
        sql.when(sql.col("_reason").isNotNull(), sql.col("_reason"))
        .when(sql.col("version") != 1, "unknown-version")
        .when(~sql.col("kind").isin(*KINDS), "unknown-kind")
    )
    return parsed.withColumn("_reason", reason)


def audit_records(parsed: DataFrame) -> DataFrame:
    """Those that are records."""
    start = sql.timestamp_millis("window_start_ms").alias("start")
    ids = sql.coalesce("ids", _no_ids()).alias("ids")
    return good_rows(parsed).select("kind", "topic", "who", start, "count", ids)


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
    unclaimed = sql.col("produced").isNull() & (sql.col("stored") > 0)
    found = sql.array(
        _difference("unclaimed", sql.when(unclaimed, sql.col("stored")), _no_ids()),
        *[_difference(name, sql.col(f"{name}.messages"), sql.col(f"{name}.ids")) for name in COMPARED],
    )
    rows = _compared(windows).select(*KEY, "group", sql.explode(sql.array_compact(found)).alias("found"))
    plain = rows.select(*KEY, _only_for_readers("group"), "found.*").distinct()
    return plain.orderBy("window_start", "topic", "difference", "group")


def _compared(windows: DataFrame) -> DataFrame:
    """Of each row the counts, and for each name of `COMPARED` what it comes to.

    All ids of a window are counted in one pass: the lists may be long, and searching one for each element of the other
    would take a time that grows with the square of their length.
    """
    known = [(sql.size(f"{side}_ids") == sql.col(side)).alias(f"{side}_known") for side in SIDES]
    facts = [*KEY, "group", *SIDES, *(f"{side}_known" for side in SIDES)]
    all_ids = sql.flatten(sql.array(*[_ids_of(side) for side in SIDES]))
    one = windows.select(*KEY, "group", *SIDES, *known, sql.explode_outer(all_ids).alias("one"))
    times = [sql.count_if(sql.col("one.side") == side).alias(f"{side}_times") for side in SIDES]
    counted = one.groupBy(*facts, sql.col("one.id").alias("id")).agg(*times)
    found = [_excess(*sides).alias(name) for name, sides in COMPARED.items()]
    return counted.groupBy(*facts).agg(*found)


def _ids_of(side: str) -> Column:
    """The ids of a side, each with the side's name."""
    return sql.transform(
        f"{side}_ids", lambda each: sql.struct(sql.lit(side).alias("side"), each.alias("id"))
    )


def _excess(more: str, less: str) -> Column:
    """How many messages `more` has that `less` has not, and their ids."""
    here, there = sql.col(f"{more}_times"), sql.col(f"{less}_times")
    is_known = sql.first(sql.col(f"{more}_known") & sql.col(f"{less}_known"))
    by_id = sql.sum(sql.greatest(here - there, sql.lit(0)))
    by_count = sql.first(sql.col(more) - sql.col(less))
    exact = sql.collect_list(sql.when(here > there, sql.col("id")))
    guessed = sql.collect_list(sql.when(_stands_out(more, less), sql.col("id")))
    return sql.struct(
        sql.when(is_known, by_id).otherwise(by_count).alias("messages"),
        sql.when(is_known, exact).otherwise(guessed).alias("ids"),
    )


def _stands_out(more: str, less: str) -> Column:
    """Where ids are missing: one that only the earlier side has is missing in the later, and one twice in the later is
    there too often."""
    here, there = sql.col(f"{more}_times"), sql.col(f"{less}_times")
    is_earlier = SIDES.index(more) < SIDES.index(less)
    return (here > 0) & (there == 0) if is_earlier else here > 1


def _difference(name: str, messages: Column, ids: Column) -> Column:
    facts = sql.struct(
        sql.lit(name).alias("difference"),
        messages.cast("bigint").alias("messages"),
        sql.array_sort(ids).alias("ids"),
    )
    return sql.when(messages > 0, facts)


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
    run_id = f"{inputs.config.name}-{now_ms}"
    parsed = parsed_records(inputs.stored_messages([settings["audit_topic"]])).persist()
    bad = DeadLetters.of(inputs).write(_not_set_aside(inputs, parsed), RECORD, run_id, 0)
    records = audit_records(parsed)
    log = stored(inputs.stored_messages(inputs["source"]["topics"], include_headers=True), settings["window"])
    compared = reconciled(
        reported(records, "produced", settings["window"]),
        log,
        reported(records, "consumed", settings["window"]),
    )
    final = settled(compared, settings["window"], now_ms, settings["settled_seconds"]).persist()
    looked = sql.timestamp_millis(sql.lit(now_ms)).alias("looked")
    counts = final.drop(*IDS).select(looked, "*")
    done = append_batch(inputs.table("tables", "windows"), counts, run_id, 0)
    found = append_batch(
        inputs.table("tables", "differences"), differences(final).select(looked, "*"), run_id, 0
    )
    return BatchResult(done.rows + found.rows, bad)


def _not_set_aside(inputs: Inputs, parsed: DataFrame) -> DataFrame:
    """Without what an earlier look has put into the table of dead letters: every look reads the whole topic."""
    if not inputs["dead_letters"]["path"]:
        return parsed
    letters = read_table(inputs.spark, inputs.table("dead_letters"))
    if letters is None:
        return parsed
    place = ["_topic", "_partition", "_offset"]
    known = letters.select(*[sql.col(name[1:]).alias(name) for name in place])
    return parsed.join(known, place, "left_anti")


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
    {"audit": AUDIT, "tables": TABLES, "dead_letters": DEAD_LETTERS},
    run=run,
    summaries=summaries,
    check=problems,
    table_names=("windows", "differences"),
)
