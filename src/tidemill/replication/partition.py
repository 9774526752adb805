"""A partition as this broker holds it: a log, a role, and how far readers may read.

    log start <= last stable offset <= high watermark <= durable end <= log end

The high watermark is the smallest durable end among the in-sync replicas; consumers read below it, or below
the last stable offset when they want committed data only. With one replica it follows the log's own end;
where the topic asks for it (`flush.messages=1`) it follows the last fsync instead, so that nothing is
acknowledged or shown that a power cut could take back.

Roles, and what changes them (anything else is illegal):

    offline   --become_leader-->    leader
    offline   --become_follower-->  follower
    leader    --become_leader-->    leader     (a higher epoch, or another ISR in the same epoch)
    leader    --become_follower-->  follower   (a higher epoch)
    follower  --become_leader-->    leader     (a higher epoch)
    any       --go_offline-->       offline    (its directory failed)
"""

from __future__ import annotations

import enum
import errno
import logging
from collections.abc import Callable

from tidemill.metadata.image import PartitionState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.storage.log import AppendInfo, Log
from tidemill.storage.log_state import LogSlice
from tidemill.wire.batch import BatchHeader
from tidemill.wire.fetch_codec import FetchPartition, FetchResult

logger = logging.getLogger(__name__)

ACKS_ALL = -1
NO_EPOCH = -1
CONSUMER_REPLICA_ID = -1


class Role(enum.Enum):
    OFFLINE = "offline"
    LEADER = "leader"
    FOLLOWER = "follower"


