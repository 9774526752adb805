"""Roles, watermarks and reads of one partition, on a log in memory."""

from __future__ import annotations

import pytest

from tidemill.metadata.image import PartitionState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.partition import Partition, Role
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import Record, build_batch, read_header
from tidemill.wire.fetch_codec import FetchPartition

WHERE = TopicPartition("orders", 0)
NODE = 1


class Harness:
    def __init__(self, config: LogConfig | None = None) -> None:
        self.files = MemoryFiles()
        log = Log.open(
            self.files, "/data/orders-0", config or LogConfig(), topic_partition=WHERE, topic_id=b"i" * 16
        )
        self.advanced: list[TopicPartition] = []
        self.unsynced: list[Partition] = []
        self.disk_errors: list[OSError] = []
        self.partition = Partition(
            WHERE, b"i" * 16, log, NODE, self.advanced.append, self.unsynced.append,
            lambda _, error: self.disk_errors.append(error),
        )  # fmt: skip

    @property
    def log(self) -> Log:
        assert self.partition.log is not None
        return self.partition.log

    def lead(self, epoch: int = 0, isr: tuple[int, ...] = (NODE,)) -> None:
        self.partition.become_leader(
            PartitionState(replicas=(1, 2, 3), isr=isr, leader=NODE, leader_epoch=epoch, partition_epoch=0)
        )

    def append(self, count: int = 1, acks: int = -1) -> int:
        batch = build_batch([Record(offset, 1000, None, b"value") for offset in range(count)])
        return self.partition.append(memoryview(batch), read_header(batch), acks, 1000).first_offset


def wanted(offset: int, epoch: int = -1, last_fetched_epoch: int = -1) -> FetchPartition:
    return FetchPartition(0, epoch, offset, last_fetched_epoch, -1, 1 << 20)


def read(harness: Harness, offset: int, committed: bool = False, replica: int = -1, **asked: int):  # type: ignore[no-untyped-def]
    return harness.partition.read(wanted(offset, **asked), 1 << 20, committed, replica, True)


def test_alone_the_watermark_follows_the_end() -> None:
    harness = Harness()
    harness.lead()
    assert harness.append(3) == 0 and harness.append(2) == 3
    assert harness.partition.high_watermark == 5
    assert harness.advanced == [WHERE, WHERE]


def test_the_watermark_is_the_smallest_end_in_sync() -> None:
    harness = Harness()
    harness.lead(isr=(1, 2, 3))
    harness.append(10)
    assert harness.partition.high_watermark == 0
    harness.partition.record_follower_fetch(2, 10)
    assert harness.partition.high_watermark == 0
    harness.partition.record_follower_fetch(3, 6)
    assert harness.partition.high_watermark == 6
    harness.lead(isr=(1, 2))
    assert harness.partition.high_watermark == 10, "the slow one has left the ISR"


def test_a_follower_outside_the_isr_holds_nobody_up() -> None:
    harness = Harness()
    harness.lead(isr=(1, 2))
    harness.append(4)
    harness.partition.record_follower_fetch(3, 1)
    harness.partition.record_follower_fetch(2, 4)
    assert harness.partition.high_watermark == 4


def test_consumers_read_to_the_watermark_and_followers_to_the_end() -> None:
    harness = Harness()
    harness.lead(isr=(1, 2))
    harness.append(1)
    assert read(harness, 0).records is None
    assert read(harness, 0, replica=2).records is not None
    harness.partition.record_follower_fetch(2, 1)
    assert read(harness, 0).records is not None


def test_with_fsync_before_ack_the_watermark_waits_for_the_sync() -> None:
    harness = Harness(LogConfig(flush_messages=1))
    harness.lead()
    harness.append(2)
    assert harness.unsynced == [harness.partition]
    assert harness.partition.high_watermark == 0 and read(harness, 0).records is None
    job = harness.log.begin_flush()
    assert job is not None
    job.run()
    harness.log.complete_flush(job)
    harness.partition.advance_high_watermark()
    assert harness.partition.high_watermark == 2 and harness.partition.is_durable(2)


