"""activity: what people do on a site or in an app, from a topic of JSON events.

An event says who (`user`), where (`page`) and when (`time`); the names of the fields are settings. From them:

    sessions             one row per user and pause: first and last page, pages, seconds, how far into the funnel
    page_counts          views and users per page and tumbling window
    page_counts_sliding  the same, windows that overlap
    top_pages            the most viewed pages of each tumbling window
    funnel               how many sessions reached each step, per window

A watermark says how late an event may be. A window or session is written once, when the watermark has passed
its end, and never changes afterwards; a later event is dropped. So the newest windows appear when newer
events do.

    10:00 home   10:04 cart   10:50 home          gap 30 minutes: two sessions, 10:00-10:04 and 10:50-10:50
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from tidemill.spark.jobs.job import TABLES, BatchResult, Flow, Inputs, Job, Summary, into, window_bounds
from tidemill.spark.jobs.values import DEAD_LETTERS, DeadLetters
from tidemill.spark.lake.columns import declared
from tidemill.spark.lake.parsing import ValueFormat, good_rows, parse
from tidemill.spark.lake.reading import read_table
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ACTIVITY: Section = {
    "user": Setting("text", "user", help="the field that says who"),
    "page": Setting("text", "page", help="the field that says where"),
    "time": Setting("text", "time", help="the field that says when; '' takes the message's timestamp"),
    "watermark": Setting("duration", "10 minutes", help="how late an event may be"),
    "session_gap": Setting("duration", "30 minutes", help="a longer pause begins a new session"),
    "window": Setting("duration", "5 minutes", help="the tumbling window"),
    "slide": Setting("duration", "1 minute", help="how often a sliding window begins"),
    "top": Setting("number", 10, minimum=1, help="pages per window in top_pages"),
    "funnel": Setting("texts", [], help="pages in the order in which a session should meet them"),
    "funnel_window": Setting("duration", "1 hour", help="sessions that end in it are counted together"),
}


def event_format(settings: dict[str, Any]) -> ValueFormat:
    """The fields that an event must have."""
    fields = {settings["user"]: "string", settings["page"]: "string"}
    if settings["time"]:
        fields[settings["time"]] = "timestamp"
    return ValueFormat("json", declared(fields), tuple(fields))


def events(messages: DataFrame, settings: dict[str, Any]) -> DataFrame:
    """user, page and time of every message that is an event."""
    rows = good_rows(parse(messages, event_format(settings)))
    time = sql.col(settings["time"] or "_timestamp")
    return rows.select(
        sql.col(settings["user"]).alias("user"), sql.col(settings["page"]).alias("page"), time.alias("time")
    )


def sessions(events: DataFrame, gap: str, funnel: list[str]) -> DataFrame:
    """Per user and session, the views in order of time; `funnel_depth` counts the steps reached in order."""
    views = sql.array_sort(sql.collect_list(sql.struct("time", "page")))
    grouped = events.groupBy(sql.session_window("time", gap), "user").agg(views.alias("views"))
    pages = sql.col("views.page")
    return grouped.select(
        "session_window",
        "user",
        sql.element_at("views.time", 1).alias("started"),
        sql.element_at("views.time", -1).alias("ended"),
        sql.size("views").alias("page_views"),
        sql.size(sql.array_distinct(pages)).alias("pages"),
        sql.element_at(pages, 1).alias("first_page"),
        sql.element_at(pages, -1).alias("last_page"),
        funnel_depth(pages, funnel).alias("funnel_depth"),
    )


def funnel_depth(pages: Column, steps: list[str]) -> Column:
    """How many of the steps occur in this order; other pages between them do no harm."""
    wanted = sql.array(*[sql.lit(step) for step in steps]).cast("array<string>")

    def advance(depth: Column, page: Column) -> Column:
        return sql.when(page == sql.get(wanted, depth), depth + 1).otherwise(depth)

    return sql.aggregate(pages, sql.lit(0), advance)


def page_counts(events: DataFrame, window: str, slide: str | None = None) -> DataFrame:
    """Views and different users per page and window."""
    grouped = events.groupBy(sql.window("time", window, slide), "page")
    counted = grouped.agg(sql.count("*").alias("views"), sql.approx_count_distinct("user").alias("users"))
    return counted.select(*window_bounds(), "page", "views", "users")


def top_pages(counts: DataFrame, top: int) -> DataFrame:
    """The most viewed pages of each window; a window is complete in the batch that brings it."""
    order = Window.partitionBy("window_start", "window_end").orderBy(sql.desc("views"), "page")
    return counts.withColumn("rank", sql.row_number().over(order)).where(sql.col("rank") <= top)


def funnel_counts(sessions: DataFrame, steps: list[str], window: str) -> DataFrame:
    """Per window and step, the sessions that reached it."""
    reached = [
        sql.sum((sql.col("funnel_depth") >= number).cast("long")).alias(f"step_{number}")
        for number in range(1, len(steps) + 1)
    ]
    ending = sql.window(sql.window_time("session_window"), window).alias("window")
    return sessions.groupBy(ending).agg(sql.count("*").alias("sessions"), *reached)


def funnel_steps(counts: DataFrame, steps: list[str]) -> DataFrame:
    """`funnel_counts` with one row per step, and the share of the sessions that got there."""
    rows = sql.explode(
        sql.array(
            *[
                sql.struct(
                    sql.lit(number).alias("step"),
                    sql.lit(page).alias("page"),
                    sql.col(f"step_{number}").alias("reached"),
                )
                for number, page in enumerate(steps, 1)
            ]
        )
    )
    long = counts.select(*window_bounds(), "sessions", rows.alias("row"))
    return long.select("window_start", "window_end", "sessions", "row.*").withColumn(
        "share", sql.col("reached") / sql.col("sessions")
    )


def flows(inputs: Inputs) -> list[Flow]:
    settings = inputs["activity"]
    happened = events(inputs.messages(), settings).withWatermark("time", settings["watermark"])
    visits = sessions(happened, settings["session_gap"], settings["funnel"])
    tumbling = page_counts(happened, settings["window"])
    sliding = page_counts(happened, settings["window"], settings["slide"])
    found = [
        Flow("sessions", visits, into(inputs.table("tables", "sessions"), _without_window)),
        Flow("page_counts", tumbling, into(inputs.table("tables", "page_counts"))),
        Flow("page_counts_sliding", sliding, into(inputs.table("tables", "page_counts_sliding"))),
        Flow(
            "top_pages",
            tumbling,
            into(inputs.table("tables", "top_pages"), lambda counts: top_pages(counts, settings["top"])),
        ),
    ]
    return found + _funnel_flow(inputs, visits) + _dead_letter_flow(inputs)


def _funnel_flow(inputs: Inputs, visits: DataFrame) -> list[Flow]:
    settings = inputs["activity"]
    steps = settings["funnel"]
    if not steps:
        return []
    counts = funnel_counts(visits, steps, settings["funnel_window"])
    table = inputs.table("tables", "funnel")
    return [Flow("funnel", counts, into(table, lambda batch: funnel_steps(batch, steps)))]


def _dead_letter_flow(inputs: Inputs) -> list[Flow]:
    """Also without a table for them: then the first message that is no event stops the job."""
    form, letters = event_format(inputs["activity"]), DeadLetters.of(inputs)

    def write(batch: DataFrame, query_id: str, batch_id: int) -> BatchResult:
        return BatchResult(0, letters.write(parse(batch, form), form, query_id, batch_id))

    return [Flow("dead_letters", inputs.messages(), write)]


def _without_window(sessions: DataFrame) -> DataFrame:
    return sessions.drop("session_window")


def summaries(inputs: Inputs) -> list[Summary]:
    found = []
    top = read_table(inputs.spark, inputs.table("tables", "top_pages"))
    if top is not None:
        pages = top.groupBy("page").agg(sql.sum("views").alias("views")).orderBy(sql.desc("views")).limit(20)
        found.append(Summary("Pages by views", pages))
    funnel = read_table(inputs.spark, inputs.table("tables", "funnel"))
    if funnel is not None:
        steps = funnel.groupBy("step", "page").agg(sql.sum("reached").alias("sessions")).orderBy("step")
        found.append(Summary("Funnel", steps))
    return found


JOB = Job(
    "activity",
    {"activity": ACTIVITY, "tables": TABLES, "dead_letters": DEAD_LETTERS},
    flows=flows,
    summaries=summaries,
    table_names=("sessions", "page_counts", "page_counts_sliding", "top_pages", "funnel"),
)
