"""What `tidemill pipeline` does, without its command line: run, report, compact, vacuum.

    run_pipeline(load_config("job.toml"), master="local[2]", folder=default_folder())

The command line (`tidemill.cli.pipeline`) reads options and prints; programs may call this directly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.spark.pipeline.report import SummaryTable, render
from tidemill.spark.pipeline.state import PipelineState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.spark.lake.table import LakeTable, Upkeep
    from tidemill.spark.pipeline.config import PipelineConfig
    from tidemill.spark.pipeline.progress import Display

SUMMARY_ROWS = 50


def run_pipeline(
    config: PipelineConfig, master: str, folder: Path, environment: str | None = None, quiet: bool = False
) -> str:
    """Run to the end, or until a signal; the report is written either way. Returns how it ended."""
    from tidemill.spark.pipeline.runner import Runner, stopping_on_signals
    from tidemill.spark.pipeline.session import start_session

    spark = start_session(config, master, environment)
    state = PipelineState(folder, config.name)
    try:
        runner = Runner(config, spark, state, _display(config.name, quiet))
        with stopping_on_signals(runner.stop):
            return runner.run()
    finally:
        if config["progress"]["report"] and state.read() is not None:
            write_report(state, spark, config)
        spark.stop()


def _display(name: str, quiet: bool) -> Display:
    from tidemill.spark.pipeline.progress import BarDisplay, LineDisplay

    if sys.stderr.isatty() and not quiet:
        return BarDisplay(name, sys.stderr)
    return LineDisplay(name, sys.stderr)


def write_report(state: PipelineState, spark: SparkSession | None, config: PipelineConfig | None) -> Path:
    """`report.html` from what the run left behind; with a session also the job's own tables."""
    status = state.read()
    assert status is not None
    tables = [] if spark is None or config is None else _summaries(spark, config)
    state.report_path.write_text(render(status, list(state.events()), tables))
    return state.report_path


def _summaries(spark: SparkSession, config: PipelineConfig) -> list[SummaryTable]:
    from tidemill.spark.jobs.job import Inputs

    if config.job.summaries is None:
        return []
    found = []
    for summary in config.job.summaries(Inputs(spark, config)):
        rows = [list(row) for row in summary.frame.limit(SUMMARY_ROWS).collect()]
        found.append(SummaryTable(summary.title, summary.frame.columns, rows))
    return found


def tables_of(config: PipelineConfig) -> list[LakeTable]:
    """Every table that the pipeline's configuration names and that exists."""
    from tidemill.spark.lake.table import open_table

    found: list[LakeTable] = []
    for section in ("table", "tables", "dead_letters"):
        settings = config.sections.get(section)
        if not settings or not settings["path"]:
            continue
        for path in _table_paths(config, section, settings["path"], settings["format"]):
            partitions = tuple(settings.get("partition_by", ()))
            found.append(open_table(settings["format"], path, partitions, settings["options"]))
    return [table for table in found if table.schema() is not None]


def _table_paths(config: PipelineConfig, section: str, path: str, format: str) -> list[str]:
    if section != "tables":
        return [path if format == "iceberg" else config.path(path)]
    if format == "iceberg":
        return [f"{path}_{name}" for name in config.job.table_names]
    return [f"{config.path(path)}/{name}" for name in config.job.table_names]


def upkeep(config: PipelineConfig, target_bytes: int) -> dict[str, Upkeep]:
    """Join the small files of every table."""
    return {table.path: table.compact(target_bytes) for table in tables_of(config)}


def clean(config: PipelineConfig, older_than_hours: float, dry_run: bool) -> dict[str, Upkeep]:
    """Delete what no table needs any more."""
    return {table.path: table.vacuum(older_than_hours, dry_run) for table in tables_of(config)}