def test_too_few_in_sync_refuses_only_acks_all() -> None:
    harness = Harness(LogConfig(min_insync_replicas=2))
    harness.lead()
    with pytest.raises(ApiError) as refused:
        harness.append(acks=-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.log.log_end_offset == 0
    assert harness.append(acks=1) == 0


def test_epochs_fence_old_and_unknown_readers() -> None:
    harness = Harness()
    harness.lead(epoch=5)
    harness.append()
    assert read(harness, 0, epoch=5).error == 0
    assert read(harness, 0, epoch=4).error is ErrorCode.FENCED_LEADER_EPOCH
    assert read(harness, 0, epoch=6).error is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_out_of_range_tells_what_there_is() -> None:
    harness = Harness()
    harness.lead()
    harness.append(3)
    result = read(harness, 4)
    assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (result.high_watermark, result.log_start_offset) == (3, 0)


def test_a_diverging_reader_is_told_where_to_cut() -> None:
    harness = Harness()
    harness.lead(epoch=1)
    harness.append(5)
    harness.lead(epoch=3)
    harness.append(5)
    assert read(harness, 7, last_fetched_epoch=1).diverging_epoch == (1, 5)
    assert read(harness, 7, last_fetched_epoch=2).diverging_epoch == (1, 5)
    assert read(harness, 7, last_fetched_epoch=3).diverging_epoch is None


def test_a_follower_serves_nobody() -> None:
    harness = Harness()
    harness.lead(epoch=1)
    harness.append()
    harness.partition.become_follower(
        PartitionState(replicas=(1, 2), isr=(2,), leader=2, leader_epoch=2, partition_epoch=1)
    )
    result = read(harness, 0)
    assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and result.current_leader == (2, 2)
    with pytest.raises(ApiError):
        harness.append()


def test_offline_is_a_storage_error() -> None:
    harness = Harness()
    harness.lead()
    harness.partition.go_offline()
    assert harness.partition.role is Role.OFFLINE
    assert read(harness, 0).error is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_reader_at_the_end_is_told_what_has_moved_since() -> None:
    harness = Harness()
    harness.lead()
    harness.append(3)
    first = read(harness, 3)
    assert (first.high_watermark, first.log_start_offset, first.records) == (3, 0, None)
    harness.log.increase_log_start_offset(2)
    assert read(harness, 3).log_start_offset == 2
    harness.append(1)
    assert read(harness, 4).high_watermark == 4 and read(harness, 3).records is not None


def test_a_reader_at_the_end_of_a_failed_log_gets_an_error() -> None:
    harness = Harness()
    harness.lead()
    harness.append(3)
    assert read(harness, 3).error == ErrorCode.NONE
    harness.log.fail(OSError("the disk is gone"))
    assert read(harness, 3).error == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (wanted(3), 3),
        (wanted(9), -1),
        (wanted(3, epoch=7), -1),
        (wanted(3, last_fetched_epoch=0), 3),
        (wanted(3, last_fetched_epoch=9), -1),
    ],
)
def test_what_can_only_be_answered_with_an_error_need_not_wait(asked: FetchPartition, expected: int) -> None:
    harness = Harness()
    harness.lead()
    harness.append(3)
    assert harness.partition.readable_end(asked, False, -1) == expected


def test_a_new_leader_knows_the_end_when_the_watermark_has_caught_up() -> None:
    """What was found after a crash may have been acknowledged: "latest" must not lie before it."""
    harness = Harness(LogConfig(flush_messages=1))
    harness.lead()
    assert harness.partition.knows_end
    harness.append(3)
    harness.lead(epoch=1)
    assert not harness.partition.knows_end
    job = harness.log.begin_flush()
    assert job is not None
    job.run()
    harness.log.complete_flush(job)
    harness.partition.advance_high_watermark()
    assert harness.partition.knows_end
