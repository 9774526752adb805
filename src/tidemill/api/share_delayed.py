"""The long poll of a share fetch.

It watches, for each of its partitions, the log (new records) and the share partition itself (a load, a release, a
time-out, an acknowledgement that makes room). Whoever is woken first takes the records; the others find nothing and
wait on, first come, first served. Records are acquired in the moment in which the answer is made, never before: a fetch
whose client went away takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from tidemill.api.share_group_settings import ShareGroupSettings
from tidemill.api.share_partitions import LedPartition, SharePartitions
from tidemill.api.share_reading import Readable, acquire_from, find_readable
from tidemill.api.share_sessions import SharedPartition
from tidemill.coordination.share.partition_contract import Wish
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.replication.manager import ReplicaManager
from tidemill.timing.purgatory import DelayedOperation
from tidemill.wire.share_fetch_codec import ShareFetchResult

Answer = dict[SharedPartition, ShareFetchResult]
MOST_SLICES = 8
"""Of each partition, without a record for anybody (markers, aborted, compacted away): then the fetch is answered with
nothing, and goes on when its client asks again. Others have their turn in between."""


class ShareFetchCriteria(NamedTuple):
    wish: Wish
    min_bytes: int
    max_bytes: int
    settings: ShareGroupSettings


class DelayedShareFetch(DelayedOperation):
    """Complete when records were acquired, when a partition can only answer an error, or when its time is over."""

    __slots__ = (
        "_answer",
        "_clock",
        "_criteria",
        "_is_tired",
        "_led",
        "_partitions",
        "_replicas",
        "_respond",
        "is_abandoned",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        partitions: SharePartitions,
        clock: Clock,
        criteria: ShareFetchCriteria,
        led: list[LedPartition],
        respond: Callable[[Answer], None],
    ) -> None:
        super().__init__()
        self._replicas = replicas
        self._partitions = partitions
        self._clock = clock
        self._criteria = criteria
        self._led = led
        self._respond = respond
        self._answer: Answer = {}
        self._is_tired = False
        self.is_abandoned = False

    @property
    def keys(self) -> list[Hashable]:
        return [key for led in self._led for key in (led.key, led.where)]

    def abandon(self) -> None:
        """The client is gone."""
        self.is_abandoned = True
        self.force_complete()

    def try_complete(self) -> bool:
        self._answer = self._collect(self._criteria.min_bytes)
        return (bool(self._answer) or self._is_tired) and self.force_complete()

    def on_complete(self) -> None:
        if self.is_abandoned:
            return
        if not self._answer and not self._is_tired:
            self._answer = self._collect(0)
        self._respond(self._answer)

    def _collect(self, min_bytes: int) -> Answer:
        """What there is, or nothing if it is too little; what nobody may see is passed over."""
        for _ in range(MOST_SLICES):
            answer: Answer = {}
            readable = self._find(answer)
            if not answer and sum(found.records.length for found in readable) < min_bytes:
                return {}
            self._acquire(readable, answer)
            if answer or not any(found.is_behind for found in readable):
                return answer
        self._is_tired = True
        return {}

    def _acquire(self, readable: list[Readable], answer: Answer) -> None:
        now_ms = self._clock.monotonic_ms()
        wish = self._criteria.wish
        for found in readable:
            acquired = acquire_from(found, wish, self._criteria.settings, now_ms)
            if acquired is None:
                continue
            self._partitions.watch_locks(found.led)
            wish = wish._replace(max_records=wish.max_records - sum(each.size for each in acquired.ranges))
            answer[_name(found.led)] = ShareFetchResult(
                found.led.key.partition, records=acquired.records, acquired=tuple(acquired.ranges)
            )
            if wish.max_records <= 0:
                break

    def _find(self, answer: Answer) -> list[Readable]:
        """Each partition gets its part of the bytes; only the first may exceed it by a large batch."""
        limit = self._criteria.max_bytes // max(1, len(self._led))
        readable: list[Readable] = []
        for led in self._led:
            try:
                found = find_readable(self._replicas, led, self._criteria.settings, limit, not readable)
            except (ApiError, OSError) as error:
                answer[_name(led)] = failed_result(self._replicas, led.where, error)
                continue
            if found is not None:
                readable.append(found)
        return readable


def failed_result(
    replicas: ReplicaManager, where: TopicPartition, error: ApiError | OSError
) -> ShareFetchResult:
    if not isinstance(error, ApiError):
        error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    result = ShareFetchResult(where.partition, error.code, error.message or None)
    partition = replicas.partitions.get(where)
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and partition is not None:
        return result._replace(leader=(partition.leader_id, partition.leader_epoch))
    return result


def _name(led: LedPartition) -> SharedPartition:
    return SharedPartition(led.key.topic_id, led.key.partition)
