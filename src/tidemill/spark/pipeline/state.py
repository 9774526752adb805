"""What a pipeline leaves behind for people and programs: `status.json`, `events.jsonl`, `report.html`.

    ~/.local/state/tidemill/pipelines/orders-archive/
      status.json      the newest facts, replaced after every batch
      events.jsonl     one JSON object per line: started, batch, restarted, stopping, stopped, finished, failed
      report.html      written when the pipeline ends

The folder is that of TIDEMILL_PIPELINES, else below XDG_STATE_HOME. It is a view, not the truth: positions
are in the checkpoint and in the tables, and removing the folder harms nothing.

A status says `running` with a process id; if that process is gone, the pipeline has died without saying so.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OVER = ("finished", "stopped", "failed")
KEPT_EVENT_BYTES = 64 * 1024 * 1024


def default_folder() -> Path:
    named = os.environ.get("TIDEMILL_PIPELINES")
    if named:
        return Path(named)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tidemill" / "pipelines"


@dataclasses.dataclass
class QueryFacts:
    """The newest batch of one query, and its sums since the start."""

    batch_id: int = -1
    batches: int = 0
    messages: int = 0
    rows: int = 0
    bad_rows: int = 0
    messages_per_second: float = 0.0
    batch_ms: int = 0
    behind: int | None = None


class PipelineState:
    """The files of one pipeline."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder / name
        self.events_path = self.folder / "events.jsonl"
        self.status_path = self.folder / "status.json"
        self.report_path = self.folder / "report.html"
        self.status: dict[str, Any] = {}

    def begin(self, facts: dict[str, Any]) -> None:
        """A new run: the events of the last one are kept as `events.1.jsonl`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.events_path.exists():
            os.replace(self.events_path, self.folder / "events.1.jsonl")
        own = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        self.status = {"name": self.name, "state": "running"} | own | facts | {"queries": {}}
        self._save()
        self.event("started", **facts)

    def event(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"time": time.time(), "pipeline": self.name, "event": kind} | facts, default=str)
        if self.events_path.exists() and self.events_path.stat().st_size > KEPT_EVENT_BYTES:
            os.replace(self.events_path, self.folder / "events.1.jsonl")
        with self.events_path.open("a") as file:
            file.write(line + "\n")

    def batch(self, query: str, facts: QueryFacts, **more: Any) -> None:
        self.status["queries"][query] = dataclasses.asdict(facts)
        self.status["updated"] = time.time()
        self._save()
        self.event("batch", query=query, **dataclasses.asdict(facts), **more)

    def end(self, state: str, totals: dict[str, QueryFacts] | None = None, error: str | None = None) -> None:
        """`totals` are the last facts: a batch that only closed windows came after the last report."""
        assert state in OVER, state
        self.status["queries"] |= {
            query: dataclasses.asdict(facts) for query, facts in (totals or {}).items()
        }
        self.status |= {"state": state, "ended": time.time()} | ({"error": error} if error else {})
        self._save()
        self.event(state, **({"error": error} if error else {}))

    def _save(self) -> None:
        temporary = self.status_path.with_suffix(".new")
        temporary.write_text(json.dumps(self.status, indent=1))
        os.replace(temporary, self.status_path)

    def read(self) -> dict[str, Any] | None:
        """The status as it is now; `died` when it says running and its process on this host is gone."""
        try:
            found: dict[str, Any] = json.loads(self.status_path.read_text())
        except FileNotFoundError:
            return None
        if (
            found["state"] == "running"
            and found["host"] == socket.gethostname()
            and not _is_alive(found["pid"])
        ):
            found["state"] = "died"
        return found

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the newest run; a line that was cut off by a crash is left out."""
        if not self.events_path.exists():
            return
        for line in self.events_path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def all_states(folder: Path) -> list[PipelineState]:
    names = sorted(path.parent.name for path in folder.glob("*/status.json"))
    return [PipelineState(folder, name) for name in names]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
