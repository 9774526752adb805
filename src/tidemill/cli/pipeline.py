"""`tidemill pipeline ...`: run Spark jobs over topics and tables, and look at them.

    tidemill pipeline run archive --config orders.toml
    tidemill pipeline run archive --config orders.toml --master spark://10.0.0.1:7077
    tidemill pipeline status orders-archive

Spark is imported when a job runs, not before; without it (`pip install tidemill[spark]`) the command says so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.connection import JsonOption
from tidemill.cli.errors import CommandError
from tidemill.cli.output import print_json, print_table, remark

if TYPE_CHECKING:
    from tidemill.spark.lake.table import Upkeep
    from tidemill.spark.pipeline.config import PipelineConfig
    from tidemill.spark.pipeline.state import PipelineState

app = typer.Typer(
    help="Run jobs on Spark: archive, activity, logs, sync, deadletters, audit, replay.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The pipeline's configuration (TOML).")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="FOLDER", envvar="TIDEMILL_PIPELINES", help="Where status and reports are kept."
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]


@app.command("run")
def run(
    job: Annotated[str, typer.Argument(metavar="JOB", help="`tidemill pipeline jobs` lists them.")],
    config: ConfigOption,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="local[*], spark://..., yarn, k8s://...")
    ] = "local[*]",
    environment: Annotated[
        str | None,
        typer.Option("--environment", metavar="ARCHIVE", help="A packed environment to ship to executors."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="A line per batch instead of bars.")] = False,
    state: StateOption = None,
) -> None:
    """Run a job until it has read everything, or until SIGTERM or Ctrl-C, which finish the running batch."""
    checked = _load(config, job)
    from tidemill.spark.pipeline.commands import run_pipeline
    from tidemill.spark.pipeline.runner import PipelineFailed

    folder = _folder(state)
    try:
        ended = run_pipeline(checked, master, folder, environment, quiet)
    except PipelineFailed as error:
        raise CommandError(str(error)) from error
    remark(f"{checked.name} {ended}; report: {folder / checked.name / 'report.html'}")


@app.command("validate")
def validate(config: ConfigOption, json: JsonOption = False) -> None:
    """Check a configuration without running it; every problem is named."""
    checked = _load(config, None)
    if json:
        print_json({"name": checked.name, "job": checked.job.name} | checked.sections)
    else:
        print(f"{checked.name}: a valid configuration of {checked.job.name}")


@app.command("jobs")
def jobs() -> None:
    """List the jobs there are."""
    from tidemill.spark.jobs import JOBS

    print_table(("job", "what it does"), list(JOBS.items()))


@app.command("list")
def list_pipelines(state: StateOption = None, json: JsonOption = False) -> None:
    """List the pipelines that have run here."""
    from tidemill.spark.pipeline.state import all_states

    found = [status for each in all_states(_folder(state)) if (status := each.read()) is not None]
    if json:
        print_json(found)
    elif found:
        print_table(
            ("pipeline", "job", "state", "messages", "behind", "begun"), [_line(status) for status in found]
        )
    else:
        remark("No pipeline has run here yet; start one with `tidemill pipeline run JOB --config FILE`.")


@app.command("status")
def status(name: NameArgument, state: StateOption = None, json: JsonOption = False) -> None:
    """Show a pipeline: each query's batches, rate and lag."""
    found = _status(_state(name, state))
    if json:
        print_json(found)
        return
    print(f"{name}: {found['state']} (job {found['job']}, process {found['pid']} on {found['host']})")
    if found.get("error"):
        print(found["error"])
    columns = (
        "batch_id",
        "batches",
        "messages",
        "rows",
        "bad_rows",
        "messages_per_second",
        "batch_ms",
        "behind",
    )
    rows = [[query, *[facts[column] for column in columns]] for query, facts in found["queries"].items()]
    print_table(("query", *columns), rows)


@app.command("report")
def report(name: NameArgument, state: StateOption = None) -> None:
    """Write the report of a pipeline again, from its events; prints where it is."""
    from tidemill.spark.pipeline.commands import write_report

    found = _state(name, state)
    _status(found)
    print(write_report(found, None, None))


@app.command("compact")
def compact(
    config: ConfigOption,
    target_megabytes: Annotated[
        int, typer.Option("--target-mb", help="Files are joined up to this size.")
    ] = 128,
    json: JsonOption = False,
) -> None:
    """Join the small files of a pipeline's tables."""
    from tidemill.spark.pipeline.commands import upkeep

    _print_upkeep(upkeep(_load(config, None), target_megabytes * 1024 * 1024), json)


@app.command("vacuum")
def vacuum(
    config: ConfigOption,
    older_than_hours: Annotated[float, typer.Option("--older-than-hours", help="Younger files stay.")] = 168,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this it is only counted.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete files that no table needs: replaced ones, and those of batches that were never committed."""
    from tidemill.spark.pipeline.commands import clean

    _print_upkeep(clean(_load(config, None), older_than_hours, not execute), json)
    if not execute:
        remark("Nothing was deleted; add --execute.")


@app.command("cluster")
def cluster(
    workers: Annotated[int, typer.Option("--workers", min=1, help="Worker processes.")] = 2,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of each worker.")] = 1,
    memory: Annotated[str, typer.Option("--memory", help="Memory of each worker.")] = "1g",
    port: Annotated[int | None, typer.Option("--port", help="The master's port. [a free one]")] = None,
) -> None:
    """Start a standalone Spark cluster on this machine; it ends with Ctrl-C."""
    from tidemill.spark.pipeline.cluster import ClusterFailed, StandaloneCluster, serve

    try:
        serve(StandaloneCluster(workers, cores, memory, port))
    except ClusterFailed as error:
        raise CommandError(str(error)) from error


def _print_upkeep(done: dict[str, Upkeep], json: bool) -> None:
    facts = [(path, each.files_before, each.files_after, each.files_deleted) for path, each in done.items()]
    columns = ("table", "files_before", "files_after", "files_deleted")
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in facts])
    else:
        print_table(columns, facts)


def _load(path: Path, job: str | None) -> PipelineConfig:
    try:
        from tidemill.spark.pipeline.config import load_config
        from tidemill.spark.pipeline.settings import ConfigError
    except ImportError as error:
        raise CommandError(
            f"{error.name} is not installed: `pip install tidemill[spark]` brings it"
        ) from error
    try:
        return load_config(path, job)
    except ConfigError as error:
        raise CommandError("\n  ".join([f"{path} is refused:", *error.problems])) from error
    except ImportError as error:
        raise CommandError(
            f"{error.name} is not installed: `pip install tidemill[spark]` brings it"
        ) from error


def _folder(state: Path | None) -> Path:
    from tidemill.spark.pipeline.state import default_folder

    return state or default_folder()


def _state(name: str, state: Path | None) -> PipelineState:
    from tidemill.spark.pipeline.state import PipelineState

    return PipelineState(_folder(state), name)


def _status(state: PipelineState) -> dict[str, Any]:
    found = state.read()
    if found is None:
        raise CommandError(
            f"pipeline {state.name} has not run here: `tidemill pipeline list` shows which have"
        )
    return found


def _line(status: dict[str, Any]) -> list[object]:
    queries = status["queries"].values()
    behind = [facts["behind"] for facts in queries if facts["behind"] is not None]
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["started"]))
    messages = sum(facts["messages"] for facts in queries)
    return [status["name"], status["job"], status["state"], messages, sum(behind) if behind else "?", begun]