class Partition:
    """One partition on this broker. All calls come from the event loop."""

    __slots__ = (
        "_at_end", "_epoch_start", "_on_advance", "_on_disk_error", "_remote_ends", "_request_sync", "high_watermark",
        "is_deleted", "isr", "leader_epoch", "leader_id", "log", "node_id", "replicas", "role", "topic_id",
        "topic_partition",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        log: Log | None,
        node_id: int,
        on_advance: Callable[[TopicPartition], None],
        request_sync: Callable[[Partition], None],
        on_disk_error: Callable[[Partition, OSError], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        self.role = Role.OFFLINE
        self.is_deleted = False
        """Whoever still waits for it is told that it does not exist."""
        self.leader_id = NO_EPOCH
        self.leader_epoch = NO_EPOCH
        self.isr: frozenset[int] = frozenset()
        self.replicas: tuple[int, ...] = ()
        self.high_watermark = log.log_start_offset if log else 0
        self._remote_ends: dict[int, int] = {}
        self._at_end: FetchResult | None = None
        self._epoch_start = 0
        self._on_advance = on_advance
        self._request_sync = request_sync
        self._on_disk_error = on_disk_error

    # -- roles ----------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionState) -> None:
        assert state.leader == self.node_id and state.leader_epoch >= self.leader_epoch
        log = self._open_log()
        if state.leader_epoch > self.leader_epoch:
            self._remote_ends.clear()
            log.assign_epoch(state.leader_epoch)
            self._epoch_start = log.log_end_offset
        self._adopt(state, Role.LEADER)
        if log.config.acknowledges_after_sync and log.recovery_point < log.log_end_offset:
            self._request_sync(self)  # found after a crash: it is shown as soon as it is known to be durable
        self.advance_high_watermark()

    def become_follower(self, state: PartitionState) -> None:
        assert state.leader != self.node_id and state.leader_epoch >= self.leader_epoch
        was_leader = self.role is Role.LEADER
        self._adopt(state, Role.FOLLOWER)
        if was_leader:
            self._on_advance(self.topic_partition)  # whoever waits here must look for the new leader

    def go_offline(self, *, is_deleted: bool = False) -> None:
        self.role = Role.OFFLINE
        self.log = None
        self.is_deleted = is_deleted

    def _adopt(self, state: PartitionState, role: Role) -> None:
        self.role = role
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.isr = frozenset(state.isr)
        self.replicas = state.replicas

    def _open_log(self) -> Log:
        if self.log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is on a failed disk")
        return self.log

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """The log, if this broker leads the partition in the epoch that the caller knows."""
        log = self._open_log()
        if self.role is not Role.LEADER:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return log

    def is_led_in(self, current_leader_epoch: int) -> bool:
        return self.role is Role.LEADER and current_leader_epoch in (NO_EPOCH, self.leader_epoch)

    # -- writing --------------------------------------------------------------------------------------

    def append(
        self, batch: memoryview, header: BatchHeader, acks: int, now_ms: int, transaction_version: int = 0
    ) -> AppendInfo:
        """Write one validated batch; with `acks=all` only while enough replicas are in sync."""
        log = self.log
        if log is None or self.role is not Role.LEADER:
            log = self.leader_log()
        if acks == ACKS_ALL and len(self.isr) < log.config.min_insync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas in sync, min.insync.replicas is {log.config.min_insync_replicas}",
            )
        try:
            info = log.append_as_leader(batch, header, self.leader_epoch, now_ms, transaction_version)
        except OSError as error:
            logger.error("cannot write to %s: %s", self.topic_partition, error)
            self._on_disk_error(self, error)
            raise
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self._request_sync(self)
        before = self.high_watermark
        self.advance_high_watermark()
        if len(self.replicas) > 1 and self.high_watermark == before:
            self._on_advance(self.topic_partition)  # followers read beyond it, and move it by what they fetch
        return info

    def advance_high_watermark(self) -> None:
        """Move to the smallest durable end of the in-sync replicas; never back."""
        log = self.log
        assert log is not None
        end = log.recovery_point if log.config.acknowledges_after_sync else log.log_end_offset
        if len(self.isr) > 1:
            others = self.isr - {self.node_id}
            end = min(end, *(self._remote_ends.get(replica, self.high_watermark) for replica in others))
        if end > self.high_watermark:
            self.high_watermark = end
            log.update_high_watermark(end)
            self._on_advance(self.topic_partition)
        assert log.log_start_offset <= self.high_watermark or end < log.log_start_offset

    def record_follower_fetch(self, replica_id: int, fetch_offset: int) -> None:
        """A follower that asks for an offset has everything below it on its disk or in its cache."""
        self._remote_ends[replica_id] = fetch_offset
        if replica_id in self.isr:
            self.advance_high_watermark()

    def is_followed_by(self, replica_id: int, wanted: FetchPartition) -> bool:
        """Whether what this replica asks for says how far its copy of our history goes."""
        if (
            self.log is None
            or not self.is_led_in(wanted.current_leader_epoch)
            or replica_id not in self.replicas
        ):
            return False
        return not self.is_diverging(wanted)

    def is_diverging(self, wanted: FetchPartition) -> bool:
        """Whether the reader must be told about its history instead of given records; an error counts too."""
        if wanted.last_fetched_epoch < 0 or self.log is None:
            return False
        try:
            return self._diverging_epoch(self.log, wanted) is not None
        except ApiError:
            return True

    def is_durable(self, end_offset: int) -> bool:
        """Whether everything below this offset is safe to acknowledge with `acks=all`."""
        return self.high_watermark >= end_offset

    # -- reading --------------------------------------------------------------------------------------

    def visible_end(self, committed_only: bool, replica_id: int = CONSUMER_REPLICA_ID) -> int:
        """The first offset that this reader may not see."""
        assert self.log is not None
        if replica_id >= 0:
            return self.log.log_end_offset
        return self.last_stable_offset if committed_only else self.high_watermark

    @property
    def knows_end(self) -> bool:
        """Whether the high watermark has caught up with what was found when this broker became the leader.

        Before, the end that readers may see lies behind what was acknowledged already.
        """
        return self.high_watermark >= self._epoch_start

    def readable_end(self, wanted: FetchPartition, committed_only: bool, replica_id: int) -> int:
        """The first offset that this fetch may not see; -1 where it can only be answered with an error."""
        log = self.log
        if log is None or not self.is_led_in(wanted.current_leader_epoch):
            return -1
        end = self.high_watermark
        if committed_only or replica_id >= 0:
            end = self.visible_end(committed_only, replica_id)
        if end < wanted.fetch_offset and wanted.fetch_offset > log.log_end_offset:
            return -1
        if wanted.last_fetched_epoch >= 0 and self.is_diverging(wanted):
            return -1
        return end

    @property
    def last_stable_offset(self) -> int:
        assert self.log is not None
        stable = self.log.last_stable_offset
        return stable if stable < self.high_watermark else self.high_watermark

    def read(
        self,
        wanted: FetchPartition,
        max_bytes: int,
        committed_only: bool,
        replica_id: int,
        min_one_batch: bool,
    ) -> FetchResult:
        """What a fetch gets from this partition now; failures are values, as each partition has its own."""
        try:
            log = self.leader_log(wanted.current_leader_epoch)
            if (
                wanted.fetch_offset == self.high_watermark
                and replica_id < 0
                and not committed_only
                and wanted.last_fetched_epoch < 0
            ):
                return self._nothing_new(log)
            if replica_id >= 0:
                self._require_replica(replica_id)
            if wanted.last_fetched_epoch >= 0:
                diverging = self._diverging_epoch(log, wanted)
                if diverging is not None:
                    return self._result(log, wanted.partition, None, None, diverging)
            end = self.visible_end(committed_only, replica_id)
            offset = wanted.fetch_offset
            records = None
            if max_bytes > 0 or min_one_batch:
                records = log.read(offset, max_bytes, end, min_one_batch)
                if records is not None and not records.length:
                    records = None
            if replica_id >= 0:
                self.record_follower_fetch(replica_id, offset)
            aborted = None
            if committed_only:
                aborted, records = self._committed(log, offset, end, records)
            return self._result(log, wanted.partition, aborted, records)
        except ApiError as error:
            return self.failed_result(wanted.partition, error.code)
        except OSError as error:
            logger.error("cannot read %s: %s", self.topic_partition, error)
            if error.errno != errno.ENOENT:  # one file is missing: that says nothing about the others
                self._on_disk_error(self, error)
            return self.failed_result(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def _nothing_new(self, log: Log) -> FetchResult:
        """The answer to a reader at the end, the same until something moves: most partitions of most fetches."""
        log.require_online()
        known = self._at_end
        if (
            known is None
            or known.high_watermark != self.high_watermark
            or known.log_start_offset != log.log_start_offset
        ):
            known = self._at_end = self._result(log, self.topic_partition.partition, None, None)
        return known

    def _require_replica(self, replica_id: int) -> None:
        if replica_id not in self.replicas:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica_id} holds no replica of this")

    def _result(
        self,
        log: Log,
        partition: int,
        aborted: list[tuple[int, int]] | None,
        records: LogSlice | None,
        diverging: tuple[int, int] | None = None,
    ) -> FetchResult:
        return FetchResult(
            partition,
            0,
            self.high_watermark,
            self.last_stable_offset,
            log.log_start_offset,
            aborted,
            records,
            diverging,
        )

    def _committed(
        self, log: Log, offset: int, end: int, records: LogSlice | None
    ) -> tuple[list[tuple[int, int]], LogSlice | None]:
        """The aborted transactions among these records, as (producer id, first offset); no records while unknown."""
        found = log.committed(records, offset, end) if records is not None else None
        if found is None:
            return [], None
        return [(each.producer_id, each.first_offset) for each in found.aborted], found.records

    def failed_result(self, partition: int, code: ErrorCode) -> FetchResult:
        leader = None
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            leader = (self.leader_id, self.leader_epoch)
        start = self.log.log_start_offset if self.log is not None else -1
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return FetchResult(partition, code, self.high_watermark, self.high_watermark, start)
        return FetchResult(partition, code, current_leader=leader)

    def _diverging_epoch(self, log: Log, wanted: FetchPartition) -> tuple[int, int] | None:
        """Where the reader's history leaves ours (KIP-595), if it does."""
        epoch, end_offset = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if epoch < 0 or end_offset < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            return epoch, end_offset
        return None
