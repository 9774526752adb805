"""Configurations that are refused, status, events, report, and the command line around them. No Spark is started."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run_program

from tidemill.spark.jobs import JOBS, find_job
from tidemill.spark.jobs.job import Flow, source_options
from tidemill.spark.pipeline.config import check_config
from tidemill.spark.pipeline.progress import LineDisplay
from tidemill.spark.pipeline.report import SummaryTable, render
from tidemill.spark.pipeline.runner import RESTARTS, PipelineFailed, Runner, first_sentence
from tidemill.spark.pipeline.settings import ConfigError
from tidemill.spark.pipeline.state import PipelineState, QueryFacts

RIGHT: dict[str, Any] = {
    "job": "archive",
    "name": "orders",
    "checkpoint": "checkpoint",
    "source": {"bootstrap": "127.0.0.1:9092", "topics": ["orders"]},
    "value": {"format": "json", "columns": {"id": "bigint"}},
    "table": {"path": "lake/orders"},
    "spark": {"spark": {"sql": {"shuffle": {"partitions": 4}}, "ui": {"enabled": False}}},
}


def test_a_right_configuration_has_its_defaults_and_absolute_paths(tmp_path: Path) -> None:
    config = check_config(RIGHT, tmp_path)
    assert (config.job.name, config.checkpoint) == ("archive", str(tmp_path / "checkpoint"))
    assert config["source"]["starting"] == "earliest"
    assert config.path("lake/orders") == str(tmp_path / "lake/orders")
    assert config.path("s3://bucket/x") == "s3://bucket/x"
    assert config.spark == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"job": "archiv"}, "job 'archiv' is unknown; allowed are archive, activity, logs"),
        ({"name": "a b"}, "name is 'a b'; allowed are letters, digits"),
        ({"checkpoint": ""}, "checkpoint is missing"),
        ({"colour": "red"}, "colour is unknown; allowed are job, name, checkpoint"),
        (
            {"tabel": {}},
            r"\[tabel\] is unknown to archive; allowed are source, trigger, progress, archive, value",
        ),
        ({"table": {}}, "table.path is missing: a folder"),
        (
            {"table": {"path": "x", "format": "orc"}},
            "table.format is 'orc'; allowed are delta, parquet, iceberg",
        ),
        (
            {"table": {"path": "x", "fromat": "delta"}},
            r"table.fromat is unknown \(did you mean format\?\); allowed are",
        ),
        ({"source": {"topics": ["a"]}}, "source.bootstrap is missing: HOST:PORT"),
        ({"source": {"bootstrap": "h:1"}}, "source.topics or source.pattern is needed"),
        ({"source": {"bootstrap": "h:1", "topics": "a"}}, "source.topics is 'a'; allowed is a list of texts"),
        (
            {"source": {"bootstrap": "h:1", "topics": ["a"], "max_messages_per_batch": -1}},
            "source.max_messages_per_batch is -1; allowed is 0 or more",
        ),
        ({"trigger": {"mode": "once"}}, "trigger.mode is 'once'; allowed are available-now, continuous"),
        ({"trigger": {"interval_seconds": True}}, "trigger.interval_seconds is True; allowed is a number"),
        ({"value": {"format": "json"}}, "value.columns is missing"),
        ({"value": {"format": "json", "columns": "guess"}}, "value.columns is 'guess'; allowed is a table"),
        (
            {"value": {"format": "json", "columns": {"id": "int8"}}},
            "column id: 'int8' is no type; allowed are",
        ),
        (
            {"value": {"format": "json", "columns": {"id": "int"}, "required": ["di"]}},
            "value.required: di is no column; allowed are id",
        ),
        ({"value": {"format": "avro"}}, "value.schema is missing"),
        ({"spark": {"master": "local"}}, "spark: master is no setting of Spark"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_config(RIGHT | change, tmp_path)


@pytest.mark.parametrize(
    ("job", "sections", "sentence"),
    [
        (
            "activity",
            {"activity": {"window": "5 min"}},
            "activity.window is '5 min'; allowed is a number and a unit",
        ),
        ("logs", {"logs": {"form": "pattern", "pattern": "x"}}, r"it needs a group \(\?<message>"),
        (
            "sync",
            {"sync": {"key": ["no"], "columns": {"id": "int"}}},
            "sync.key: no is no column; allowed are id",
        ),
        (
            "sync",
            {"sync": {"key": ["id"], "columns": {"id": "i"}}},
            "sync.columns: column id: 'i' is no type",
        ),
        (
            "sync",
            {"table": {"path": "x", "format": "parquet"}},
            "table.format is 'parquet'; allowed are delta",
        ),
        ("replay", {"replay": {"topic": "t", "since": "noon"}}, "replay.since is 'noon'; allowed is a time"),
        (
            "audit",
            {"source": {"bootstrap": "h:1", "pattern": "orders.*"}},
            "source.pattern is 'orders.*'; audit needs source.topics, the topics by name",
        ),
        (
            "sync",
            {"sync": {"key": ["id"], "columns": {"id": "int"}, "time_unit": "seconds"}},
            "sync.time_unit is 'seconds'; allowed are millis, micros",
        ),
        ("replay", {}, "replay.topic is missing: where the messages go"),
    ],
)
def test_jobs_refuse_their_own_settings(
    tmp_path: Path, job: str, sections: dict[str, Any], sentence: str
) -> None:
    plain = {"job": job, "name": "x", "checkpoint": "c", "source": {"bootstrap": "h:1", "topics": ["a"]}}
    tables: dict[str, Any] = {"table": {"path": "x"}, "tables": {"path": "x"}}
    known = find_job(job)
    assert known is not None
    wanted = {name: tables[name] for name in tables if name in known.sections}
    with pytest.raises(ConfigError, match=sentence):
        check_config(plain | wanted | sections, tmp_path)


def test_jobs_read_committed_messages_unless_they_are_told_otherwise(tmp_path: Path) -> None:
    source = check_config(RIGHT, tmp_path)["source"]
    assert source_options(source, False)["kafka.isolation.level"] == "read_committed"
    told = source | {"options": {"kafka.isolation.level": "read_uncommitted"}}
    assert source_options(told, False)["kafka.isolation.level"] == "read_uncommitted"


def test_a_driver_with_a_shipped_environment_leaves_no_folder(tmp_path: Path) -> None:
    program = "from tidemill.spark.pipeline import session; session._stand_beside_environment()"
    program += "; import os; assert os.path.exists('environment/bin')"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(RIGHT | {"table": {"format": "orc"}, "colour": 1}, tmp_path)
    assert len(refused.value.problems) == 3


def test_every_job_is_there() -> None:
    for name in JOBS:
        job = find_job(name)
        assert job is not None
        assert job.name == name
        assert (job.flows is None) != (job.run is None)


def test_validate_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('job = "archive"\nname = "orders"\n[source]\nbootstrap = "h:1"\n')
    refused = run_program("pipeline", "validate", "-c", str(path), code=2).stderr
    assert "checkpoint is missing" in refused
    assert "table.path is missing" in refused
    path.write_text("job = ")
    assert "is no TOML" in run_program("pipeline", "validate", "-c", str(path), code=2).stderr
    path.write_text(
        'job = "archive"\nname = "orders"\ncheckpoint = "c"\n[source]\nbootstrap = "h:1"\ntopics = ["a"]\n'
        '[table]\npath = "x"\n'
    )
    assert "a valid configuration of archive" in run_program("pipeline", "validate", "-c", str(path)).stdout
    other = run_program("pipeline", "run", "sync", "-c", str(path), code=2).stderr
    assert "job is 'archive' in the file and 'sync' on the command line" in other


def finished_state(folder: Path, name: str = "orders") -> PipelineState:
    state = PipelineState(folder, name)
    state.begin({"job": "archive", "master": "local[2]"})
    for number in range(3):
        facts = QueryFacts(number, number + 1, 10 * (number + 1), 10, number, 12.5, 800, 20 - 10 * number)
        state.batch("archive", facts)
    return state


def test_status_list_and_report_of_a_pipeline(tmp_path: Path) -> None:
    finished_state(tmp_path).end("finished")
    listed = json.loads(run_program("pipeline", "list", "--state", str(tmp_path), "--json").stdout)
    assert [(each["name"], each["state"]) for each in listed] == [("orders", "finished")]
    shown = run_program("pipeline", "status", "orders", "--state", str(tmp_path)).stdout
    assert shown.startswith("orders: finished (job archive")
    assert shown.splitlines()[2].split("\t")[:4] == ["archive", "2", "3", "30"]
    page = Path(run_program("pipeline", "report", "orders", "--state", str(tmp_path)).stdout.strip())
    assert page.read_text().count("<svg") == 3
    unknown = run_program("pipeline", "status", "nothing", "--state", str(tmp_path), code=2).stderr
    assert "has not run here" in unknown
    assert "archive" in run_program("pipeline", "jobs").stdout


def test_a_pipeline_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    state = finished_state(tmp_path)
    assert state.read()["state"] == "running"  # type: ignore[index]
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    state.status_path.write_text(json.dumps(state.status | {"pid": child}))
    assert state.read()["state"] == "died"  # type: ignore[index]


def test_events_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    state = finished_state(tmp_path)
    with state.events_path.open("a") as file:
        file.write('{"event": "bat')
    assert [event["event"] for event in state.events()] == ["started", "batch", "batch", "batch"]


def test_the_report_is_well_formed_and_escapes_what_it_shows(tmp_path: Path) -> None:
    state = finished_state(tmp_path)
    state.end("failed", error="<script>alert(1)</script>")
    status = state.read()
    assert status is not None
    tables = [SummaryTable("Why & where", ["reason", "letters"], [["<b>", 1200], [None, 2.5]])]
    page = render(status, list(state.events()), tables)
    assert "<script>" not in page
    assert "1,200" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    for plot in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[X] wrapped\nTraceback\ntidemill.spark.jobs.values.BadMessages: orders-0 at offset 1: no",
            "orders-0 at offset 1: no",
        ),
        ("one line\nanother", "one line"),
        ("", "ValueError"),
    ],
)
def test_the_sentence_of_an_error_is_its_own(text: str, sentence: str) -> None:
    assert first_sentence(ValueError(text)) == sentence


class EndedQuery:
    """A query of Spark that is over, with an error or without."""

    name = "orders-archive"
    isActive = False  # noqa: N815 - Spark's name
    lastProgress = None  # noqa: N815 - Spark's name

    def __init__(self, error: str | None) -> None:
        self._error = error

    def exception(self) -> Exception | None:
        return RuntimeError(self._error) if self._error else None

    def stop(self) -> None:
        pass


def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[str | None]) -> list[str]:
    """Run a pipeline whose query ends with each of these errors in turn; the events it wrote."""
    config = check_config(RIGHT, tmp_path)
    job = dataclasses.replace(config.job, flows=lambda inputs: [Flow("archive", None)])  # type: ignore[arg-type]
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    state = PipelineState(tmp_path, "orders")
    runner = Runner(dataclasses.replace(config, job=job), spark, state, LineDisplay("orders", io.StringIO()))
    monkeypatch.setattr(runner, "_start", lambda flow: EndedQuery(errors.pop(0)))
    try:
        runner.run()
    finally:
        assert not errors, "not every query was started"
    return [event["event"] for event in state.events()]


def test_a_query_that_died_of_a_slow_machine_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "Python worker failed to connect back."
    events = run_with(tmp_path, monkeypatch, [slow, slow, None])
    assert events == ["started", "restarted", "restarted", "finished"]
    with pytest.raises(PipelineFailed, match="failed to connect back"):
        run_with(tmp_path, monkeypatch, [slow] * (RESTARTS + 1))
    with pytest.raises(PipelineFailed, match="no such column"):
        run_with(tmp_path, monkeypatch, ["no such column"])
