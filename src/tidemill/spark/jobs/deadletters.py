"""deadletters: what lies in the dead-letter topics: why, where, how often, and whether it gets worse.

Topics of the form `<group>.dlq` are read with their headers (`tidemill-origin-topic`, `-origin-partition`,
`-origin-offset`, `-attempts`, `-reason`, `-error`) into a table of letters, each once. The report is made from the
table:

    why      per reason and error: how many, since when, until when
    where    per origin: how many, over which offsets
    trend    per window and reason: how many, and how it compares with the window before

    source.pattern = ".*\\\\.dlq"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from tidemill.spark.jobs.headers import header_number, header_text
from tidemill.spark.jobs.job import TABLE, BatchResult, Flow, Inputs, Job, Summary
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.reading import read_table
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASONS = ("retries", "rejected", "undecodable", "expired", "length")
DEAD: Section = {
    "window": Setting("duration", "1 hour", help="the trend compares windows of this length"),
    "error_length": Setting("number", 120, minimum=1, help="errors that begin alike are counted together"),
}


def letters(messages: DataFrame) -> DataFrame:
    """One row per dead letter; `reason` is `unknown` when the header is missing."""
    return messages.select(
        sql.regexp_replace("topic", r"\.dlq$", "").alias("group"),
        sql.coalesce(header_text("tidemill-reason"), sql.lit("unknown")).alias("reason"),
        header_text("tidemill-error").alias("error"),
        header_number("tidemill-attempts").alias("attempts"),
        header_text("tidemill-origin-topic").alias("origin_topic"),
        header_number("tidemill-origin-partition").cast("int").alias("origin_partition"),
        header_number("tidemill-origin-offset").alias("origin_offset"),
        sql.col("timestamp").alias("time"),
        "key",
        sql.octet_length("value").alias("value_bytes"),
        sql.col("topic").alias("_topic"),
        sql.col("partition").alias("_partition"),
        sql.col("offset").alias("_offset"),
    )


def why(letters: DataFrame, error_length: int) -> DataFrame:
    """The most frequent reasons first."""
    begun = sql.substring(sql.coalesce("error", sql.lit("")), 1, error_length).alias("error")
    grouped = letters.groupBy("group", "reason", begun)
    counted = grouped.agg(
        sql.count("*").alias("letters"),
        sql.round(sql.avg("attempts"), 1).alias("attempts"),
        sql.min("time").alias("first"),
        sql.max("time").alias("last"),
    )
    return counted.orderBy(sql.desc("letters"), "group", "reason", "error")


def where(letters: DataFrame) -> DataFrame:
    """Which partitions the letters came from, and over which offsets."""
    grouped = letters.groupBy("group", "origin_topic", "origin_partition")
    counted = grouped.agg(
        sql.count("*").alias("letters"),
        sql.min("origin_offset").alias("first_offset"),
        sql.max("origin_offset").alias("last_offset"),
        sql.count_distinct("key").alias("keys"),
    )
    return counted.orderBy(sql.desc("letters"), "origin_topic", "origin_partition")


def frequency(letters: DataFrame, window: str) -> DataFrame:
    """Letters per window, group and reason; windows without any are left out."""
    grouped = letters.groupBy(sql.window("time", window), "group", "reason").agg(
        sql.count("*").alias("letters")
    )
    return grouped.select(sql.col("window.start").alias("window_start"), "group", "reason", "letters")


def trend(frequency: DataFrame, window: str) -> DataFrame:
    """Each window beside the one before it: new, rising, falling or steady (within a tenth)."""
    order = Window.partitionBy("group", "reason").orderBy("window_start")
    before_start = sql.lag("window_start").over(order)
    adjacent = before_start == sql.col("window_start") - sql.expr(f"interval {window}")
    before = sql.when(adjacent, sql.lag("letters").over(order)).otherwise(0)
    compared = frequency.withColumn("before", before)
    direction = (
        sql.when(sql.col("before") == 0, "new")
        .when(sql.col("letters") > sql.col("before") * 1.1, "rising")
        .when(sql.col("letters") < sql.col("before") * 0.9, "falling")
        .otherwise("steady")
    )
    return compared.withColumn("trend", direction).orderBy("window_start", "group", "reason")


def flows(inputs: Inputs) -> list[Flow]:
    table = inputs.table()

    def write(batch: DataFrame, query_id: str, batch_id: int) -> BatchResult:
        return BatchResult(append_batch(table, letters(batch), query_id, batch_id).rows)

    return [Flow("letters", inputs.messages(include_headers=True), write)]


def summaries(inputs: Inputs) -> list[Summary]:
    found = read_table(inputs.spark, inputs.table())
    if found is None:
        return []
    settings = inputs["deadletters"]
    counts = frequency(found, settings["window"])
    return [
        Summary("Why", why(found, settings["error_length"])),
        Summary("Where", where(found)),
        Summary("Trend", trend(counts, settings["window"])),
    ]


JOB = Job("deadletters", {"deadletters": DEAD, "table": TABLE}, flows=flows, summaries=summaries)
