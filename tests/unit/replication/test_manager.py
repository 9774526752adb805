"""Long polls and waiting writes on the real purgatory and wheel, with time in the test's hand."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tidemill.metadata.image import MetadataImage, PartitionState, TopicState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.replication.delayed import FetchCriteria, WaitingAppend
from tidemill.replication.manager import ReplicaManager
from tidemill.storage.config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.files import MemoryFiles
from tidemill.timing.wheel import TimingWheel, run_due
from tidemill.wire.batch import Record, build_batch, read_header
from tidemill.wire.fetch_codec import FetchPartition, FetchResult
from tidemill.wire.frames import piece_size
from tidemill.wire.produce_codec import ProduceResult

NODE = 1
TOPIC_ID = b"i" * 16


def image_of(
    topics: Mapping[str, int],
    topic_id: bytes = TOPIC_ID,
    replicas: tuple[int, ...] = (NODE,),
    leader: int = NODE,
    epoch: int = 0,
) -> MetadataImage:
    states = {
        name: TopicState(
            name,
            topic_id,
            MappingProxyType(
                {
                    index: PartitionState(
                        replicas=replicas, isr=replicas, leader=leader, leader_epoch=epoch, partition_epoch=0
                    )
                    for index in range(count)
                }
            ),
        )
        for name, count in topics.items()
    }
    return MetadataImage(cluster_id="c", topics=MappingProxyType(states))


class Harness:
    def __init__(
        self, partitions: int = 2, config: LogConfig | None = None, replicas: tuple[int, ...] = (NODE,)
    ) -> None:
        self.config = config or LogConfig()
        self.files = MemoryFiles()
        self.logs = LogManager(
            self.files,
            SeededRandomness(1),
            ["/data"],
            lambda topic: self.config,
            on_failure=lambda path, lost, error: self.manager.take_offline(lost),
        )
        self.logs.start(NODE, "c", 0)
        self.now_ms = 0
        self.wheel = TimingWheel(0)
        self.manager = ReplicaManager(NODE, self.logs, self.wheel)
        self.where = [TopicPartition("orders", index) for index in range(partitions)]
        self.replicas = replicas
        self.manager.apply(image_of({"orders": partitions}, replicas=replicas), self.where, 0)
        self.answers: list[list[FetchResult]] = []

    def fetch(
        self,
        *offsets: int,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 1 << 20,
        replica_id: int = -1,
    ) -> None:
        wanted = [
            (where, FetchPartition(where.partition, -1, offset, -1, -1, max_bytes))
            for where, offset in zip(self.where, offsets, strict=False)
        ]
        criteria = FetchCriteria(replica_id, max_wait_ms, min_bytes, max_bytes, False)
        self.manager.fetch(criteria, wanted, self.now_ms, self.answers.append)

    def hand_over(self, leader: int) -> None:
        """Another replica is elected."""
        image = image_of({"orders": len(self.where)}, replicas=self.replicas, leader=leader, epoch=1)
        self.manager.apply(image, self.where, 0)

    def append(self, index: int, size: int = 100) -> int:
        batch = build_batch([Record(0, 1000, None, b"x" * size)])
        partition = self.manager.partitions[self.where[index]]
        return partition.append(memoryview(batch), read_header(batch), -1, 1000).last_offset + 1

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        run_due(self.wheel, self.now_ms)

    def sizes(self) -> list[int]:
        (answer,) = self.answers
        return [0 if result.records is None else piece_size(result.records) for result in answer]


def test_what_is_there_is_answered_at_once() -> None:
    harness = Harness()
    harness.append(0)
    harness.fetch(0, 0)
    assert harness.sizes()[0] > 100 and harness.sizes()[1] == 0


def test_a_long_poll_wakes_with_an_append_to_any_of_its_partitions() -> None:
    harness = Harness()
    harness.fetch(0, 0)
    assert harness.answers == []
    harness.append(1)
    assert harness.sizes()[0] == 0 and harness.sizes()[1] > 100
    harness.pass_time(1000)
    assert len(harness.answers) == 1, "answered once"


def test_min_bytes_counts_over_all_partitions() -> None:
    harness = Harness()
    harness.fetch(0, 0, min_bytes=300)
    harness.append(0)
    assert harness.answers == []
    harness.append(1)
    assert sum(harness.sizes()) >= 300


def test_at_the_time_out_what_is_there_is_answered() -> None:
    harness = Harness()
    harness.fetch(0, 0, min_bytes=100_000)
    harness.append(0)
    harness.pass_time(499)
    assert harness.answers == []
    harness.pass_time(1)
    assert harness.sizes()[0] > 100


def test_an_error_is_answered_at_once() -> None:
    harness = Harness()
    harness.append(0)
    harness.fetch(7, 0)
    (answer,) = harness.answers
    assert answer[0].error is ErrorCode.OFFSET_OUT_OF_RANGE and answer[1].error == 0


def test_a_deleted_topic_answers_who_waits_for_it() -> None:
    harness = Harness()
    harness.fetch(0, 0)
    harness.manager.apply(image_of({}), harness.where, 0)
    (answer,) = harness.answers
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in {result.error for result in answer}


def test_only_the_first_batch_may_exceed_the_limit() -> None:
    harness = Harness()
    harness.append(0, 5000)
    harness.append(1, 5000)
    harness.fetch(0, 0, max_bytes=10)
    assert harness.sizes()[0] > 5000 and harness.sizes()[1] == 0


def test_a_topic_made_again_under_its_name_begins_empty() -> None:
    harness = Harness(1)
    harness.append(0)
    harness.manager.apply(image_of({"orders": 1}, topic_id=b"j" * 16), harness.where, 0)
    log = harness.manager.partitions[harness.where[0]].log
    assert log is not None and log.log_end_offset == 0 and log.topic_id == b"j" * 16


def waiting_write(harness: Harness, timeout_ms: int) -> list[list[ProduceResult]]:
    outcomes: list[list[ProduceResult]] = []
    end_offset = harness.append(0)
    partition = harness.manager.partitions[harness.where[0]]
    waiting = WaitingAppend(partition, end_offset, ProduceResult(0, 0, 0))
    harness.manager.wait_until_durable([waiting], harness.now_ms + timeout_ms, outcomes.append)
    return outcomes


def test_a_follower_wakes_with_an_append() -> None:
    """The high watermark waits for the follower, so the follower must not wait for the high watermark."""
    harness = Harness(1, replicas=(NODE, 2))
    harness.fetch(0, replica_id=2)
    harness.append(0)
    assert harness.sizes()[0] > 100
    assert harness.manager.partitions[harness.where[0]].high_watermark == 0


def test_a_consumer_wakes_when_the_follower_has_it() -> None:
    harness = Harness(1, replicas=(NODE, 2))
    harness.fetch(0)
    harness.append(0)
    assert harness.answers == []
    harness.fetch(1, replica_id=2)
    assert harness.sizes()[0] > 100


@pytest.mark.parametrize("replica_id", [-1, 2])
def test_who_waits_for_a_leader_that_steps_down_is_told_at_once(replica_id: int) -> None:
    harness = Harness(1, replicas=(NODE, 2))
    harness.fetch(0, replica_id=replica_id)
    harness.hand_over(2)
    ((result,),) = harness.answers
    assert (result.error, result.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 1))


def test_a_write_to_a_leader_that_steps_down_is_not_acknowledged() -> None:
    harness = Harness(1, replicas=(NODE, 2))
    outcomes = waiting_write(harness, 1000)
    harness.hand_over(2)
    assert [result.error for result in outcomes[0]] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_write_with_fsync_before_ack_is_answered_after_the_fsync() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    requests: list[bool] = []
    harness.manager.on_unsynced = lambda: requests.append(True)
    outcomes = waiting_write(harness, 1000)
    assert outcomes == [] and requests == [True]
    for partition, job in harness.manager.take_unsynced():
        job.run()
        harness.manager.synced(partition, job)
    assert [result.error for result in outcomes[0]] == [0]


def test_a_write_that_is_not_durable_in_time_says_so() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    outcomes = waiting_write(harness, 1000)
    harness.pass_time(1000)
    assert [result.error for result in outcomes[0]] == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_failing_disk_answers_who_waits_for_it() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    outcomes = waiting_write(harness, 1000)
    harness.manager.take_offline([harness.where[0]])
    assert [result.error for result in outcomes[0]] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_write_that_the_disk_refuses_fences_the_directory() -> None:
    harness = Harness()
    harness.append(1)
    harness.fetch(0, 1)
    harness.files.fail("write", errno.EIO, path="orders-0")
    with pytest.raises(OSError):
        harness.append(0)
    assert not harness.logs.directories[0].is_online
    (answer,) = harness.answers
    assert {result.error for result in answer} == {ErrorCode.KAFKA_STORAGE_ERROR}, "who waits is told"
    with pytest.raises(ApiError) as caught:
        harness.append(1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EFBIG])
def test_a_write_without_room_fences_nothing(error: int) -> None:
    harness = Harness()
    harness.files.fail("write", error, path="orders-0")
    with pytest.raises(OSError):
        harness.append(0)
    assert harness.logs.directories[0].is_online
    assert (harness.append(0), harness.append(1)) == (1, 1)


@pytest.mark.parametrize(
    ("error", "is_online"), [(errno.EIO, False), (errno.EMFILE, True), (errno.ENOENT, True)]
)
def test_a_read_that_the_disk_refuses_fences_the_directory(error: int, is_online: bool) -> None:
    harness = Harness()
    harness.append(0, 5000)
    log = harness.manager.partitions[harness.where[0]].log
    assert log is not None
    log._positions.clear()
    harness.files.fail("read", error, path="orders-0")
    harness.fetch(0, 0)
    (answer,) = harness.answers
    assert answer[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.logs.directories[0].is_online == is_online


def test_a_deleted_topic_is_unknown_to_who_waits_to_have_written_to_it() -> None:
    harness = Harness(config=LogConfig(flush_messages=1))
    outcomes = waiting_write(harness, 1000)
    harness.manager.apply(image_of({}), harness.where, 0)
    assert [result.error for result in outcomes[0]] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_what_has_no_room_in_the_answer_is_not_looked_for() -> None:
    harness = Harness()
    harness.append(0, 5000)
    harness.append(1, 5000)
    log = harness.manager.partitions[harness.where[1]].log
    assert log is not None
    log._positions.clear()
    harness.fetch(0, 0, max_bytes=10)
    assert harness.sizes()[1] == 0 and not log._positions, "nobody searched for its offset"


def test_the_end_of_the_broker_answers_everybody() -> None:
    harness = Harness()
    harness.fetch(0, 0)
    harness.manager.release_all()
    assert harness.sizes() == [0, 0]
    harness.answers.clear()
    harness.fetch(0, 0)
    assert harness.sizes() == [0, 0], "who asks now does not wait"


def test_who_wants_no_bytes_does_not_wait() -> None:
    harness = Harness()
    harness.fetch(0, 0, min_bytes=0)
    assert harness.sizes() == [0, 0]
