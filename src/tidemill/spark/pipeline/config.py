"""A pipeline's configuration: one TOML file, read and checked without Spark.

```toml
job = "archive"
name = "orders-archive"
checkpoint = "state/orders-archive"

[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders"]

[value]
format = "json"
columns = { id = "bigint", item = "string", price = "decimal(12,2)" }

[table]
format = "delta"
path = "lake/orders"
```

The sections `source`, `trigger`, `spark` and `progress` exist for every job; the others belong to the job.
Relative paths are relative to the file, not to the folder where the command runs: a pipeline means the same
from everywhere.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.spark.pipeline.settings import ConfigError, Section, Setting, read_section

if TYPE_CHECKING:
    from tidemill.spark.jobs.job import Job

TOP: Section = {
    "job": Setting("text", help="the name of a job; `tidemill pipeline jobs` lists them"),
    "name": Setting("text", help="a name for this pipeline, of letters, digits, . _ and -"),
    "checkpoint": Setting(
        "text", "", help="a folder that outlives the process and that all of Spark can reach"
    ),
}
SOURCE: Section = {
    "bootstrap": Setting("text", help="HOST:PORT of brokers"),
    "topics": Setting("texts", [], help="topics to read"),
    "pattern": Setting("text", "", help="a regular expression of topic names, instead of topics"),
    "starting": Setting(
        "text", "earliest", help="earliest, latest, or offsets as Spark's connector writes them"
    ),
    "max_messages_per_batch": Setting("number", 0, minimum=0, help="0: no limit"),
    "commit_group": Setting("text", "", help="publish positions as this consumer group's"),
    "options": Setting("table", {}, help="further options of the source, such as kafka.security.protocol"),
}
TRIGGER: Section = {
    "mode": Setting("text", "available-now", ("available-now", "continuous")),
    "interval_seconds": Setting("decimal", 10, minimum=0, help="between micro-batches, when continuous"),
}
PROGRESS: Section = {
    "report": Setting("flag", True, help="write report.html when the job ends"),
    "lag": Setting("flag", True, help="ask the brokers how far behind each batch is"),
}
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclasses.dataclass(frozen=True)
class PipelineConfig:
    """A configuration that was found right."""

    job: Job
    name: str
    folder: Path
    checkpoint: str
    sections: dict[str, dict[str, Any]]
    spark: dict[str, str]

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.sections[section]

    def path(self, text: str) -> str:
        """A path of the file, or a URI as it is."""
        return text if "://" in text or Path(text).is_absolute() else str(self.folder / text)


def load_config(path: Path | str, job_name: str | None = None) -> PipelineConfig:
    """Read and check a file; `job_name` must be the job it describes, if both are given."""
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path} is no TOML: {error}"]) from error
    return check_config(given, path.resolve().parent, job_name)


def check_config(given: dict[str, Any], folder: Path, job_name: str | None = None) -> PipelineConfig:
    """Everything that is wrong is said at once."""
    problems: list[str] = []
    plain = {key: value for key, value in given.items() if key in TOP or not _is_table(value)}
    top = read_section("top", plain, TOP, problems)
    job = _job(job_name or top.get("job", ""), top.get("job", ""), problems)
    sections = _sections(given, job, problems)
    spark = _spark_settings(given.get("spark", {}), problems)
    if "name" in top and not NAME.fullmatch(str(top["name"])):
        problems.append(f"top.name is {top['name']!r}; allowed are letters, digits, . _ and -")
    if job is not None and not problems:
        problems += job.problems(sections)
    if job is not None and job.is_streaming and not top.get("checkpoint"):
        problems.append(f"top.checkpoint is missing: {TOP['checkpoint'].help}")
    if problems or job is None:
        raise ConfigError([problem.replace("top.", "", 1) for problem in problems])
    checkpoint = top["checkpoint"]
    absolute = checkpoint if "://" in checkpoint or not checkpoint else str(folder / checkpoint)
    return PipelineConfig(job, top["name"], folder, absolute, sections, spark)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _job(wanted: str, named: str, problems: list[str]) -> Job | None:
    from tidemill.spark.jobs import JOBS, find_job

    if named and wanted != named:
        problems.append(f"job is {named!r} in the file and {wanted!r} on the command line")
    if not wanted:
        return None
    job = find_job(wanted)
    if job is None:
        problems.append(f"job {wanted!r} is unknown; allowed are {', '.join(JOBS)}")
    return job


def _sections(given: dict[str, Any], job: Job | None, problems: list[str]) -> dict[str, dict[str, Any]]:
    if job is None:
        return {}
    known = {"source": SOURCE, "trigger": TRIGGER, "progress": PROGRESS, **job.sections}
    for name, value in given.items():
        if _is_table(value) and name not in known and name != "spark":
            problems.append(f"[{name}] is unknown to {job.name}; allowed are {', '.join([*known, 'spark'])}")
    return {
        name: read_section(name, given.get(name, {}), section, problems) for name, section in known.items()
    }


def _spark_settings(given: Any, problems: list[str]) -> dict[str, str]:
    if not _is_table(given):
        problems.append("[spark] is no section: write it as a table")
        return {}
    flat = dict(_flattened("", given))
    for name in flat:
        if not name.startswith("spark."):
            problems.append(f"spark: {name} is no setting of Spark: they begin with spark.")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flat.items()
    }


def _flattened(prefix: str, table: dict[str, Any]) -> list[tuple[str, Any]]:
    """TOML reads `spark.sql.x = 1` as tables in tables."""
    flat = []
    for name, value in table.items():
        full = f"{prefix}{name}"
        flat += _flattened(f"{full}.", value) if _is_table(value) else [(full, value)]
    return flat
