"""Runs a job to its end, or until it is asked to stop.

    Runner(config, spark, state, display).run()       # "finished" or "stopped"; raises what made a query fail

Every flow of a job is a streaming query with a checkpoint of its own, `<checkpoint>/<flow>`. A restart goes
on from there: Spark repeats the batch that was not finished, and tables and sink know whether they have it.

A stop (SIGTERM, SIGINT, or `stop.set()`) finishes the batch that runs. Spark has no such thing:
`query.stop()` interrupts a batch in the middle. So the runner lets the running batch end by itself; the next
one, before it has done anything, raises `StopRequested`, which ends the query with nothing half done. A query
that is idle is stopped at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.jobs.job import BatchResult, Flow, Inputs, source_options
from tidemill.spark.pipeline.lag import Lag
from tidemill.spark.pipeline.progress import Display, ProgressWatch, TaskWatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidemill.spark.pipeline.config import PipelineConfig
    from tidemill.spark.pipeline.state import PipelineState

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""A query that writes to a topic cannot be asked to end before its next batch; after this long it is interrupted,
which its transactions bear."""


RESTARTS = 3
SLOW_PYTHON = "failed to connect back"
"""Spark gives a Python process ten seconds to start, whatever the machine is doing; a query that died of that is
started again from its checkpoint, this often."""


NOT_READING = ("Initializing", "Getting offsets")
"""How Spark's status of a query begins until its source has answered for the first time."""


class StopRequested(Exception):
    """Raised in place of a batch that is not to begin."""


class PipelineFailed(Exception):
    """A query ended with an error; the sentence is the query's own."""


