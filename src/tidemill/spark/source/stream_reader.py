"""Spark's interface to a stream.

For each batch Spark asks, in one process that lives as long as the query: where does it end
(`latestOffset`), and which tasks read it (`partitions`). Offsets go into the checkpoint as JSON, the same
as Spark's own Kafka connector writes, so a query can change over in both directions.

**Where a new query starts must not move.** Killed in its first batch, Spark asks `initialOffset` again, and
with `startingOffsets=latest` the answer is a later one: what was written in between would be lost. So the
first batch of such a query is made empty. It ends where it starts, which puts the start into the
checkpoint; the records follow in the next batch. If Spark asks for the tasks of a batch that ends before
its (moved) start, there are none. A start by time moves only where no record is as late as that; found by
a record it stays, and the first batch has records.

**A first batch that is run again** has the end of the checkpoint and a start that was asked anew, which may
name partitions that were made in between. They are not of this batch: the next one reads them from their
beginning.

**Rates.** `maxOffsetsPerTrigger` ends a batch early. `minOffsetsPerTrigger` lets a batch wait until there
is enough, or until `maxTriggerDelay` has passed since the last one. With available-now everything that is
there when the query starts is read, in batches of at most the maximum, and nothing waits.

**Small batches** need no task: `partitions` reads them and hands the rows over, see `driver_reading`.

**Lag.** With `commitGroupId` the offsets a query has finished with are committed to that group, without
membership: every tool that shows consumer lag shows the query. Spark reports an end only with the batch
after it; the start of the next batch says the same earlier, so that is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemill.model.errors import TidemillError
from tidemill.spark.errors import BadOption
from tidemill.spark.source.driver_reading import DriverReading, Handover
from tidemill.spark.source.offsets import PartitionOffsets, from_json, limit_rate, to_json
from tidemill.spark.source.planning import Planner, ReadTask, SharedTask, share_tasks
from tidemill.spark.source.reading import read_tasks
from tidemill.spark.source.schema import check_schema
from tidemill.spark.source.settings import RATES, SourceSettings, stream_settings

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # before 4.2
    HAS_READ_LIMITS = False

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

Offset = dict[str, dict[str, int]]


def stream_reader(schema: StructType, given: Mapping[str, str]) -> StreamReader:
    settings = stream_settings(given)
    check_schema(schema)
    if HAS_READ_LIMITS:
        return LimitedStreamReader(schema, settings)
    limits = (settings.max_offsets_per_trigger, settings.min_offsets_per_trigger)
    if any(limits):
        names = [name for name, limit in zip(RATES, limits, strict=False) if limit]
        problem = f"would let an available-now query of pyspark {pyspark.__version__} stop early"
        raise BadOption(names[0], problem, "pyspark 4.2 or newer, or no rate limit")
    return StreamReader(schema, settings)


class StreamReader(DataSourceStreamReader):
    """A stream without rate limits, which every version of Spark can run."""

    def __init__(self, schema: StructType, settings: SourceSettings) -> None:
        self.schema = schema
        self.settings = settings
        self._planner: Planner | None = None
        self._initial: PartitionOffsets | None = None
        self._is_pinned = settings.start.is_fixed
        self._has_planned = False
        """Whether an end was asked for: before that, a batch that is to be read is one that is run again."""
        self._latest: PartitionOffsets = {}
        self._committed: PartitionOffsets = {}

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.settings)
        return self._planner

    # -- planning, in the driver's process ------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        self._initial = self.planner.resolve(self.settings.start, is_start=True)
        self._is_pinned = self._is_pinned or self.planner.found_every_time
        return to_json(self._initial)

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        """The form of Spark before 4.2, which tells no start: the initial one is pinned all the same."""
        self._has_planned = True
        if self._initial is not None and not self._is_pinned:
            self._is_pinned = True
            return to_json(self._initial)
        self._latest = self.planner.latest(self._latest)
        return to_json(self._latest)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return to_json(self._latest) or None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return share_tasks(self._tasks(start, end), self.settings)

    def _tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        self._is_pinned = True
        begin, stop = from_json(start), from_json(end)
        if begin == self._initial and not self._has_planned:
            begin = {where: offset for where, offset in begin.items() if where in stop}
        return self.planner.tasks(self.planner.ranges(begin, stop))

    def commit(self, end: Offset) -> None:
        self._publish(from_json(end))

    def _publish(self, done: PartitionOffsets) -> None:
        """Commit to the group what is done; a stream does not fail because a group's coordinator is away."""
        if self.settings.commit_group is None or done == self._committed or not done:
            return
        try:
            self.planner.cluster.commit_offsets(self.settings.commit_group, done)
            self._committed = done
        except TidemillError as error:
            logger.warning("offsets of group %s are not committed: %s", self.settings.commit_group, error)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    # -- reading, in a task ---------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        tasks = partition.tasks if isinstance(partition, SharedTask) else [partition]
        return read_tasks(tasks, self.schema, self.settings)


