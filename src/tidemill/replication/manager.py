"""All partitions of this broker, and the two operations of the data path on them: append and fetch.

Metadata decides which partitions there are (`apply`); this module opens their logs, gives them their roles and
wakes what waits when a high watermark moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tidemill.metadata.image import MetadataImage, PartitionState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.delayed import (
    DelayedFetch,
    DelayedProduce,
    FetchCriteria,
    RespondToFetch,
    WaitingAppend,
    Wanted,
)
from tidemill.replication.partition import Partition
from tidemill.storage.log import FlushJob
from tidemill.storage.managed_logs import parent_of
from tidemill.storage.manager import LogManager, WantedLog
from tidemill.timing.purgatory import Purgatory
from tidemill.timing.wheel import TimingWheel
from tidemill.wire.fetch_codec import FetchResult
from tidemill.wire.frames import piece_size
from tidemill.wire.produce_codec import ProduceResult

logger = logging.getLogger(__name__)


class ReplicaManager:
    def __init__(self, node_id: int, logs: LogManager, wheel: TimingWheel) -> None:
        self.node_id = node_id
        self.logs = logs
        self.partitions: dict[TopicPartition, Partition] = {}
        self.fetch_purgatory = Purgatory(wheel)
        self.produce_purgatory = Purgatory(wheel)
        self._unsynced: dict[TopicPartition, Partition] = {}
        self.on_unsynced: Callable[[], None] = lambda: None
        """Called when a partition waits for an fsync and none waited before."""

    # -- metadata -------------------------------------------------------------------------------------

    def apply(self, image: MetadataImage, changed: Iterable[TopicPartition], now_ms: int) -> None:
        """Bring these partitions to what the image says: remove, create, change role."""
        assigned: dict[TopicPartition, tuple[bytes, PartitionState]] = {}
        for topic_partition in changed:
            topic = image.topics.get(topic_partition.topic)
            state = topic.partitions.get(topic_partition.partition) if topic else None
            present = self.partitions.get(topic_partition)
            if present is not None and (topic is None or state is None or present.topic_id != topic.topic_id):
                self._remove(present, now_ms)
            if topic is not None and state is not None and self.node_id in state.replicas:
                assigned[topic_partition] = (topic.topic_id, state)
        self._add_missing(assigned, now_ms)
        for topic_partition, (_, state) in assigned.items():
            partition = self.partitions[topic_partition]
            if partition.log is None:
                continue
            try:
                if state.leader == self.node_id:
                    partition.become_leader(state)
                else:
                    partition.become_follower(state)
            except (ApiError, OSError) as error:
                self._lose(partition, error)

    def _add_missing(self, assigned: dict[TopicPartition, tuple[bytes, PartitionState]], now_ms: int) -> None:
        """Open the logs of new partitions together; one that cannot be had is offline, the others work."""
        missing = [
            WantedLog(where, topic_id, state.directory_of(self.node_id))
            for where, (topic_id, state) in assigned.items()
            if where not in self.partitions
        ]
        try:
            self.logs.create_all((each for each in missing if not self.logs.is_lost(each.partition)), now_ms)
        except ApiError as error:
            logger.error("cannot open all new partitions: %s", error.message)
        for where, topic_id, _ in missing:
            self.partitions[where] = Partition(
                where,
                topic_id,
                self.logs.get(where),
                self.node_id,
                self._wake,
                self._request_sync,
                self._disk_failed,
            )

    def _remove(self, partition: Partition, now_ms: int) -> None:
        del self.partitions[partition.topic_partition]
        partition.go_offline(is_deleted=True)
        self._wake(partition.topic_partition)
        try:
            self.logs.delete(partition.topic_partition, now_ms)
        except (ApiError, OSError) as error:
            logger.error("the files of %s are still there: %s", partition.topic_partition, error)

    def take_offline(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Their directory failed: whoever waits for them gets an error at once."""
        for topic_partition in topic_partitions:
            partition = self.partitions.get(topic_partition)
            if partition is not None:
                partition.go_offline()
                self._wake(topic_partition)

    def _wake(self, topic_partition: TopicPartition) -> None:
        self.fetch_purgatory.check_and_complete(topic_partition)
        self.produce_purgatory.check_and_complete(topic_partition)

    # -- writing --------------------------------------------------------------------------------------

    def wait_until_durable(
        self, waiting: list[WaitingAppend], due_ms: int, respond: Callable[[list[ProduceResult]], None]
    ) -> None:
        keys = {entry.partition.topic_partition for entry in waiting}
        self.produce_purgatory.try_complete_else_watch(DelayedProduce(waiting, respond), keys, due_ms)

    def _request_sync(self, partition: Partition) -> None:
        was_idle = not self._unsynced
        self._unsynced[partition.topic_partition] = partition
        if was_idle:
            self.on_unsynced()

    def take_unsynced(self) -> list[tuple[Partition, FlushJob]]:
        """The flushes that acknowledgements wait for; run each in a thread, then hand it to `synced`."""
        partitions, self._unsynced = self._unsynced, {}
        jobs = []
        for partition in partitions.values():
            if partition.log is None:
                continue
            try:
                job = partition.log.begin_flush()
            except (ApiError, OSError) as error:
                self._lose(partition, error)
                continue
            if job is not None:
                jobs.append((partition, job))
            else:
                partition.advance_high_watermark()  # somebody else has synced it
        return jobs

    def synced(self, partition: Partition, job: FlushJob) -> None:
        """The job ran. If it failed, what is on the disk is not known: the whole directory is given up."""
        log = partition.log
        if log is None:
            return  # deleted meanwhile; an error would say nothing about the disk
        if job.error is not None:
            self.logs.sync_failed(log, job.error)
            return
        log.complete_flush(job)
        partition.advance_high_watermark()

    def _disk_failed(self, partition: Partition, error: OSError) -> None:
        """A write or a read was refused: unless it was only for want of room, no file beside it can be trusted."""
        if partition.log is not None:
            self.logs.fail_directory(parent_of(partition.log.directory), error)

    def _lose(self, partition: Partition, error: Exception) -> None:
        logger.error("%s is offline: %s", partition.topic_partition, error)
        partition.go_offline()
        self._wake(partition.topic_partition)

    def release_all(self) -> None:
        """Answer every long poll with what there is, and later ones at once: the broker stops."""
        self.fetch_purgatory.close()

    # -- reading --------------------------------------------------------------------------------------

    def fetch(
        self, criteria: FetchCriteria, wanted: Wanted, now_ms: int, respond: RespondToFetch
    ) -> DelayedFetch | None:
        """Answer now if there is enough, or an error; otherwise when there is, or at the latest in time.

        Returns what waits, if something does. Whether there is enough is asked of the offsets alone, so that the
        logs are read once, for the answer.
        """
        if criteria.max_wait_ms <= 0 or criteria.min_bytes <= 0 or not wanted:
            respond(self.read_all(criteria, wanted))
            return None
        if criteria.replica_id >= 0:
            self.note_follower(criteria.replica_id, wanted)
        operation = DelayedFetch(self, criteria, wanted, respond)
        keys = [topic_partition for topic_partition, _ in wanted]
        due_ms = now_ms + criteria.max_wait_ms
        is_answered = self.fetch_purgatory.try_complete_else_watch(operation, keys, due_ms)
        return None if is_answered else operation

    def note_follower(self, replica_id: int, wanted: Wanted) -> None:
        """What a follower asks for tells how far it is, also while there is nothing to answer."""
        for topic_partition, asked in wanted:
            partition = self.partitions.get(topic_partition)
            if partition is not None and partition.is_followed_by(replica_id, asked):
                partition.record_follower_fetch(replica_id, asked.fetch_offset)

    def read_all(self, criteria: FetchCriteria, wanted: Wanted) -> list[FetchResult]:
        """Read in the order asked for; only the first batch found may exceed the limits."""
        remaining = criteria.max_bytes
        min_one_batch = True
        results = []
        partitions = self.partitions
        for topic_partition, asked in wanted:
            partition = partitions.get(topic_partition)
            if partition is None:
                results.append(FetchResult(asked.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            limit = asked.max_bytes if asked.max_bytes < remaining else remaining
            result = partition.read(asked, limit, criteria.committed_only, criteria.replica_id, min_one_batch)
            if result.records is not None:
                remaining = max(0, remaining - piece_size(result.records))
                min_one_batch = False
            results.append(result)
        return results
