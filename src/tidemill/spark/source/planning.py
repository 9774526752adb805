"""What the driver asks the cluster before it makes tasks: partitions, starts, ends, and whether anything is
gone.

    planner = Planner(settings)
    start = planner.resolve(settings.start, is_start=True)
    tasks = planner.tasks(start, planner.latest(start))

`latest` is what a reader may see: the high watermark, or with read_committed the last stable offset. A
broker that lags behind itself (a new leader that does not know its watermark yet) may answer less than was
answered before; it is asked again a few times. If it insists the records between are gone, and with
`failOnDataLoss=false` the query goes on from what the broker says, which is before what was known.

Partitions that appear while a query runs are read from their beginning. Where records are gone (retention
went over the start, a topic was deleted or made anew) `failOnDataLoss` decides: an error that says what is
missing, or a warning and whatever is left.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping

from pyspark.sql.datasource import InputPartition

from tidemill.spark.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from tidemill.spark.errors import BadOption, DataLoss
from tidemill.spark.source.offsets import OffsetRange, PartitionOffsets, split_ranges
from tidemill.spark.source.settings import Limit, SourceSettings

logger = logging.getLogger(__name__)

SHARING_PROCESSES = 4
"""The records of a query are taken to be divided among so many processes, or as many as there are tasks: how many there
really are, only Spark's scheduler knows."""


SHARED_RECORDS = 2_000
"""A stream's tasks of fewer records share one: with pyspark 4.2 each took about 60 ms beside the reading."""


class ReadTask(InputPartition):
    """One range for one task, with the leader's address so that the task need not ask for it.

    `expected` is how many records the process that runs it will probably read for this query, in all its tasks.
    """

    def __init__(self, offsets: OffsetRange, leader: str, topic_id: bytes = b"", expected: int = 0) -> None:
        super().__init__(f"{offsets.where} {offsets.start}..{offsets.end}")
        self.offsets = offsets
        self.leader = leader
        self.topic_id = topic_id
        self.expected = max(expected, offsets.size)


class SharedTask(InputPartition):
    """Several small ranges for one task of Spark, read one after the other."""

    def __init__(self, tasks: list[ReadTask]) -> None:
        super().__init__(", ".join(str(task.value) for task in tasks))
        self.tasks = tasks


def share_tasks(tasks: Iterable[ReadTask], settings: SourceSettings) -> list[InputPartition]:
    """Small neighbours together, up to `SHARED_RECORDS`: Spark takes longer to start a task than to read them.

    Not where the user has said how many tasks there should be.
    """
    if settings.counts_tasks:
        return list(tasks)
    shared: list[list[ReadTask]] = []
    for task in tasks:
        is_room = (
            shared and sum(each.offsets.size for each in shared[-1]) + task.offsets.size <= SHARED_RECORDS
        )
        if is_room:
            shared[-1].append(task)
        else:
            shared.append([task])
    return [SharedTask(group) if len(group) > 1 else group[0] for group in shared]


