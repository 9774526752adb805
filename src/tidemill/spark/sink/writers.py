"""The sink as Spark sees it: a writer for batches and one for streams.

Spark calls `write` in the tasks, then `commit` (or `abort`) in a fresh process beside the driver, with what the tasks
returned. A stream's writer is made anew for each call, so nothing is kept in it: who the query is and which batch it is
at, the tasks learn from their context and pass on in their messages. A batch writer is made once and travels to the
tasks and back, so it carries the name of its run.

    df.write.format("tidemill").option("kafka.bootstrap.servers", …).option("topic", "orders").mode("append").save()

`abort` has nothing to undo: what was not committed was never visible. It only drops staged copies.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidemill.model.errors import TidemillError
from tidemill.spark.client.cluster import BrokerError, Cluster
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.sink.publication import forget_run, publish
from tidemill.spark.sink.settings import SinkSettings
from tidemill.spark.sink.staging import Staged, staged_ends
from tidemill.spark.sink.tasks import deliver_task, task_facts, write_task
from tidemill.spark.sink.topics import SinkTopics

if TYPE_CHECKING:
    Messages = Sequence[WriterCommitMessage | None]


class TaskMessage(WriterCommitMessage):
    """What a task returns: for whom it wrote, and what waits to be published (None when all is delivered)."""

    def __init__(self, query: str, staged: Staged | None) -> None:
        self.query = query
        self.staged = staged


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._run = f"run-{uuid.uuid4()}"
        self._query, self._batch = split_commit_key(settings.commit_key or self._run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        facts = task_facts()._replace(batch=self._batch)
        if not self._settings.is_exactly_once:
            deliver_task(self._settings, iterator, facts)
            return TaskMessage(self._query, None)
        return TaskMessage(self._query, write_task(self._settings, iterator, self._run, facts))

    def commit(self, messages: Messages) -> None:
        staged = _staged(messages)
        if not staged:
            return
        is_published = publish(self._settings, self._query, self._batch, staged)
        if is_published and self._settings.commit_key is None:
            forget_run(self._settings, self._query, self._batch)
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
            return TaskMessage(facts.query, None)
        return TaskMessage(facts.query, write_task(self._settings, iterator, facts.query, facts))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 (Spark's name)
        staged = _staged(messages)
        if not staged:
            return
        (query,) = {message.query for message in messages if isinstance(message, TaskMessage)}
        publish(self._settings, query, batchId, staged)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        with contextlib.suppress(BrokerUnavailable, BrokerError), Cluster(self._settings.client) as cluster:
            SinkTopics(cluster, 0).delete_staged(staged_ends(staged))


def split_commit_key(key: str) -> tuple[str, int]:
    """`my-query/orders/17` is batch 17 of `my-query/orders`, so that old decisions go; any other name is a batch 0."""
    match = re.fullmatch(r"(.+)/(0|[1-9][0-9]{0,17})", key)
    return (match[1], int(match[2])) if match else (key, 0)


def _staged(messages: Messages) -> list[Staged]:
    """What waits to be published; a task that failed has no message."""
    return [each.staged for each in messages if isinstance(each, TaskMessage) and each.staged is not None]


def _drop_run(settings: SinkSettings, staged: list[Staged]) -> None:
    """The staging topic of a run that is over, if it ever needed one."""
    for topic in {where.topic for where in staged_ends(staged)}:
        with contextlib.suppress(BrokerUnavailable, BrokerError), Cluster(settings.client) as cluster:
            SinkTopics(cluster, 0).delete_topic(topic)
