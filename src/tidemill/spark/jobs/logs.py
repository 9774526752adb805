r"""logs: log lines to a table, counted by level and service; too many errors become an alert.

Lines come in one of these forms, or one of your own as a regular expression with named groups:

    json       {"time": "2026-11-18T03:00:00Z", "level": "error", "service": "shop", "message": "..."}
    plain      2026-11-18 03:00:00,123 ERROR shop - no tea left
    logfmt     time=2026-11-18T03:00:00Z level=error service=shop msg="no tea left"
    combined   203.0.113.7 - - [18/Nov/2026:03:00:00 +0000] "GET /tea HTTP/1.1" 503 12 "-" "curl"

Levels are brought to DEBUG, INFO, WARNING, ERROR, FATAL (WARN, err, critical, ... are understood; of an
access log the status says it). A line without a time takes the message's timestamp. Services are enriched
from the configuration:

    [services.shop]
    team = "orders"

An alert is one message per service and window to the alert topic, key = service, value = JSON, when a window
has at least `alert_threshold` lines of ERROR or worse. The sink is exactly-once, so an alert is not sent
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from tidemill.spark.jobs.job import TABLES, Flow, Inputs, Job, Summary, into, sink_options, window_bounds
from tidemill.spark.lake.reading import read_table
from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMS = ("json", "plain", "logfmt", "combined", "pattern")
LOGS: Section = {
    "form": Setting("text", "json", FORMS),
    "pattern": Setting(
        "text", "", help="for form = pattern: groups named time, level, service, host, message"
    ),
    "service": Setting("text", "", help="the service of lines that name none; '' takes the topic"),
    "watermark": Setting("duration", "5 minutes", help="how late a line may be"),
    "window": Setting("duration", "1 minute", help="lines are counted in windows of this length"),
    "alert_topic": Setting("text", "", help="where alerts go; '' sends none"),
    "alert_threshold": Setting(
        "number", 10, minimum=1, help="errors per service and window that make an alert"
    ),
}
SERVICES: Section = {"teams": Setting("table", {}, help="service to team"), "tiers": Setting("table", {})}
FIELDS = ("time", "level", "service", "host", "message")
LEVELS = {
    "TRACE": "DEBUG", "DEBUG": "DEBUG", "FINE": "DEBUG", "INFO": "INFO", "INFORMATION": "INFO", "NOTICE": "INFO",
    "WARN": "WARNING", "WARNING": "WARNING", "ERR": "ERROR", "ERROR": "ERROR", "SEVERE": "ERROR",
    "CRIT": "FATAL", "CRITICAL": "FATAL", "ALERT": "FATAL", "EMERG": "FATAL", "FATAL": "FATAL", "PANIC": "FATAL",
}  # fmt: skip
BAD_LEVELS = ("ERROR", "FATAL")

_PLAIN = (
    r"^(?<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+"
    r"(?<level>[A-Za-z]+)\s+(?<service>[\w.-]+)\s+(?:-\s+)?(?<message>.*)$"
)
_COMBINED = r'^(?<host>\S+) \S+ \S+ \[(?<time>[^\]]+)\] "(?<message>[^"]*)" (?<level>\d{3}) \S+(?: .*)?$'


def lines(messages: DataFrame) -> DataFrame:
    """The text of each message with its place."""
    return messages.select(
        sql.col("value").cast("string").alias("line"),
        sql.col("topic").alias("_topic"),
        sql.col("partition").alias("_partition"),
        sql.col("offset").alias("_offset"),
        sql.col("timestamp").alias("_timestamp"),
    )


def parsed_lines(lines: DataFrame, form: str, pattern: str = "", service: str = "") -> DataFrame:
    """time, level, service, host and message of each line; `parsed` is false where the form does not fit."""
    found = {"json": _json_fields, "logfmt": _logfmt_fields}.get(form)
    fields = found() if found else _pattern_fields(pattern or {"plain": _PLAIN, "combined": _COMBINED}[form])
    raw = lines.withColumns({f"_{name}_text": column for name, column in fields.items()})
    level = level_name(sql.col("_level_text"))
    known = sql.col("_message_text").isNotNull() & level.isNotNull()
    return raw.select(
        sql.coalesce(time_of(sql.col("_time_text")), sql.col("_timestamp")).alias("time"),
        sql.when(known, level).otherwise("UNKNOWN").alias("level"),
        sql.coalesce("_service_text", sql.lit(service) if service else sql.col("_topic")).alias("service"),
        sql.col("_host_text").alias("host"),
        sql.coalesce("_message_text", "line").alias("message"),
        sql.coalesce(known, sql.lit(False)).alias("parsed"),
        *["_topic", "_partition", "_offset", "_timestamp"],
    )


def _json_fields() -> dict[str, Column]:
    schema = "time string, timestamp string, level string, severity string, service string, host string, " \
             "message string, msg string"  # fmt: skip
    record = sql.from_json("line", schema)
    return {
        "time": sql.coalesce(record["time"], record["timestamp"]),
        "level": sql.coalesce(record["level"], record["severity"]),
        "service": record["service"],
        "host": record["host"],
        "message": sql.coalesce(record["message"], record["msg"]),
    }


def _logfmt_fields() -> dict[str, Column]:
    def field(names: str) -> Column:
        found = sql.regexp_extract("line", rf'(?:^|\s)(?:{names})=(?:"((?:[^"\\]|\\.)*)"|(\S+))', 0)
        value = sql.regexp_replace(found, r'^\s*\w+="?|"$', "")
        return sql.nullif(value, sql.lit(""))

    return {
        "time": field("time|ts"),
        "level": field("level|lvl"),
        "service": field("service"),
        "host": field("host"),
        "message": field("msg|message"),
    }


def _pattern_fields(pattern: str) -> dict[str, Column]:
    """Groups by name: Spark extracts by number, so the names are counted off."""
    names = group_names(pattern)
    return {
        name: sql.nullif(sql.regexp_extract("line", pattern, names.index(name) + 1), sql.lit(""))
        if name in names
        else sql.lit(None).cast("string")
        for name in FIELDS
    }


def group_names(pattern: str) -> list[str]:
    """The capturing groups of a Java expression in order; one without a name is ''."""
    import re

    found = re.findall(r"\\.|\[(?:\\.|[^\]])*\]|\((?!\?)|\(\?<([A-Za-z]\w*)>", pattern)
    opened = re.findall(r"\\.|\[(?:\\.|[^\]])*\]|\((?!\?)|\(\?<[A-Za-z]\w*>", pattern)
    return [name for name, text in zip(found, opened, strict=True) if text.startswith("(")]


def level_name(text: Column) -> Column:
    """One of five names; of an HTTP status: 5xx is ERROR, 4xx WARNING, less is INFO."""
    names = sql.create_map(*[sql.lit(word) for pair in LEVELS.items() for word in pair])
    status = text.try_cast("int")
    by_status = sql.when(status >= 500, "ERROR").when(status >= 400, "WARNING").when(status >= 100, "INFO")
    return sql.coalesce(sql.try_element_at(names, sql.upper(sql.trim(text))), by_status)


def time_of(text: Column) -> Column:
    """ISO 8601 with a comma or point before the fraction, or the time of an access log; null if neither."""
    iso = sql.regexp_replace(text, r"(\d\d:\d\d:\d\d),(\d+)", "$1.$2").try_cast("timestamp")
    return sql.coalesce(iso, sql.try_to_timestamp(text, sql.lit("dd/MMM/yyyy:HH:mm:ss Z")))


def enriched(lines: DataFrame, teams: dict[str, str], tiers: dict[str, str]) -> DataFrame:
    """team and tier of each service, null where the configuration knows none."""
    return lines.withColumns({"team": _looked_up("service", teams), "tier": _looked_up("service", tiers)})


def _looked_up(column: str, values: dict[str, str]) -> Column:
    if not values:
        return sql.lit(None).cast("string")
    pairs = sql.create_map(*[sql.lit(word) for pair in values.items() for word in pair])
    return sql.try_element_at(pairs, sql.col(column))


def level_counts(lines: DataFrame, window: str) -> DataFrame:
    """Lines per window, service and level."""
    grouped = lines.groupBy(sql.window("time", window), "service", "level").agg(sql.count("*").alias("lines"))
    return grouped.select(*window_bounds(), "service", "level", "lines")


def error_counts(lines: DataFrame, window: str) -> DataFrame:
    """Lines of ERROR or worse per window and service, with one of the messages.

    Other lines are not filtered out but counted as none: they move the watermark that closes the windows.
    """
    bad = sql.col("level").isin(*BAD_LEVELS)
    grouped = lines.groupBy(sql.window("time", window), "service", "team")
    counted = grouped.agg(
        sql.count(sql.when(bad, 1)).alias("errors"),
        sql.min(sql.when(bad, sql.col("message"))).alias("example"),
    )
    return counted.select(*window_bounds(), "service", "team", "errors", "example")


def alerts(counts: DataFrame, threshold: int) -> DataFrame:
    """Messages for the alert topic."""
    loud = counts.where(sql.col("errors") >= threshold)
    body = sql.struct(
        "window_start",
        "window_end",
        "service",
        "team",
        "errors",
        sql.lit(threshold).alias("threshold"),
        "example",
    )
    return loud.select(sql.col("service").alias("key"), sql.to_json(body).alias("value"))


def flows(inputs: Inputs) -> list[Flow]:
    settings, services = inputs["logs"], inputs["services"]
    read = parsed_lines(lines(inputs.messages()), settings["form"], settings["pattern"], settings["service"])
    rows = enriched(read, services["teams"], services["tiers"])
    timed = rows.withWatermark("time", settings["watermark"])
    found = [
        Flow("lines", rows, into(inputs.table("tables", "lines"))),
        Flow(
            "level_counts",
            level_counts(timed, settings["window"]),
            into(inputs.table("tables", "level_counts")),
        ),
    ]
    if settings["alert_topic"]:
        loud = alerts(error_counts(timed, settings["window"]), settings["alert_threshold"])
        found.append(Flow("alerts", loud, topic=sink_options(inputs["source"], settings["alert_topic"])))
    return found


def summaries(inputs: Inputs) -> list[Summary]:
    rows = read_table(inputs.spark, inputs.table("tables", "lines"))
    if rows is None:
        return []
    counted = rows.groupBy("service", "level").agg(sql.count("*").alias("lines"))
    return [Summary("Lines by service and level", counted.orderBy("service", "level"))]


def problems(sections: dict[str, dict[str, Any]]) -> list[str]:
    logs = sections["logs"]
    if logs["form"] == "pattern" and "message" not in group_names(logs["pattern"]):
        return [
            f"logs.pattern is {logs['pattern']!r}; it needs a group (?<message>...); allowed are {', '.join(FIELDS)}"
        ]
    return []


JOB = Job(
    "logs",
    {"logs": LOGS, "services": SERVICES, "tables": TABLES},
    flows=flows,
    summaries=summaries,
    check=problems,
    table_names=("lines", "level_counts"),
)
