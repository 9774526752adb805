"""A small micro-batch, read where it is planned.

Spark takes longer to start and to feed a Python worker in a task (some 60 ms) than a small batch takes to read. For
the readers of its own `SimpleDataSourceStreamReader` it has a shorter way: the process that plans a query may hand
over the rows together with the partitions. Spark keeps them as a block and reads it in the JVM, without a worker.

    reading = DriverReading(schema, settings)
    rows = reading.read(cluster, tasks)          # Arrow batches, all rows of these tasks; None: the tasks are to read
    handover.offer(rows)                         # where Spark looks for them, see `Handover`

All partitions of one broker are asked in one request, several brokers at the same time. Whatever is unusual is left to
tasks, which know how to retry, to wait and to judge loss:

    too large      the rows, or what the broker sent for them, are more than `driverRead.maxBytes`
    any failure    a leader that moved, records that are gone, a damaged batch
    silence        no partition brings a whole batch although the range goes on: a gap, or a leader that is behind

After that the next `PAUSE_BATCHES` batches go to tasks at once: what was read in vain would be read twice each time.

A broker is asked for more than a micro-batch wants, as much as the limit allows, and sends whole batches of producers
anyway. What lies beyond the end is kept for the next micro-batches, for `KEPT_SECONDS`: a query that works through a
backlog with a rate limit would fetch the same batch many times over. Not where transactions were aborted in it: which
of them still matter is known only to who reads from the beginning.

Limits: `Handover` relies on a private class of pyspark, of which only `isinstance` and `getCache` matter here. Where a
version of Spark does not ask, the rows are dropped, and the partition that it got is a task like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.pandas.types import to_arrow_schema

from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition, check
from tidemill.spark.source.batches import whole_batches
from tidemill.spark.source.decoding import Decoder
from tidemill.spark.source.fetching import (
    FIRST_GUESS_RECORD_BYTES,
    Fetched,
    bytes_of_a_record,
    fetch_request,
    fetched,
    wanted_bytes,
)
from tidemill.spark.source.offsets import OffsetRange, PartitionOffsets
from tidemill.spark.source.planning import SHARED_RECORDS, ReadTask
from tidemill.spark.source.reading import payloads
from tidemill.spark.source.room import ROOM_BYTES, Room
from tidemill.spark.source.settings import SourceSettings
from tidemill.wire.messages.fetch import FetchPartition, FetchResponse, PartitionData

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as SimpleReader
except ImportError:  # nothing is handed over then
    SimpleReader = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

PAUSE_BATCHES = 20
LARGEST_SURPLUS = 4
"""Times the limit: what brokers may send altogether, because a few records are wanted of a large batch."""
KEPT_SECONDS = 10.0
LARGEST_REQUEST = (1 << 31) - 1


class LeftToTasks(Exception):
    """This batch is not for the driver; the text says why."""


class _Kept(NamedTuple):
    """Bytes with the records from `start` up to `end`, to be used until `deadline`."""

    records: bytes
    start: int
    end: int
    deadline: float


class DriverReading:
    """Reads the small batches of one query; remembers how large records are, and what did not go well."""

    def __init__(self, schema: StructType, settings: SourceSettings) -> None:
        self._settings = settings
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._record_bytes: dict[TopicPartition, float] = {}
        self._kept: dict[TopicPartition, _Kept] = {}
        self._reads_ahead = True
        """Whether more is asked for than is wanted; in vain where it cannot be kept."""
        self._pause = 0
        """Batches that go to tasks untried."""
        self._is_in_vain = False
        """Whether Spark once did not ask for the rows."""

    def read(self, cluster: Cluster, tasks: Sequence[ReadTask]) -> list[pa.RecordBatch] | None:
        """All rows of these tasks; None when tasks are to read them."""
        if not self._is_small(tasks):
            return None
        if self._pause:
            self._pause -= 1
            return None
        try:
            return self._read(cluster, tasks)
        except LeftToTasks as reason:
            logger.info("a small batch is left to a task, and so are the next %s: %s", PAUSE_BATCHES, reason)
        except Exception as error:
            logger.warning("a small batch is not read in the driver but in a task: %s", error)
            cluster.close()  # answers may be under way, and would be taken for those to later requests
            cluster.forget_leaders()
        self._kept.clear()
        self._pause = PAUSE_BATCHES
        return None

    def before_planning(self, were_rows_taken: bool) -> None:
        """Called when Spark asks for the end of a batch, also where nothing comes any more."""
        now = time.monotonic()
        self._kept = {where: kept for where, kept in self._kept.items() if now <= kept.deadline}
        if not were_rows_taken and not self._is_in_vain:
            logger.warning("this Spark does not take rows from the driver: all batches are read in tasks")
            self._is_in_vain = True

    def _is_small(self, tasks: Sequence[ReadTask]) -> bool:
        """Whether these are so few records that they share a task, on the wire, and nobody wants more tasks."""
        settings = self._settings
        if SimpleReader is None or self._is_in_vain:
            return False
        if not settings.driver_read_bytes or settings.segment_directories or settings.counts_tasks:
            return False
        return 0 < sum(task.offsets.size for task in tasks) <= SHARED_RECORDS

    def _read(self, cluster: Cluster, tasks: Sequence[ReadTask]) -> list[pa.RecordBatch]:
        portions, positions = self._fetch(cluster, tasks)
        room = Room(limit=max(self._settings.driver_read_bytes, ROOM_BYTES))
        rows: list[pa.RecordBatch] = []
        left = self._settings.driver_read_bytes
        for task in tasks:
            found = payloads(portions[task.offsets.where], task.offsets, self._settings.reads_committed, room)
            for batch in Decoder(task.offsets, self._arrow_schema, task.expected).decode(found):
                left -= batch.nbytes
                if left < 0:
                    raise LeftToTasks(f"its rows are more than {self._settings.driver_read_bytes} bytes")
                rows.append(batch)
        self._keep(tasks, portions, positions)
        return rows

    # -- what is left over --------------------------------------------------------------------------------

    def _keep(
        self,
        tasks: Iterable[ReadTask],
        portions: dict[TopicPartition, list[Fetched]],
        positions: PartitionOffsets,
    ) -> None:
        """The bytes behind the end of this batch, for the next one; copied, to let go of the answers they came in."""
        spare = self._settings.driver_read_bytes * LARGEST_SURPLUS
        before, self._kept = self._kept, {}
        self._reads_ahead = not any(portions[task.offsets.where][-1].aborted for task in tasks)
        for where, _, end in (task.offsets for task in tasks):
            last = portions[where][-1]
            spare -= len(last.records)
            if positions[where] <= end or last.aborted or spare < 0:
                continue
            if where in before and before[where].records is last.records:
                self._kept[where] = before[where]._replace(start=end)
            else:
                deadline = time.monotonic() + KEPT_SECONDS
                self._kept[where] = _Kept(bytes(last.records), end, positions[where], deadline)

    def _left_over(self, wanted: OffsetRange) -> _Kept | None:
        """What is kept and can still serve the beginning of this range."""
        kept = self._kept.get(wanted.where)
        if kept is None or time.monotonic() > kept.deadline or not kept.start <= wanted.start < kept.end:
            return None
        return kept

    # -- fetching -----------------------------------------------------------------------------------------

    def _fetch(
        self, cluster: Cluster, tasks: Sequence[ReadTask]
    ) -> tuple[dict[TopicPartition, list[Fetched]], PartitionOffsets]:
        """The bytes of all these ranges, and how far they reach."""
        portions: dict[TopicPartition, list[Fetched]] = {task.offsets.where: [] for task in tasks}
        positions = {task.offsets.where: task.offsets.start for task in tasks}
        for wanted in (task.offsets for task in tasks):
            if kept := self._left_over(wanted):
                portions[wanted.where].append(Fetched(kept.records, [], wanted.start))
                positions[wanted.where] = kept.end
        spare = self._settings.driver_read_bytes * LARGEST_SURPLUS
        while left := [task for task in tasks if positions[task.offsets.where] < task.offsets.end]:
            before = dict(positions)
            for where, answer in self._ask(cluster, left, positions):
                if portion := self._taken(where, answer, positions):
                    portions[where].append(portion)
                    spare -= len(portion.records)
            if spare < 0 or self._expected_bytes(tasks) > self._settings.driver_read_bytes:
                raise LeftToTasks(f"its records are more than {self._settings.driver_read_bytes} bytes")
            if positions == before:
                raise LeftToTasks(
                    f"{left[0].offsets.where} has nothing at {positions[left[0].offsets.where]}"
                )
        return portions, positions

    def _expected_bytes(self, tasks: Iterable[ReadTask]) -> float:
        """As far as sizes are known; those that are not will be after the next answer."""
        return sum(task.offsets.size * self._record_bytes.get(task.offsets.where, 0.0) for task in tasks)

    def _guess(self, where: TopicPartition) -> float:
        return self._record_bytes.get(where, FIRST_GUESS_RECORD_BYTES)

    def _ask(
        self, cluster: Cluster, tasks: Sequence[ReadTask], positions: PartitionOffsets
    ) -> Iterator[tuple[TopicPartition, PartitionData]]:
        """One request to each leader, all of them under way at the same time."""
        by_leader: dict[str, dict[str, list[FetchPartition]]] = {}
        most_bytes = min(self._settings.driver_read_bytes, LARGEST_REQUEST)
        for task in tasks:
            where = task.offsets.where
            wanted = wanted_bytes(task.offsets.end - positions[where], self._guess(where))
            size = max(wanted, most_bytes // len(tasks)) if self._reads_ahead else wanted
            part = FetchPartition(
                partition=where.partition,
                fetch_offset=positions[where],
                partition_max_bytes=min(size, self._settings.fetch_bytes),
            )
            by_leader.setdefault(task.leader, {}).setdefault(where.topic, []).append(part)
        connections = [cluster.connection(address) for address in by_leader]
        for connection, topics in zip(connections, by_leader.values(), strict=True):
            connection.send(fetch_request(topics, self._settings.reads_committed, 0, most_bytes))
        for connection in connections:
            yield from _partitions(connection.receive())

    def _taken(
        self, where: TopicPartition, answer: PartitionData, positions: PartitionOffsets
    ) -> Fetched | None:
        """What this answer brings, if anything; moves the position behind it.

        Nothing, or half a batch, may mean that other partitions have filled the answer.
        """
        check(answer.error_code, str(where))
        records, start = answer.records or b"", positions[where]
        whole = whole_batches(records, start)
        if whole.next_offset <= start:
            return None
        positions[where] = whole.next_offset
        self._record_bytes[where] = bytes_of_a_record(records, whole)
        return fetched(answer, start)


def _partitions(answer: FetchResponse) -> Iterator[tuple[TopicPartition, PartitionData]]:
    if answer.error_code:
        raise BrokerError(answer.error_code, "a fetch")
    for topic in answer.responses:
        for partition in topic.partitions:
            yield TopicPartition(topic.topic, partition.partition_index), partition


class Handover:
    """The part of a stream's reader that hands rows over to Spark.

        nothing offered    isinstance(reader, SimpleReader) is false     as for every reader
        offer(rows)        it is true, until
        getCache()         has handed them over: nothing is offered
        offer(None)        nothing is offered: who did not ask before the next batch never will (`before_planning`)

    Spark asks a reader for rows right after `partitions`, when it is a `SimpleReader`; at other times it would take
    one for less than this reader can do (rate limits, the latest offset).
    """

    _offered: list[pa.RecordBatch] | None = None

    def _get_class(self) -> type[Any]:
        return type(self) if self._offered is None else SimpleReader

    __class__ = property(_get_class)
    """What `isinstance` goes by beside the type itself."""

    @property
    def is_offering(self) -> bool:
        """Rows that nobody has asked for."""
        return self._offered is not None

    def offer(self, rows: list[pa.RecordBatch] | None) -> None:
        self._offered = rows if SimpleReader is not None else None

    def getCache(self, start: Any, end: Any) -> Iterator[pa.RecordBatch] | None:  # noqa: N802 (Spark's name)
        """What was offered for the partitions that Spark asked for a moment ago, once."""
        rows, self._offered = self._offered, None
        return None if rows is None else iter(rows)
