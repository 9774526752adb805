"""The sink as Spark sees it: a writer for batches and one for streams.

Spark calls `write` in the tasks, then `commit` (or `abort`) in a fresh process beside the driver, with what the tasks
returned. A stream's writer is made anew for each call, so nothing is kept in it: who the query is and which batch it is
at, the tasks learn from their context and pass on in their messages. A batch writer is made once and travels to the
tasks and back, so it carries the name of its run.

A batch write is known by its `commitKey`; without one, in `foreachBatch`, by the query, the batch and the topic, which
the tasks learn in the same way, because the function is run again after a failure; else by its run, which is never
repeated.

    df.write.format("tidemill").option("kafka.bootstrap.servers", …).option("topic", "orders").mode("append").save()

`abort` has nothing to undo: what was not committed was never visible. It only drops staged copies.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidemill.model.errors import TidemillError
from tidemill.spark.client.cluster import BrokerError, Cluster
from tidemill.spark.errors import BadOption, BrokerUnavailable
from tidemill.spark.sink.decisions import Writer
from tidemill.spark.sink.publication import forget_run, publish
from tidemill.spark.sink.settings import SinkSettings
from tidemill.spark.sink.staging import Staged, staged_ends
from tidemill.spark.sink.tasks import TaskFacts, deliver_task, task_facts, write_task
from tidemill.spark.sink.topics import SinkTopics

ANY_TOPIC = "*"
"""In the name of a write whose topics are a column; no topic is called so."""

if TYPE_CHECKING:
    Messages = Sequence[WriterCommitMessage | None]


class Name(NamedTuple):
    """What a write is known by; `attempt` is that at a batch whose writes did not name themselves."""

    query: str
    batch: int
    attempt: str | None = None


class TaskMessage(WriterCommitMessage):
    """What a task returns: for whom it wrote, and what waits to be published (None when all is delivered)."""

    def __init__(self, name: Name, staged: Staged | None) -> None:
        self.name = name
        self.staged = staged


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._run = f"run-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        facts = task_facts()
        if not self._settings.is_exactly_once:
            deliver_task(self._settings, iterator, facts)
            return TaskMessage(Name(self._run, 0), None)
        name = batch_name(self._settings, self._run, facts)
        facts = facts._replace(batch=name.batch)
        return TaskMessage(name, write_task(self._settings, iterator, self._run, facts))

    def commit(self, messages: Messages) -> None:
        staged = _staged(messages)
        if not staged:
            return
        name = _name(messages)
        writer = None if name.attempt is None else Writer(name.attempt, self._run)
        is_published = publish(self._settings, name.query, name.batch, staged, writer)
        if is_published and name.query == self._run:
            forget_run(self._settings, name.query, name.batch)
        _drop_run(self._settings, staged)

    def abort(self, messages: Messages) -> None:
        _drop_run(self._settings, _staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        facts = task_facts()
        if facts.query is None or facts.batch is None:
            raise TidemillError("Spark did not say which query and batch this task belongs to")
        if not self._settings.is_exactly_once:
            deliver_task(self._settings, iterator, facts)
            return TaskMessage(Name(facts.query, facts.batch), None)
        staged = write_task(self._settings, iterator, facts.query, facts)
        return TaskMessage(Name(facts.query, facts.batch), staged)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 (Spark's name)
        staged = _staged(messages)
        if not staged:
            return
        publish(self._settings, _name(messages).query, batchId, staged)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        with contextlib.suppress(BrokerUnavailable, BrokerError), Cluster(self._settings.client) as cluster:
            SinkTopics(cluster, 0).delete_staged(staged_ends(staged))


def batch_name(settings: SinkSettings, run: str, facts: TaskFacts) -> Name:
    """The name of a batch write; refuses rows of a stream whose batch nobody can name."""
    if settings.commit_key is not None:
        return Name(*split_commit_key(settings.commit_key))
    if not facts.is_of_stream:
        return Name(run, 0)
    if facts.query is None or facts.batch is None or facts.attempt is None:
        raise BadOption(
            "commitKey",
            "must be set: the rows are those of a stream, and Spark does not say of which batch, because the thread"
            " that writes them is not the query's",
            "a name of its own for each write, such as NAME/17 in batch 17; or write in a pyspark.InheritableThread",
        )
    return Name(f"{facts.query}/{settings.topic or ANY_TOPIC}", facts.batch, facts.attempt)


def split_commit_key(key: str) -> tuple[str, int]:
    """`my-query/orders/17` is batch 17 of `my-query/orders`, so that old decisions go; any other name is a batch 0."""
    match = re.fullmatch(r"(.+)/(0|[1-9][0-9]{0,17})", key)
    return (match[1], int(match[2])) if match else (key, 0)


def _name(messages: Messages) -> Name:
    """For whom all tasks wrote."""
    (name,) = {message.name for message in messages if isinstance(message, TaskMessage)}
    return name


def _staged(messages: Messages) -> list[Staged]:
    """What waits to be published; a task that failed has no message."""
    return [each.staged for each in messages if isinstance(each, TaskMessage) and each.staged is not None]


def _drop_run(settings: SinkSettings, staged: list[Staged]) -> None:
    """The staging topic of a run that is over, if it ever needed one."""
    for topic in {where.topic for where in staged_ends(staged)}:
        with contextlib.suppress(BrokerUnavailable, BrokerError), Cluster(settings.client) as cluster:
            SinkTopics(cluster, 0).delete_topic(topic)