class Planner:
    """The driver's view of the partitions of one read; connects when it is first asked."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.found_every_time = False
        """Whether the last start by time was found by a record in every partition, so that it cannot move."""
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.settings.client)
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # -- partitions ---------------------------------------------------------------------------------------

    def assigned(self) -> list[TopicPartition]:
        """The partitions of this read that exist now, in order; what was asked for by name must be there."""
        there, missing = self._find_partitions()
        if missing:
            option = "assign" if self.settings.choice.partitions else "subscribe"
            raise BadOption(option, f"names {', '.join(missing)}", "topics and partitions that exist")
        return there

    def known_partitions(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Like `assigned`, for a query that runs: a topic that is gone is data loss, not a wrong option."""
        there, missing = self._find_partitions()
        if missing:
            names = ", ".join(map(str, sorted(known)))
            self.report_loss(f"{', '.join(missing)} no longer exist; known: {names}")
        return there

    def _find_partitions(self) -> tuple[list[TopicPartition], list[str]]:
        """What there is of what this read wants, and the names of what is missing."""
        choice = self.settings.choice
        if choice.pattern is not None:
            matcher = re.compile(choice.pattern)
            found = {n: p for n, p in self.cluster.partitions(None).items() if matcher.fullmatch(n)}
            return _in_order(found), []
        topics = choice.topics or sorted({where.topic for where in choice.partitions})
        found = self.cluster.partitions(list(topics))
        there, assigned = _in_order(found), set(choice.partitions)
        gone = set(topics) - found.keys()
        if not assigned:
            return there, sorted(gone)
        missing = {where for where in assigned - set(there) if where.topic not in gone}
        return [where for where in there if where in assigned], sorted([*gone, *map(str, missing)])

    # -- offsets ------------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> PartitionOffsets:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, known: PartitionOffsets) -> PartitionOffsets:
        """The end of every partition; before what is `known` only where records are gone and that is no error."""
        partitions = self.known_partitions(known) if known else self.assigned()
        for attempt in range(1, self.settings.offset_retries + 1):
            ends = self._list(dict.fromkeys(partitions, LATEST))
            behind = {where: end for where, end in ends.items() if end < known.get(where, 0)}
            if not behind or attempt == self.settings.offset_retries:
                break
            time.sleep(self.settings.offset_retry_interval_ms / 1000)
        for where, end in behind.items():
            self.report_loss(f"{where} ends at {end}, and {known[where]} was there before")
        return ends

    def _list(self, asked: PartitionOffsets) -> PartitionOffsets:
        return self.cluster.list_offsets(asked, self.settings.reads_committed)

    def resolve(self, limit: Limit, is_start: bool) -> PartitionOffsets:
        """Numbers for a limit, for all partitions that are assigned now."""
        partitions = self.assigned()
        if limit.everywhere is not None:
            return self._list(dict.fromkeys(partitions, limit.everywhere))
        if limit.offsets is not None:
            self._check_named(limit, limit.offsets, partitions)
            asked = {where: offset for where, offset in limit.offsets.items() if offset < 0}
            return {**limit.offsets, **self._list(asked)}
        if limit.timestamps_ms is not None:
            self._check_named(limit, limit.timestamps_ms, partitions)
            times = limit.timestamps_ms
        else:
            times = dict.fromkeys(partitions, limit.timestamp_ms or 0)
        return self._by_time(limit, times, is_start)

    def _by_time(self, limit: Limit, times: PartitionOffsets, is_start: bool) -> PartitionOffsets:
        found = self._list(times)
        late = [where for where, offset in found.items() if offset < 0]
        if is_start:
            self.found_every_time = not late
        if late and is_start and not self.settings.is_latest_without_match:
            problem = f"finds nothing at or after {times[late[0]]} in {', '.join(map(str, sorted(late)))}"
            raise BadOption(
                limit.option, problem, "startingOffsetsByTimestampStrategy=latest to start at the end"
            )
        return {**found, **self._list(dict.fromkeys(late, LATEST))}

    def _check_named(self, limit: Limit, named: PartitionOffsets, partitions: list[TopicPartition]) -> None:
        if named.keys() != set(partitions):
            odd = ", ".join(map(str, sorted(named.keys() ^ set(partitions))))
            raise BadOption(
                limit.option, f"differs from the partitions at {odd}", "every partition that is read, once"
            )

    def offsets_at(self, times: PartitionOffsets) -> PartitionOffsets:
        """The first offset at or after these times; -1 where there is none."""
        return self._list(times)

    def clip(self, end: PartitionOffsets) -> PartitionOffsets:
        """`end`, but nowhere beyond the end of the log: what is not there cannot be read."""
        latest = self._list(dict.fromkeys(end, LATEST))
        for where, offset in end.items():
            if offset > latest[where]:
                self.report_loss(f"{where} ends at {latest[where]}, before {offset}")
        return {where: min(offset, latest[where]) for where, offset in end.items()}

    # -- tasks --------------------------------------------------------------------------------------------

    def starts(self, start: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """`start`, completed by the beginning of the partitions that only `end` has."""
        new = [where for where in end if where not in start]
        found = self.earliest(new)
        for where in new:
            if found[where] > 0:
                self.report_loss(f"{where} is new to this query and begins at {found[where]}, not at 0")
        return {**start, **found}

    def ranges(self, start: PartitionOffsets, end: PartitionOffsets) -> list[OffsetRange]:
        """Ranges between two offsets of a query, whole partitions."""
        gone = [where for where in start if where not in end]
        if gone:
            self.report_loss(f"{', '.join(map(str, sorted(gone)))} no longer exist")
        starts = self.starts(start, end)
        if self.settings.segment_directories:
            starts = self._not_before_the_log(starts)
        return [OffsetRange(where, starts[where], end[where]) for where in sorted(end)]

    def _not_before_the_log(self, starts: PartitionOffsets) -> PartitionOffsets:
        """Files may still hold what brokers no longer serve; a broker would refuse it, so must we."""
        first = self.earliest(starts)
        for where, offset in starts.items():
            if offset < first[where]:
                self.report_loss(f"{where} begins at {first[where]}, and {offset} is wanted")
        return {where: max(offset, first[where]) for where, offset in starts.items()}

    def tasks(self, ranges: Iterable[OffsetRange]) -> list[ReadTask]:
        """The ranges cut for Spark's tasks, with what a task needs to find its broker and its files."""
        cut = split_ranges(ranges, self.settings.min_partitions, self.settings.max_records_per_partition)
        ids: dict[str, bytes] = {}
        if self.settings.segment_directories and cut:
            ids = self.cluster.topic_ids(sorted({each.where.topic for each in cut}))
        expected = sum(each.size for each in cut) // max(1, min(len(cut), SHARING_PROCESSES))
        return [
            ReadTask(each, self._leader(each.where), ids.get(each.where.topic, b""), expected) for each in cut
        ]

    def _leader(self, where: TopicPartition) -> str:
        return self.cluster.retrying(lambda: self.cluster.leader(where))

    def report_loss(self, message: str) -> None:
        if self.settings.fails_on_data_loss:
            hint = "set failOnDataLoss to false to go on with what is left"
            raise DataLoss(f"records of this query are gone: {message}; {hint}")
        logger.warning("records of this query are gone: %s", message)


def _in_order(found: Mapping[str, list[int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, numbers in sorted(found.items()) for number in numbers]
