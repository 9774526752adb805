"""What a job is: its settings, its queries, and the tables that its report shows.

A job gets `Inputs` and returns `Flow`s. A flow is one streaming query: a frame, and either a function that
writes a batch (`write`, called with the batch, the query id and the batch id; it must bear repetition) or
options of the sink (`topic`), where exactly-once is the sink's affair.

    def flows(inputs):
        def write(batch, query_id, batch_id):
            return BatchResult(append_batch(table, batch, query_id, batch_id).rows)

        return [Flow("rows", inputs.messages(), write)]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.spark.pipeline.settings import Section, Setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidemill.spark.lake.table import LakeTable
    from tidemill.spark.pipeline.config import PipelineConfig


class BatchResult(NamedTuple):
    """What came of a batch: rows in tables, messages that could not be read, and how often the batch was read.

    Spark counts a message each time it is read, so the last number is needed to say how many there were.
    """

    rows: int
    bad_rows: int = 0
    reads: int = 1


@dataclasses.dataclass(frozen=True)
class Flow:
    """One streaming query of a job."""

    name: str
    frame: DataFrame
    write: Callable[[DataFrame, str, int], BatchResult] | None = None
    topic: dict[str, str] | None = None


def into(
    table: LakeTable, change: Callable[[DataFrame], DataFrame] = lambda frame: frame
) -> Callable[[DataFrame, str, int], BatchResult]:
    """The `write` of a flow whose batches, changed or as they are, are the rows of one table."""
    from tidemill.spark.lake.append import append_batch

    def write(batch: DataFrame, query_id: str, batch_id: int) -> BatchResult:
        return BatchResult(append_batch(table, change(batch), query_id, batch_id).rows)

    return write


def window_bounds(column: str = "window") -> list[Column]:
    """A window as two columns of a table."""
    from pyspark.sql import functions as sql

    return [sql.col(f"{column}.start").alias("window_start"), sql.col(f"{column}.end").alias("window_end")]


class Summary(NamedTuple):
    """A small table for the report, read when the job has ended."""

    title: str
    frame: DataFrame


class Inputs:
    """What the wiring of a job needs: the session, the configuration, and the topics as frames."""

    def __init__(self, spark: SparkSession, config: PipelineConfig) -> None:
        self.spark = spark
        self.config = config

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.config[section]

    def messages(self, include_headers: bool = False) -> DataFrame:
        """The topics of the section `source` as a stream."""
        options = source_options(self["source"], include_headers)
        return self.spark.readStream.format("tidemill").options(**options).load()

    def stored_messages(self, topics: list[str], include_headers: bool = False) -> DataFrame:
        """Everything that is in these topics now."""
        options = source_options(self["source"] | {"topics": topics, "pattern": ""}, include_headers)
        options.pop("maxOffsetsPerTrigger", None)
        return self.spark.read.format("tidemill").options(**options).load()

    def table(self, section: str = "table", name: str = "") -> LakeTable:
        """The table of a section; `name` is a table below its path, for jobs with several."""
        from tidemill.spark.lake.table import open_table

        settings = self[section]
        path = settings["path"]
        if settings["format"] == "iceberg":
            path += f"_{name}" if name else ""
        else:
            path = self.config.path(f"{path}/{name}" if name else path)
        partition_by = tuple(settings.get("partition_by", ()))
        return open_table(settings["format"], path, partition_by, settings.get("options"))


@dataclasses.dataclass(frozen=True)
class Job:
    """A job by name; `run` is for jobs that are one batch, `flows` for those that are streams."""

    name: str
    sections: dict[str, Section]
    flows: Callable[[Inputs], list[Flow]] | None = None
    run: Callable[[Inputs], BatchResult] | None = None
    summaries: Callable[[Inputs], list[Summary]] | None = None
    check: Callable[[dict[str, dict[str, Any]]], list[str]] | None = None
    reads_topics: bool = True
    table_names: tuple[str, ...] = ()

    @property
    def is_streaming(self) -> bool:
        return self.flows is not None

    def problems(self, sections: dict[str, dict[str, Any]]) -> list[str]:
        """What is wrong beyond single settings."""
        source, found = sections["source"], []
        if self.reads_topics and bool(source["topics"]) == bool(source["pattern"]):
            found.append("source.topics or source.pattern is needed, and only one of them")
        return found + (self.check(sections) if self.check is not None else [])


def source_options(source: dict[str, Any], include_headers: bool) -> dict[str, str]:
    """The options of `format("tidemill")`; messages of aborted transactions are read only by those who ask for them."""
    options = {
        "kafka.bootstrap.servers": source["bootstrap"],
        "kafka.isolation.level": "read_committed",
        "startingOffsets": source["starting"],
    }
    if source["pattern"]:
        options["subscribePattern"] = source["pattern"]
    else:
        options["subscribe"] = ",".join(source["topics"])
    if source["max_messages_per_batch"]:
        options["maxOffsetsPerTrigger"] = str(source["max_messages_per_batch"])
    if source["commit_group"]:
        options["commitGroupId"] = source["commit_group"]
    if include_headers:
        options["includeHeaders"] = "true"
    return options | {name: str(value) for name, value in source["options"].items()}


def sink_options(source: dict[str, Any], topic: str) -> dict[str, str]:
    """The options of the sink on the same brokers; client settings are shared, the source's own are not."""
    settings = {name: str(value) for name, value in source["options"].items() if name.startswith("kafka.")}
    return {"kafka.bootstrap.servers": source["bootstrap"], "topic": topic} | settings


TABLE: Section = {
    "format": Setting("text", "delta", ("delta", "parquet", "iceberg")),
    "path": Setting("text", help="a folder, a URI, or namespace.table for Iceberg"),
    "partition_by": Setting("texts", [], help="columns; _day and _hour are made from the message's time"),
    "options": Setting("table", {}, help="storage options of Delta, or the catalog of Iceberg"),
}
TABLES: Section = {name: setting for name, setting in TABLE.items() if name != "partition_by"}
"""For jobs with several tables below one path."""