class Runner:
    """One run of one pipeline."""

    def __init__(
        self,
        config: PipelineConfig,
        spark: SparkSession,
        state: PipelineState,
        display: Display,
    ) -> None:
        self._config, self._spark, self._state, self._display = config, spark, state, display
        self.stop = threading.Event()
        self._inputs = Inputs(spark, config)
        options = source_options(config["source"], include_headers=False)
        self._lag = Lag(options) if config["progress"]["lag"] else None
        self._watch = ProgressWatch(state, display, self._lag)

    def run(self) -> str:
        """How it ended; the state and the report say the same."""
        self._state.begin({"job": self._config.job.name, "master": self._spark.sparkContext.master})
        try:
            ended = self._run_flows() if self._config.job.is_streaming else self._run_batch()
        except BaseException as error:
            self._state.end("failed", self._watch.totals(), first_sentence(error))
            raise
        finally:
            self._display.close()
            if self._lag is not None:
                self._lag.close()
        self._state.end(ended, self._watch.totals())
        return ended

    # -- one batch ----------------------------------------------------------------------------------------

    def _run_batch(self) -> str:
        assert self._config.job.run is not None
        started = time.monotonic()
        with TaskWatch(self._spark, self._display):
            result = self._config.job.run(self._inputs)
        self._watch.wrote(self._config.job.name, 0, result)
        facts = self._watch.totals()[self._config.job.name]
        facts.batch_id, facts.batches, facts.messages = 0, 1, result.rows
        facts.batch_ms = int((time.monotonic() - started) * 1000)
        facts.messages_per_second = round(result.rows * 1000 / max(1, facts.batch_ms), 1)
        self._state.batch(self._config.job.name, facts, batch_messages=result.rows)
        self._display.batch(self._config.job.name, facts)
        return "finished"

    # -- streams ------------------------------------------------------------------------------------------

    def _run_flows(self) -> str:
        assert self._config.job.flows is not None
        queries: dict[str, StreamingQuery] = {}
        try:
            flows = {flow.name: flow for flow in self._config.job.flows(self._inputs)}
            for name, flow in flows.items():
                queries[name] = self._start(flow)
                if len(queries) == 1 < len(flows):
                    wait_for_source(queries[name])
            self._wait(queries, flows)
        finally:
            self._look(queries)
            self._end(list(queries.values()))
        return "stopped" if self.stop.is_set() else "finished"

    def _start(self, flow: Flow) -> StreamingQuery:
        writer = flow.frame.writeStream.queryName(f"{self._config.name}-{flow.name}").outputMode("append")
        writer = writer.option("checkpointLocation", f"{self._config.checkpoint}/{flow.name}")
        trigger = self._config["trigger"]
        if trigger["mode"] == "available-now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger['interval_seconds']} seconds")
        if flow.topic is not None:
            return writer.format("tidemill").options(**flow.topic).start()
        return writer.foreachBatch(self._batch_function(flow)).start()

    def _batch_function(self, flow: Flow) -> Callable[[DataFrame, int], None]:
        def batch(frame: DataFrame, batch_id: int) -> None:
            if self.stop.is_set():
                raise StopRequested
            assert flow.write is not None
            query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            assert query_id is not None, "Spark names the query of every batch"
            result: BatchResult = flow.write(frame, query_id, batch_id)
            self._watch.wrote(flow.name, batch_id, result)

        return batch

    def _wait(self, queries: dict[str, StreamingQuery], flows: dict[str, Flow]) -> None:
        restarts = RESTARTS
        while not self.stop.is_set():
            slow = _slow(queries) if restarts > 0 else []
            restarts -= len(slow)
            for name in slow:
                self._restart(name, queries, flows)
            active = any(query.isActive for query in queries.values())
            self._look(queries)
            if not active and not (restarts > 0 and _slow(queries)):
                break
            self._check(queries, tolerate_slow=restarts > 0)
            time.sleep(POLL_SECONDS)
        if self.stop.is_set():
            self._state.event("stopping")
            self._let_batches_end(list(queries.values()))
        self._check(queries)

    def _restart(self, name: str, queries: dict[str, StreamingQuery], flows: dict[str, Flow]) -> None:
        self._watch.look(name, queries[name])
        self._state.event("restarted", query=name, why="Python did not start in time")
        queries[name] = self._start(flows[name])

    def _look(self, queries: dict[str, StreamingQuery]) -> None:
        for name, query in queries.items():
            self._watch.look(name, query)

    def _let_batches_end(self, queries: list[StreamingQuery]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(query.isActive for query in queries):
            for query in queries:
                if query.isActive and (not query.status["isTriggerActive"] or time.monotonic() > deadline):
                    query.stop()
            time.sleep(POLL_SECONDS)

    def _check(self, queries: dict[str, StreamingQuery], tolerate_slow: bool = False) -> None:
        slow = _slow(queries) if tolerate_slow else []
        for name, query in queries.items():
            error = None if query.isActive or name in slow else query.exception()
            if error is not None and not (self.stop.is_set() and StopRequested.__name__ in str(error)):
                raise PipelineFailed(f"query {query.name} failed: {first_sentence(error)}") from error

    def _end(self, queries: list[StreamingQuery]) -> None:
        for query in queries:
            with contextlib.suppress(Exception):
                query.stop()


def wait_for_source(query: StreamingQuery) -> None:
    """Until the first source of a session has started, a second one may not start.

    Spark keeps one map of variables for all sources of a kind in a session, and each adds to it as it starts, with no
    lock: two that do so at the same moment can leave the map broken, and every later batch "not serializable". A source
    that starts later finds all names there and changes nothing.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while query.isActive and query.status["message"].startswith(NOT_READING) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _slow(queries: dict[str, StreamingQuery]) -> list[str]:
    """Queries that ended because Python did not start in time."""
    return [
        name
        for name, query in queries.items()
        if not query.isActive and SLOW_PYTHON in str(query.exception() or "")
    ]


def first_sentence(error: Any) -> str:
    """The Python error inside Spark's wrapping, if there is one; else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("tidemill.") and ": " in line]
    if ours:
        return ours[-1].partition(": ")[2]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop; a second SIGINT interrupts."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