if HAS_READ_LIMITS:

    class LimitedStreamReader(Handover, StreamReader, SupportsTriggerAvailableNow):
        """A stream whose batches Spark may limit, that can end, and that reads small batches at once (Spark 4.2 and
        newer)."""

        def __init__(self, schema: StructType, settings: SourceSettings) -> None:
            super().__init__(schema, settings)
            self._is_available_now = False
            self._target: PartitionOffsets | None = None
            self._last_batch_seconds: float | None = None
            self._driver_reading: DriverReading | None = None

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
            self._is_available_now = True

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """Any limit but `ReadAllAvailable` stands for the options, which say more than Spark's classes can."""
            limit = self.settings.max_offsets_per_trigger or self.settings.min_offsets_per_trigger
            return ReadMaxRows(limit) if limit else ReadAllAvailable()

        def latestOffset(self, start: Offset, limit: Any) -> Offset:  # type: ignore[override]  # noqa: N802
            self._has_planned = True
            if self._driver_reading is not None:
                self._driver_reading.before_planning(were_rows_taken=not self.is_offering)
            self.offer(None)
            begin = from_json(start)
            if begin == self._initial and not self._is_pinned:
                self._is_pinned = True
                return start
            self._publish(begin)
            self._latest = self._available(begin)
            if isinstance(limit, ReadAllAvailable):
                return to_json(self._latest)
            return to_json(self._limited(begin, self._latest))

        def _available(self, begin: PartitionOffsets) -> PartitionOffsets:
            """All there is; for available-now, all there was when it was asked for the first time."""
            if not self._is_available_now:
                return self.planner.latest(begin)
            if self._target is None:
                self._target = self.planner.latest(begin)
            return self._target

        def _limited(self, begin: PartitionOffsets, latest: PartitionOffsets) -> PartitionOffsets:
            starts = self.planner.starts({where: begin[where] for where in latest if where in begin}, latest)
            least = self.settings.min_offsets_per_trigger
            waiting = sum(max(latest[where] - starts[where], 0) for where in latest)
            if least is not None and not self._is_available_now and waiting < least and self._may_wait():
                return begin
            self._last_batch_seconds = time.monotonic()
            most = self.settings.max_offsets_per_trigger
            return latest if most is None else limit_rate(starts, latest, most)

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            """A small batch is read right here; if nothing of it is visible, no task could find anything either."""
            tasks = self._tasks(start, end)
            if self._driver_reading is None:
                self._driver_reading = DriverReading(self.schema, self.settings)
            rows = self._driver_reading.read(self.planner.cluster, tasks)
            self.offer(rows or None)
            return [] if rows == [] else share_tasks(tasks, self.settings)

        def _may_wait(self) -> bool:
            """Whether the last batch is less than `maxTriggerDelay` ago; the first waits for nothing."""
            if self._last_batch_seconds is None:
                return False
            passed_ms = (time.monotonic() - self._last_batch_seconds) * 1000
            return passed_ms < self.settings.max_trigger_delay_ms
