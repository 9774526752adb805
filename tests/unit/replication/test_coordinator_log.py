"""The coordinators' port on real replicas, with files in memory."""

from __future__ import annotations

import errno

import pytest

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.record_codec import encode_records, read_batches
from tidemill.coordination.records.group_records import RECORD_TYPES, OffsetCommitKey
from tidemill.metadata.image import MetadataImage, PartitionState, TopicState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.replication.coordinator_log import CoordinatorLog
from tidemill.replication.manager import ReplicaManager
from tidemill.storage.config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.files import MemoryFiles
from tidemill.timing.wheel import TimingWheel, run_due

NODE, TOPIC, EPOCH = 1, "__offsets", 3
RECORD = CoordinatorRecord(1, OffsetCommitKey(group="g", topic="t", partition=0), None)


class Harness:
    """One partition, led by us unless another leader is named."""

    def __init__(self, leader: int = NODE, config: LogConfig | None = None) -> None:
        self.files = MemoryFiles()
        self.logs = logs = LogManager(
            self.files, SeededRandomness(1), ["/data"], lambda topic: config or LogConfig()
        )
        logs.start(NODE, "c", 0)
        self.wheel = TimingWheel(0)
        self.replicas = ReplicaManager(NODE, logs, self.wheel)
        state = PartitionState(
            replicas=(NODE, 2), isr=(leader,), leader=leader, leader_epoch=EPOCH, partition_epoch=0
        )
        image = MetadataImage(cluster_id="c", topics={TOPIC: TopicState(TOPIC, b"i" * 16, {0: state})})
        self.replicas.apply(image, [TopicPartition(TOPIC, 0)], 0)
        self.log = CoordinatorLog(self.replicas, TOPIC)
        self.answers: list[ApiError | None] = []

    def append(self, count: int = 1, epoch: int = EPOCH) -> int:
        return self.log.append(0, encode_records([RECORD] * count, 1000), epoch, 1000)

    def wait(self, end_offset: int) -> None:
        self.log.when_committed(0, end_offset, 500, self.answers.append)


def refused(harness: Harness, epoch: int = EPOCH, count: int = 1) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        harness.append(count, epoch)
    return caught.value.code


def test_what_is_appended_is_read_again() -> None:
    harness = Harness()
    assert harness.log.bounds(0) == (0, 0)
    assert harness.log.read(0, 0, 1000) == b""
    assert (harness.append(2), harness.append(1)) == (2, 3)
    assert harness.log.bounds(0) == (0, 3)
    batches = list(read_batches(harness.log.read(0, 0, 100_000), RECORD_TYPES))
    assert [batch.last_offset for batch in batches] == [1, 2]


def test_who_may_not_write() -> None:
    assert refused(Harness(leader=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(Harness(), epoch=EPOCH - 1) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(Harness(config=LogConfig(min_insync_replicas=2))) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert refused(Harness(config=LogConfig(max_message_bytes=200)), count=9) is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ApiError):
        Harness().log.bounds(7)


def test_with_one_replica_the_commit_is_at_once() -> None:
    harness = Harness()
    harness.wait(harness.append())
    assert harness.answers == [None]


def test_the_commit_waits_for_the_sync_where_the_topic_asks_for_it() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    harness.wait(harness.append())
    assert harness.answers == []
    for partition, job in harness.replicas.take_unsynced():
        job.run()
        harness.replicas.synced(partition, job)
    assert harness.answers == [None]


def test_a_commit_that_does_not_come_in_time() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    harness.wait(harness.append())
    run_due(harness.wheel, 500)
    (failure,) = harness.answers
    assert failure is not None and failure.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_disk_that_fails_meanwhile() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    harness.wait(harness.append())
    harness.replicas.take_offline([TopicPartition(TOPIC, 0)])
    (failure,) = harness.answers
    assert failure is not None and failure.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_write_that_the_disk_refuses_fences_the_directory() -> None:
    harness = Harness()
    harness.files.fail("write", errno.EIO, path=TOPIC)
    assert refused(harness) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not harness.logs.directories[0].is_online
    assert refused(harness) is ErrorCode.KAFKA_STORAGE_ERROR
