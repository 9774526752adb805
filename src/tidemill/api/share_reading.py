"""From a share partition to bytes of a file: read where the next available record is, and acquire what is there.

What is sent is the slice of the log from the first batch with an acquired record to the last one: it leaves by
`sendfile`, and may hold records in between that are not for this member; the list of acquired ranges tells it which.
Batch headers are read, never records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.api.share_group_settings import ShareGroupSettings
from tidemill.api.share_partitions import LedPartition
from tidemill.api.timestamps import find_by_time
from tidemill.coordination.share.partition_contract import AcquiredRange, FetchedBatch, Wish
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.group_configs import reset_duration_ms
from tidemill.model.ids import TopicPartition
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.storage.batch_scan import DamagedBatch, scan_headers
from tidemill.storage.log_state import LogSlice
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import BatchHeader
from tidemill.wire.frames import FileSlice


class Readable(NamedTuple):
    """What the log holds from the offset on at which a share partition reads next."""

    led: LedPartition
    partition: Partition
    fetch_offset: int
    records: LogSlice
    aborted: list[AbortedTransaction]

    @property
    def is_behind(self) -> bool:
        """The share partition has gone on since, and reads elsewhere next."""
        return self.led.core is not None and self.led.core.next_fetch_offset > self.fetch_offset


class Acquired(NamedTuple):
    records: FileSlice
    ranges: list[AcquiredRange]


def led_partition(replicas: ReplicaManager, where: TopicPartition, topic_id: bytes) -> Partition:
    """The partition, if this broker leads it."""
    partition = replicas.partitions.get(where)
    if partition is None or partition.topic_id != topic_id:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition.leader_log()
    return partition


def find_readable(
    replicas: ReplicaManager, led: LedPartition, settings: ShareGroupSettings, max_bytes: int, min_one: bool
) -> Readable | None:
    """None while there is nothing to acquire; raises ApiError if there can be nothing."""
    if led.failure is not None:
        raise led.failure
    core = led.core
    if core is None:
        return None
    partition = led_partition(replicas, led.where, led.key.topic_id)
    log = partition.leader_log(led.leader_epoch)
    if core.start_offset < log.log_start_offset:
        core.move_log_start(log.log_start_offset)
    end = partition.visible_end(settings.committed_only)
    offset = core.next_fetch_offset
    if offset >= end or not core.can_acquire(settings.limits):
        return None
    records = log.read(offset, max_bytes, end, min_one)
    if records is None or not records.length:
        return None
    if not settings.committed_only:
        return Readable(led, partition, offset, records, [])
    found = log.committed(records, offset, end)
    return Readable(led, partition, offset, *found) if found is not None else None


def acquire_from(
    readable: Readable, wish: Wish, settings: ShareGroupSettings, now_ms: int
) -> Acquired | None:
    """Lock what is available in there; None if nothing was (markers, aborted records, what others hold)."""
    core = readable.led.core
    assert core is not None
    seen: list[tuple[int, BatchHeader]] = []
    batches = _batches(readable, seen)
    ranges = core.acquire(readable.fetch_offset, batches, wish, settings.limits, now_ms)
    if not ranges:
        return None
    first, last = ranges[0].first_offset, ranges[-1].last_offset
    kept = [entry for entry in seen if entry[1].last_offset >= first and entry[1].base_offset <= last]
    start = kept[0][0]
    end = kept[-1][0] + kept[-1][1].size
    return Acquired(FileSlice(readable.records.file, start, end - start), ranges)


def _batches(readable: Readable, seen: list[tuple[int, BatchHeader]]) -> Iterator[FetchedBatch]:
    """The whole batches of the slice, noted in `seen` as they are asked for."""
    records = readable.records
    try:
        for position, header in scan_headers(
            records.file, records.position, records.position + records.length
        ):
            seen.append((position, header))
            is_hidden = header.is_control or _is_aborted(header, readable.aborted)
            yield FetchedBatch(header.base_offset, header.last_offset, is_hidden)
    except (DamagedBatch, OSError):
        return  # the slice ends within a batch, or the disk fails: what was seen until here is sound


def _is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        entry.producer_id == header.producer_id
        and entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in aborted
    )


async def initial_offset(
    replicas: ReplicaManager, where: TopicPartition, settings: ShareGroupSettings, wall_ms: int
) -> int:
    """Where a group begins that has no state yet: `share.auto.offset.reset`."""
    partition = replicas.partitions.get(where)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    log = partition.leader_log()
    if settings.reset == "earliest":
        return log.log_start_offset
    back_ms = reset_duration_ms(settings.reset)
    if back_ms is None:
        return partition.high_watermark
    found = await find_by_time(log, wall_ms - back_ms)
    return partition.high_watermark if found is None else min(found[1], partition.high_watermark)
