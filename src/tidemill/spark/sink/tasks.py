"""What a task does with its rows: route, encode, and hand over, by either guarantee.

    write_task(settings, rows, name, facts)      # -> Staged: nothing is visible yet (exactly once)
    deliver_task(settings, rows, facts)          # -> None: everything is visible (at least once)

Both run in a Python worker of an executor, in front of an iterator of Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tidemill.model.errors import TidemillError
from tidemill.spark.client.cluster import kept_cluster
from tidemill.spark.sink.batching import Accumulator, Batch
from tidemill.spark.sink.publisher import Delivery, Publisher
from tidemill.spark.sink.routing import Router
from tidemill.spark.sink.settings import SinkSettings
from tidemill.spark.sink.staging import Stage, Staged, Task
from tidemill.spark.sink.steps import Step, reached
from tidemill.spark.sink.topics import SinkTopics
from tidemill.spark.sink.transaction import idempotent_producer

if TYPE_CHECKING:
    from pyspark import TaskContext

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
SPECULATION_PROPERTY = "spark.speculation"
APPLICATION_PROPERTY, EXECUTION_PROPERTY = "spark.app.id", "spark.sql.execution.root.id"
STREAM_SESSION_PROPERTY = "spark.sql.streaming.internal.stateStore.partitions"
"""Spark sets it in the session that it makes for a query, and nobody else does: the query's frames carry it."""


class SpeculationRefused(TidemillError):
    """Spark may run a task twice at the same time."""


class TaskFacts(NamedTuple):
    """What Spark tells a task about itself."""

    task: Task
    query: str | None
    batch: int | None
    attempt: str | None = None
    """At this batch: a batch that is run again is another execution of Spark, whatever is written in it."""
    is_of_stream: bool = False
    """The rows belong to a query, also where Spark does not say to which (in a thread that is not the query's)."""


def task_facts() -> TaskFacts:
    """Of the task that runs in this process; refuses to run under speculation."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise TidemillError("the sink writes only inside a task of Spark")
    if (context.getLocalProperty(SPECULATION_PROPERTY) or "false").lower() == "true":
        raise SpeculationRefused(
            "spark.speculation is true: two copies of a task would write the same rows at the same time;"
            " set spark.speculation to false for queries that write to topics"
        )
    batch = context.getLocalProperty(BATCH_PROPERTY)
    task = Task(context.partitionId(), context.attemptNumber())
    query = context.getLocalProperty(QUERY_PROPERTY)
    is_of_stream = bool(query or context.getLocalProperty(STREAM_SESSION_PROPERTY))
    return TaskFacts(task, query, int(batch) if batch else None, _attempt(context), is_of_stream)


def _attempt(context: TaskContext) -> str | None:
    application = context.getLocalProperty(APPLICATION_PROPERTY)
    execution = context.getLocalProperty(EXECUTION_PROPERTY)
    return f"{application}/{execution}" if application and execution else None


def write_task(settings: SinkSettings, rows: Iterable[pa.RecordBatch], name: str, facts: TaskFacts) -> Staged:
    """Make batches of the rows and stage them under this name."""
    batch_id = facts.batch or 0
    reached(name, batch_id, Step.WRITING)
    with kept_cluster(settings.client) as cluster:
        topics = SinkTopics(cluster, settings.delivery_timeout_ms)
        stage = Stage(cluster, topics, settings, name, facts.task)
        _encode(settings, topics, rows, facts.task, stage.add)
        staged = stage.close()
    reached(name, batch_id, Step.STAGED)
    return staged


def deliver_task(settings: SinkSettings, rows: Iterable[pa.RecordBatch], facts: TaskFacts) -> None:
    """Send the rows to their partitions at once."""
    patience_ms = settings.delivery_timeout_ms
    with kept_cluster(settings.client) as cluster:
        topics = SinkTopics(cluster, patience_ms)
        producer = idempotent_producer(cluster, patience_ms)
        publisher = Publisher(cluster, producer, Delivery(settings.acks, None, patience_ms))
        _encode(settings, topics, rows, facts.task, publisher.send)
        publisher.flush()


def _encode(
    settings: SinkSettings,
    topics: SinkTopics,
    rows: Iterable[pa.RecordBatch],
    task: Task,
    take: Callable[[Batch], None],
) -> None:
    router = Router(settings, topics.partition_count, first_partition=task.number)
    accumulator = Accumulator(settings.codec, settings.batch_bytes, settings.level)
    for record_batch in rows:
        for target, routed in router.route(record_batch):
            for batch in accumulator.append(target, routed):
                take(batch)
    for batch in accumulator.close():
        take(batch)
