"""What waits in purgatory on the data path: the long poll of a fetch, and a write that waits for its replicas.

Both read the log again when they complete: an operation remembers what was asked, never what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.partition import Partition, Role
from tidemill.timing.purgatory import DelayedOperation
from tidemill.wire.fetch_codec import FetchPartition, FetchResult
from tidemill.wire.produce_codec import ProduceResult

if TYPE_CHECKING:
    from tidemill.replication.manager import ReplicaManager


class FetchCriteria(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    committed_only: bool


Wanted = list[tuple[TopicPartition, FetchPartition]]
RespondToFetch = Callable[[list[FetchResult]], None]


class DelayedFetch(DelayedOperation):
    """Complete when `min_bytes` over all partitions can be read, or when a partition can only answer an error."""

    __slots__ = ("_criteria", "_manager", "_places", "_respond", "_wanted")

    def __init__(
        self, manager: ReplicaManager, criteria: FetchCriteria, wanted: Wanted, respond: RespondToFetch
    ) -> None:
        super().__init__()
        self._manager = manager
        self._criteria = criteria
        self._wanted = wanted
        self._respond = respond
        # A partition that is taken away meanwhile has no log any more, which completes the fetch.
        find = manager.partitions.get
        self._places = [(find(topic_partition), asked) for topic_partition, asked in wanted]

    def try_complete(self) -> bool:
        _, _, min_bytes, _, committed_only = criteria = self._criteria
        found = 0
        for partition, asked in self._places:
            if partition is None:
                return self.force_complete()
            end = partition.readable_end(asked, committed_only, criteria.replica_id)
            if end > asked.fetch_offset:
                found += 1 if min_bytes <= 1 else self._readable_bytes(partition, asked, end)
                if found >= min_bytes:
                    return self.force_complete()
            elif end < 0:
                return self.force_complete()
        return False

    def _readable_bytes(self, partition: Partition, asked: FetchPartition, end: int) -> int:
        """Bytes that a read would return now; enough for anybody where it would return an error."""
        assert partition.log is not None
        try:
            records = partition.log.read(asked.fetch_offset, asked.max_bytes, end, False)
        except (ApiError, OSError):
            return self._criteria.min_bytes
        return records.length if records is not None else 0

    def on_complete(self) -> None:
        self._respond(self._manager.read_all(self._criteria, self._wanted))


class WaitingAppend(NamedTuple):
    """A batch that is written here and not yet durable: acknowledged when the high watermark passes its end."""

    partition: Partition
    end_offset: int
    result: ProduceResult


class DelayedProduce(DelayedOperation):
    """Complete when every partition of the request is durable, or can never be."""

    __slots__ = ("_respond", "_waiting")

    def __init__(self, waiting: list[WaitingAppend], respond: Callable[[list[ProduceResult]], None]) -> None:
        super().__init__()
        self._waiting = waiting
        self._respond = respond

    def try_complete(self) -> bool:
        for waiting in self._waiting:
            partition = waiting.partition
            is_pending = partition.log is not None and partition.role is Role.LEADER
            if is_pending and not partition.is_durable(waiting.end_offset):
                return False
        return self.force_complete()

    def on_complete(self) -> None:
        self._respond([_outcome(waiting) for waiting in self._waiting])


def _outcome(waiting: WaitingAppend) -> ProduceResult:
    if waiting.partition.is_durable(waiting.end_offset):
        return waiting.result
    code = ErrorCode.REQUEST_TIMED_OUT
    if waiting.partition.is_deleted:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif waiting.partition.log is None:
        code = ErrorCode.KAFKA_STORAGE_ERROR
    elif waiting.partition.role is not Role.LEADER:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ProduceResult(waiting.result.partition, code)
