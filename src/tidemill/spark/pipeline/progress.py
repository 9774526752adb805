"""Progress of a running pipeline: Spark's own reports, completed with lag and rows, for the status and for people.

`ProgressWatch` reads Spark's report of every micro-batch, asks how far behind the query is, and hands both to the
state and to a display:

    orders-archive archive: batch 12, 650,000 messages so far, 1.9 s (26,300/s), 150,000 behind

On a terminal each query has a bar that fills as the backlog shrinks; in a pipe or a log each batch is a line.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from tidemill.spark.pipeline.lag import Lag
from tidemill.spark.pipeline.state import PipelineState, QueryFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidemill.spark.jobs.job import BatchResult


SETTLING_SECONDS = 1.0


class Display(Protocol):
    """Where people look."""

    def batch(self, query: str, facts: QueryFacts) -> None: ...

    def tasks(self, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class LineDisplay:
    """One line per batch, for pipes and logs."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._name, self._out = name, out

    def batch(self, query: str, facts: QueryFacts) -> None:
        print(f"{self._name} {query}: {sentence(facts)}", file=self._out, flush=True)

    def tasks(self, done: int, total: int) -> None:
        print(f"{self._name}: {done} of {total} tasks", file=self._out, flush=True)

    def close(self) -> None:
        pass


class BarDisplay:
    """A bar per query that is full when nothing is left to read."""

    def __init__(self, name: str, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._name = name
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
        self._progress = Progress(*columns, console=Console(file=out))
        self._progress.start()
        self._bars: dict[str, Any] = {}

    def batch(self, query: str, facts: QueryFacts) -> None:
        self._show(query, facts.messages, facts.messages + (facts.behind or 0), sentence(facts))

    def tasks(self, done: int, total: int) -> None:
        self._show(self._name, done, total, f"{done} of {total} tasks")

    def _show(self, title: str, done: int, total: int, text: str) -> None:
        if title not in self._bars:
            self._bars[title] = self._progress.add_task(title, total=max(1, total), facts="")
        self._progress.update(self._bars[title], completed=done, total=max(1, total), facts=text)

    def close(self) -> None:
        self._progress.stop()


def sentence(facts: QueryFacts) -> str:
    """`batch 12, 650,000 messages so far, 1.9 s (26,300/s), 150,000 behind, 3 bad`"""
    seconds = facts.batch_ms / 1000
    text = f"batch {facts.batch_id}, {facts.messages:,} messages so far, {seconds:.1f} s"
    text += f" ({facts.messages_per_second:,.0f}/s)"
    if facts.behind is not None:
        text += f", {facts.behind:,} behind"
    return text + (f", {facts.bad_rows:,} bad" if facts.bad_rows else "")


class ProgressWatch:
    """Follows queries by asking: Spark's listeners speak later, sometimes after the query has ended."""

    def __init__(self, state: PipelineState, display: Display, lag: Lag | None) -> None:
        self._state, self._display, self._lag = state, display, lag
        self._facts: dict[str, QueryFacts] = {}
        self._seen: dict[str, str] = {}
        self._reads: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def wrote(self, name: str, batch_id: int, result: BatchResult) -> None:
        """What a batch put into tables; called in the thread of the query, before Spark reports the batch."""
        with self._lock:
            self._reads[name, batch_id] = result.reads
            facts = self._of(name)
            facts.rows += result.rows
            facts.bad_rows += result.bad_rows

    def _of(self, name: str) -> QueryFacts:
        return self._facts.setdefault(name, QueryFacts())

    def look(self, name: str, query: StreamingQuery) -> None:
        """Take note of every batch that has ended since the last look."""
        newest = query.lastProgress
        if newest is None or newest["timestamp"] <= self._seen.get(name, ""):
            return
        seen = self._seen.get(name, "")
        for progress in query.recentProgress:
            if progress["timestamp"] > seen:
                self._seen[name] = progress["timestamp"]
                self._ended(name, progress)

    def _ended(self, name: str, progress: Any) -> None:
        """Spark also reports that nothing came; such reports, and batches that only close windows, have no messages."""
        if not progress["numInputRows"]:
            return
        behind = self._behind(progress)
        with self._lock:
            facts = self._of(name)
            reads = self._reads.pop((name, progress["batchId"]), 1)
            messages = progress["numInputRows"] // max(1, reads)
            facts.batch_id, facts.batches = progress["batchId"], facts.batches + 1
            facts.messages += messages
            facts.messages_per_second = round(messages * 1000 / max(1, progress["batchDuration"]), 1)
            facts.batch_ms, facts.behind = progress["batchDuration"], behind
            steps_ms = dict(progress["durationMs"])
            self._state.batch(name, facts, batch_messages=messages, steps_ms=steps_ms)
            self._display.batch(name, facts)

    def _behind(self, progress: Any) -> int | None:
        if self._lag is None or not progress["sources"]:
            return None
        return self._lag.behind(progress["sources"][0]["endOffset"])

    def totals(self) -> dict[str, QueryFacts]:
        with self._lock:
            return dict(self._facts)


class TaskWatch:
    """Progress of a job that is one batch: tasks done of tasks known, asked of Spark twice a second and at the end."""

    def __init__(self, spark: SparkSession, display: Display, interval_seconds: float = 0.5) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._display, self._interval = display, interval_seconds
        self._stages: dict[int, tuple[int, int]] = {}
        self._shown = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="task-watch", daemon=True)

    def __enter__(self) -> TaskWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Spark counts a task some moments after the job has ended, unless it failed; then nobody counts the rest."""
        self._ended.set()
        self._thread.join()
        deadline = time.monotonic() + SETTLING_SECONDS
        self._look()
        while kind is None and self._unfinished() and time.monotonic() < deadline:
            time.sleep(SETTLING_SECONDS / 20)
            self._look()

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            self._look()

    def _look(self) -> None:
        """Stages that are no longer active are asked once more: their last tasks ended after the last look."""
        for stage in {*self._unfinished(), *self._tracker.getActiveStageIds()}:
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        totals = (
            sum(done for done, _ in self._stages.values()),
            sum(total for _, total in self._stages.values()),
        )
        if totals != self._shown:
            self._display.tasks(*totals)
            self._shown = totals

    def _unfinished(self) -> list[int]:
        return [stage for stage, (done, total) in self._stages.items() if done < total]
