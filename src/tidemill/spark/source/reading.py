"""What a task does: one range, from the wire or from files, as Arrow batches.

Connections outlive tasks: a Python worker of Spark serves one task after the other, and a stream would
otherwise connect anew in every batch. They are kept by the settings that made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from tidemill.spark.client.cluster import Cluster
from tidemill.spark.client.settings import ClientSettings
from tidemill.spark.source.batches import AbortedTransactions, Payload, visible_batches
from tidemill.spark.source.decoding import Decoder
from tidemill.spark.source.fetching import Fetched, fetch_range
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.planning import ReadTask
from tidemill.spark.source.room import Room
from tidemill.spark.source.segments import read_segments
from tidemill.spark.source.settings import SourceSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

_clusters: dict[ClientSettings, Cluster] = {}


def read_task(task: ReadTask, schema: StructType, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    """The records of one task."""
    cluster = _clusters.setdefault(settings.client, Cluster(settings.client))
    cluster.assume_leader(task.offsets.where, task.leader)
    decoder = Decoder(task.offsets, to_arrow_schema(schema, timezone="UTC"), task.expected)
    portions = _portions(task, cluster, settings)
    return decoder.decode(payloads(portions, task.offsets, settings.reads_committed, Room()))


def read_tasks(
    tasks: Iterable[InputPartition], schema: StructType, settings: SourceSettings
) -> Iterator[pa.RecordBatch]:
    """The records of several tasks, one after the other."""
    for task in tasks:
        assert isinstance(task, ReadTask)
        yield from read_task(task, schema, settings)


def _portions(task: ReadTask, cluster: Cluster, settings: SourceSettings) -> Iterator[Fetched]:
    wanted = task.offsets
    if settings.segment_directories:
        reached = yield from read_segments(settings.segment_directories, task, settings.reads_committed)
        wanted = wanted._replace(start=reached)
    yield from fetch_range(cluster, wanted, settings)


def payloads(
    portions: Iterable[Fetched], wanted: OffsetRange, committed: bool, room: Room
) -> Iterator[Payload]:
    """The batches with records that a reader of this range may see."""
    aborted = AbortedTransactions() if committed else None
    for portion in portions:
        if aborted is not None:
            aborted.add(portion.aborted)
        yield from visible_batches(portion.records, wanted._replace(start=portion.start), aborted, room)
