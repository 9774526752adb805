"""All logs of a broker: found, created, deleted, bounded, written down, and what a failing disk takes with it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.storage.checkpoints import read_offsets
from tidemill.storage.cleaner_job import CleanerResult
from tidemill.storage.cleaner_process import run
from tidemill.storage.compaction import DISK_PAUSE_MS
from tidemill.storage.config import LogConfig
from tidemill.storage.data_directory import WrongDirectory, cluster_id_in, marked_name, sort_names
from tidemill.storage.log import Log
from tidemill.storage.manager import SYNC_TOGETHER_FROM, LogManager, WantedLog
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import Record, build_batch, iterate_headers, iterate_records, read_header

ONE, TWO = "/disk1", "/disk2"
TOPIC_ID = bytes(range(16))
ORDERS = TopicPartition("orders", 0)
DAY_MS = 24 * 3600 * 1000
NOW_MS = 30 * DAY_MS
COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=200, min_cleanable_dirty_ratio=0.01
)


class World:
    """A disk, and the managers of one broker after each other."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.files = MemoryFiles()
        self.files.now_ms = NOW_MS
        self.config = config or LogConfig(segment_bytes=200)
        self.failures: list[tuple[str, list[TopicPartition]]] = []
        self.manager = self.boot()

    def boot(self, directories: tuple[str, ...] = (ONE, TWO), **changes: Any) -> LogManager:
        self.manager = LogManager(
            self.files,
            SeededRandomness(7),
            directories,
            lambda topic: self.config,
            on_failure=lambda path, lost, error: self.failures.append((path, lost)),
        )
        arguments: dict[str, Any] = {"node_id": 1, "cluster_id": "c", "now_ms": NOW_MS, **changes}
        self.report = self.manager.start(**arguments)
        return self.manager

    def create(self, *names: str) -> list[Log]:
        partitions = [TopicPartition(name, 0) for name in names]
        return self.manager.create_all([WantedLog(each, TOPIC_ID) for each in partitions], NOW_MS)


def append(log: Log, *records: tuple[str, str | None], timestamp: int = NOW_MS) -> None:
    """Each record a batch of its own."""
    for key, value in records:
        record = Record(0, timestamp, key.encode(), value.encode() if value is not None else None)
        batch = build_batch([record])
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def fill(log: Log, count: int, timestamp: int = NOW_MS) -> None:
    append(log, *[(f"key{n}", "value" * 5) for n in range(count)], timestamp=timestamp)


def read_all(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    found, offset = {}, log.log_start_offset
    while (part := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data = part.file.read(part.position, part.length)
        for position, header in iterate_headers(data):
            for record in iterate_records(header, data[position + 61 : position + header.size]):
                found[record.offset] = (record.key, record.value)
            offset = header.last_offset + 1
    return found


# -- starting and stopping -----------------------------------------------------------------------------


def test_a_clean_restart_finds_everything() -> None:
    world = World()
    log = world.create("orders")[0]
    fill(log, 20)
    before = read_all(log)
    world.manager.close(broker_epoch=12)
    manager = world.boot()
    again = manager.require(ORDERS)
    assert world.report.loaded == 1 and world.report.recovered == 0
    assert read_all(again) == before
    assert (again.log_end_offset, again.recovery_point, again.high_watermark) == (20, 20, 20)
    assert again.topic_id == TOPIC_ID
    assert manager.directories[0].previous_broker_epoch == 12
    assert again.recovery_report.checked_bytes == 0


def test_a_crash_is_not_taken_for_a_clean_end() -> None:
    world = World()
    fill(world.create("orders")[0], 5)
    manager = world.boot()
    assert world.report.recovered == 1
    assert manager.require(ORDERS).log_end_offset == 5
    assert manager.directories[0].previous_broker_epoch is None


def test_what_a_crash_left_unsynced_is_synced_by_the_next_clean_end() -> None:
    world = World()
    fill(world.create("orders")[0], 5)
    world.boot()
    world.manager.close(1)
    world.files.lose_power()
    log = world.boot().require(ORDERS)
    assert world.report.recovered == 0
    assert len(read_all(log)) == 5


def test_a_directory_keeps_its_id_and_refuses_others() -> None:
    world = World()
    ids = [directory.directory_id for directory in world.manager.directories]
    assert len(set(ids)) == 2
    assert [directory.directory_id for directory in world.boot().directories] == ids
    assert cluster_id_in(world.files, [ONE, TWO]) == "c"
    with pytest.raises(WrongDirectory, match="belongs to node 1, this is node 2"):
        world.boot(node_id=2)
    with pytest.raises(WrongDirectory, match="belongs to the cluster c"):
        world.boot(cluster_id="d")
    world.files.write_atomic(f"{ONE}/meta.properties", b"nonsense")
    with pytest.raises(WrongDirectory, match="restore the file"):
        world.boot()


def test_unreadable_checkpoints_are_done_without() -> None:
    world = World()
    fill(world.create("orders")[0], 5)
    world.manager.close(1)
    path = f"{world.manager.directories[0].path}/recovery-point-offset-checkpoint"
    world.files.write_atomic(path, b"\xff")
    manager = world.boot()
    assert "recovery-point" in world.report.unreadable[0]
    assert manager.require(ORDERS).log_end_offset == 5


def test_leftovers_of_kafka_and_of_deletions() -> None:
    unique = "0" * 32
    names = [
        "orders-0", "x-delete-1", f"orders-1.{unique}-delete", f"orders-2.{unique}-stray", f"a-3.{unique}-future",
        "__cluster_metadata-0", "meta.properties", "lost+found", "recovery-point-offset-checkpoint", ".lock",
    ]  # fmt: skip
    listing = sort_names(names)
    assert listing.partitions == [(ORDERS, "orders-0"), (TopicPartition("x-delete", 1), "x-delete-1")]
    assert listing.doomed == [f"orders-1.{unique}-delete"]
    assert len(marked_name(TopicPartition("t" * 249, 10), bytes(16), "delete")) == 255


def test_a_partition_in_two_directories_is_quarantined() -> None:
    world = World()
    world.create("orders")
    world.files.make_directory(f"{TWO}/orders-0")
    manager = world.boot()
    assert manager.get(ORDERS) is None
    with pytest.raises(ApiError, match="Move the wrong one away") as caught:
        manager.require(ORDERS)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_damaged_log_is_quarantined_and_the_others_serve() -> None:
    world = World()
    damaged, whole = world.create("orders", "others")
    fill(damaged, 3)
    fill(whole, 3)
    path = f"{damaged.directory}/{0:020d}.log"
    world.files.flip_bit(path, 8 * 70)
    manager = world.boot()
    assert manager.require(TopicPartition("others", 0)).log_end_offset == 3
    assert list(world.report.quarantined) == [ORDERS]
    with pytest.raises(ApiError, match="checksum"):
        manager.require(ORDERS)
    with pytest.raises(ApiError):
        manager.create(ORDERS, TOPIC_ID, NOW_MS)
    before = world.files.size(path)
    manager.delete(ORDERS, NOW_MS)
    assert not world.files.exists(path)
    assert manager.create(ORDERS, TOPIC_ID, NOW_MS).log_end_offset == 0
    assert before > 0


# -- creating and deleting -----------------------------------------------------------------------------


def test_new_partitions_go_to_the_directory_with_the_fewest() -> None:
    world = World()
    logs = world.create("a", "b", "c", "d", "e")
    assert sorted(log.directory[:6] for log in logs) == [ONE] * 3 + [TWO] * 2
    world.manager.cordoned = frozenset({TWO})
    assert world.create("f")[0].directory == f"{ONE}/f-0"


def test_creating_again_answers_the_same_log_unless_the_topic_is_another() -> None:
    world = World()
    log = world.create("orders")[0]
    assert world.manager.create(ORDERS, TOPIC_ID, NOW_MS) is log
    with pytest.raises(ApiError) as caught:
        world.manager.create(ORDERS, bytes(15) + b"x", NOW_MS)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    moved = world.manager.set_aside(ORDERS)
    assert moved is not None and moved.endswith("-stray") and world.files.exists(moved)
    assert world.manager.create(ORDERS, bytes(15) + b"x", NOW_MS).topic_id == bytes(15) + b"x"


def test_a_topic_id_that_a_power_loss_took_is_given_again() -> None:
    world = World()
    path = f"{world.create('orders')[0].directory}/partition.metadata"
    world.files.write_atomic(path, b"")
    manager = world.boot()
    assert manager.create(ORDERS, TOPIC_ID, NOW_MS).topic_id == TOPIC_ID
    assert world.boot().require(ORDERS).topic_id == TOPIC_ID


def test_a_partition_goes_where_the_metadata_says() -> None:
    world = World()
    second = world.manager.directories[1]
    for name in ("a", "b"):
        log = world.manager.create(TopicPartition(name, 0), TOPIC_ID, NOW_MS, second.directory_id)
        assert log.directory == f"{TWO}/{name}-0"
        assert world.manager.directory_id_of(log.topic_partition) == second.directory_id
    world.manager.fail_directory(TWO, OSError(errno.EIO, "broken"))
    with pytest.raises(ApiError, match="not online"):
        world.manager.create(TopicPartition("c", 0), TOPIC_ID, NOW_MS, second.directory_id)


def test_deletion_renames_now_and_removes_later() -> None:
    world = World(LogConfig(file_delete_delay_ms=1000))
    log = world.create("orders")[0]
    fill(log, 3)
    part = log.read(0, 1000, 3)
    world.manager.delete(ORDERS, NOW_MS)
    assert world.manager.get(ORDERS) is None
    assert part is not None and len(part.file.read(part.position, part.length)) == part.length
    with pytest.raises(ApiError):
        append(log, ("a", "b"))
    doomed = [name for name in world.files.list(ONE) if name.endswith("-delete")]
    assert len(doomed) == 1 and doomed[0].startswith("orders-0.")
    assert world.manager.begin_removals(NOW_MS + 999) is None
    removal = world.manager.begin_removals(NOW_MS + 1000)
    assert removal is not None
    removal.run()
    world.manager.complete_removal(removal)
    assert not world.files.exists(f"{ONE}/{doomed[0]}")
    world.manager.delete(ORDERS, NOW_MS)


def test_a_deletion_interrupted_by_a_restart_is_finished() -> None:
    world = World()
    world.create("orders")
    world.manager.delete(ORDERS, NOW_MS)
    manager = world.boot()
    removal = manager.begin_removals(NOW_MS)
    assert manager.get(ORDERS) is None and removal is not None
    removal.run()
    assert not [name for name in world.files.list(ONE) if name.endswith("-delete")]


def test_reconfigure_reaches_the_logs_of_the_topic() -> None:
    world = World()
    log, other = world.create("orders", "others")
    world.config = LogConfig(retention_ms=5)
    world.manager.reconfigure("orders", [0])
    assert log.config.retention_ms == 5 and other.config.retention_ms != 5


# -- passes --------------------------------------------------------------------------------------------


def test_retention_by_time_size_and_log_start() -> None:
    world = World()
    by_time, by_size, by_start = world.create("time", "size", "start")
    fill(by_time, 10, timestamp=NOW_MS - 8 * DAY_MS)
    fill(by_size, 10)
    fill(by_start, 10)
    by_size.config = LogConfig(segment_bytes=200, retention_bytes=by_size.size // 2)
    by_start.increase_log_start_offset(5)
    assert world.manager.run_retention(NOW_MS) > 0
    assert by_time.log_start_offset == by_time.log_end_offset == 10
    assert by_size.log_start_offset > 0 and by_size.size <= by_size.config.retention_bytes + 200
    assert by_start.segments[0].base_offset > 0 and by_start.log_start_offset == 5
    assert [name for name in world.files.list(by_time.directory) if name.endswith(".deleted")]
    world.manager.run_retention(NOW_MS + 60_000)
    assert not [name for name in world.files.list(by_time.directory) if name.endswith(".deleted")]


def test_flushes_are_due_by_time_by_count_and_after_a_roll() -> None:
    world = World(LogConfig(flush_ms=1000))
    log = world.create("orders")[0]
    append(log, ("a", "1"))
    assert world.manager.begin_flushes(NOW_MS) == []
    (flush,) = world.manager.begin_flushes(NOW_MS + 1000)
    flush.run()
    world.manager.complete_flush(flush)
    assert log.recovery_point == 1
    assert world.manager.begin_flushes(NOW_MS + 9000) == []
    append(log, ("a", "1"))
    assert world.manager.begin_flushes(NOW_MS + 9500) == []
    log.config = LogConfig(flush_messages=2)
    append(log, ("a", "1"))
    assert len(world.manager.begin_flushes(NOW_MS + 9500)) == 1
    log.config = LogConfig(flush_messages=1)
    assert world.manager.begin_flushes(NOW_MS + 9500) == [], "whoever waits for it has it synced"
    log.config = LogConfig(segment_bytes=170)
    append(log, ("a", "1" * 90))
    assert len(world.manager.begin_flushes(NOW_MS + 9500)) == 1


def test_checkpoints_are_kafkas_and_come_back() -> None:
    world = World()
    log = world.create("orders")[0]
    fill(log, 6)
    log.flush()
    log.increase_log_start_offset(1)
    for job in world.manager.begin_checkpoints():
        job.run()
        world.manager.complete_checkpoint(job)
    parent = log.directory.rpartition("/")[0]
    assert read_offsets(world.files, f"{parent}/recovery-point-offset-checkpoint") == {ORDERS: 6}
    assert read_offsets(world.files, f"{parent}/log-start-offset-checkpoint") == {ORDERS: 1}
    assert read_offsets(world.files, f"{parent}/replication-offset-checkpoint") == {ORDERS: 6}
    again = world.boot().require(ORDERS)
    assert (again.log_start_offset, again.recovery_point, again.high_watermark) == (1, 6, 6)
    syncs = world.files.sync_count
    for job in world.manager.begin_checkpoints():
        job.run()
    assert world.files.sync_count == syncs, "nothing changed, nothing is written"


def test_describe() -> None:
    world = World()
    log = world.create("orders")[0]
    fill(log, 3)
    log.update_high_watermark(1)
    world.manager.fail_directory(TWO, OSError(errno.EIO, "broken"))
    first, second = world.manager.describe()
    assert first.failure is None and second.failure is not None and second.usable_bytes == -1
    assert first.partitions[0] == (ORDERS, log.size, 2)
    assert first.usable_bytes > 0


# -- failing disks -------------------------------------------------------------------------------------


def test_a_failing_directory_takes_its_partitions_along_and_no_others() -> None:
    world = World()
    first, second = world.create("a", "b")
    fill(first, 3)
    (flush,) = world.manager.begin_flushes(NOW_MS)
    world.files.fail("sync", path=ONE)
    with pytest.raises(OSError):
        flush.run()
    world.manager.complete_flush(flush)
    assert world.failures == [(ONE, [first.topic_partition])]
    with pytest.raises(ApiError) as caught:
        world.manager.require(first.topic_partition)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert first.is_offline and world.manager.require(second.topic_partition) is second
    assert world.create("c")[0].directory == f"{TWO}/c-0"
    world.manager.close(3)
    assert ".kafka_cleanshutdown" in world.files.list(TWO)
    assert ".kafka_cleanshutdown" not in world.files.list(ONE)


def test_a_directory_that_cannot_be_opened_is_offline_from_the_start() -> None:
    world = World()
    world.manager.close(1)
    world.files.fail("read", path=f"{ONE}/meta.properties")
    world.boot()
    assert list(world.report.offline) == [ONE]
    assert world.create("a")[0].directory == f"{TWO}/a-0"
    world.files.fail("read", path="meta.properties", times=2)
    with pytest.raises(OSError):
        world.boot()


def test_a_failing_checkpoint_fails_its_directory() -> None:
    world = World()
    fill(world.create("orders")[0], 3)
    world.files.fail("write_atomic", errno.EIO, path=ONE)
    for job in world.manager.begin_checkpoints():
        job.run()
        world.manager.complete_checkpoint(job)
    assert [path for path, _ in world.failures] == [ONE]


# -- compaction ----------------------------------------------------------------------------------------


def compact(world: World) -> bool:
    cleaning = world.manager.begin_cleaning(NOW_MS)
    assert cleaning is not None
    return world.manager.complete_cleaning(cleaning, run(world.files, cleaning.job), NOW_MS)


def test_a_damaged_index_of_a_cleaned_segment_leaves_no_hole() -> None:
    world = World(COMPACTED)
    log = world.create("orders")[0]
    append(log, *[(f"k{n % 3}", f"v{n}") for n in range(30)])
    cleaning = world.manager.begin_cleaning(NOW_MS)
    assert cleaning is not None
    result = run(world.files, cleaning.job)
    for path in world.files.paths():
        if path.endswith(".index.cleaned"):
            world.files.write_atomic(path, b"123")
    assert world.manager.complete_cleaning(cleaning, result, NOW_MS)
    found = read_all(log)
    assert {key for key, _ in found.values()} == {b"k0", b"k1", b"k2"} and max(found) == 29


def test_compaction_of_a_live_log() -> None:
    world = World(COMPACTED)
    log = world.create("orders")[0]
    append(log, *[(f"k{n % 3}", f"v{n}") for n in range(30)])
    before = read_all(log)
    active = log.segments[-1].base_offset
    assert compact(world)
    newest = {key: offset for offset, (key, _) in before.items() if offset < active}
    expected = {offset: before[offset] for offset in newest.values()}
    expected |= {offset: entry for offset, entry in before.items() if offset >= active}
    assert read_all(log) == expected
    assert world.manager.begin_cleaning(NOW_MS) is None, "clean now"
    append(log, ("k0", "new"))
    world.manager.close(1)
    again = world.boot().require(ORDERS)
    assert read_all(again) == expected | {30: (b"k0", b"new")}
    assert world.manager.compaction.clean_until[ORDERS] == active


def test_compaction_never_passes_the_high_watermark() -> None:
    world = World(COMPACTED)
    log = world.create("orders")[0]
    append(log, *[("k", f"v{n}") for n in range(30)])
    log.update_high_watermark(0)
    assert world.manager.begin_cleaning(NOW_MS) is None
    log.update_high_watermark(10)
    cleaning = world.manager.begin_cleaning(NOW_MS)
    assert cleaning is not None and cleaning.job.first_uncleanable_offset <= 10


def test_compaction_waits_for_the_lag_and_for_the_ratio() -> None:
    world = World(
        LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=200, min_compaction_lag_ms=1000)
    )
    log = world.create("orders")[0]
    fill(log, 20)
    assert world.manager.begin_cleaning(NOW_MS + 1) is None, "too young"
    cleaning = world.manager.begin_cleaning(NOW_MS + 1001)
    assert cleaning is not None
    world.manager.compaction.abandon(cleaning)
    log.config = LogConfig(
        cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000
    )
    assert world.manager.begin_cleaning(NOW_MS + 5000) is None
    assert world.manager.begin_cleaning(NOW_MS + 5001) is not None, "overdue"


def test_the_filthiest_log_goes_first_and_only_once_at_a_time() -> None:
    world = World(COMPACTED)
    little, much = world.create("little", "much")
    for log in (little, much):
        append(log, *[("k", f"v{n}") for n in range(30)])
    first = world.manager.begin_cleaning(NOW_MS)
    second = world.manager.begin_cleaning(NOW_MS)
    assert first is not None and second is not None and first.log is not second.log
    assert world.manager.begin_cleaning(NOW_MS) is None
    little.config = much.config = LogConfig(retention_ms=1)
    assert world.manager.run_retention(NOW_MS + DAY_MS) == 0, (
        "retention leaves logs alone that are being cleaned"
    )


def test_a_damaged_log_is_uncleanable_until_the_restart() -> None:
    world = World(COMPACTED)
    log = world.create("orders")[0]
    append(log, *[("k", f"v{n}") for n in range(30)])
    world.files.flip_bit(f"{log.directory}/{0:020d}.log", 8 * 70)
    assert not compact(world)
    assert "checksum" in world.manager.compaction.uncleanable[ORDERS]
    assert world.manager.begin_cleaning(NOW_MS) is None
    assert not [name for name in world.files.list(log.directory) if name.endswith(".cleaned")]


def test_a_full_disk_pauses_compaction_and_a_failing_process_ends_it() -> None:
    world = World(COMPACTED)
    append(world.create("orders")[0], *[("k", f"v{n}") for n in range(30)])
    world.files.fail("write", errno.ENOSPC, path=".cleaned")
    assert not compact(world)
    assert world.manager.begin_cleaning(NOW_MS) is None
    for _ in range(3):
        cleaning = world.manager.begin_cleaning(NOW_MS + DISK_PAUSE_MS)
        assert cleaning is not None
        world.manager.compaction.abandon(cleaning)
    assert world.manager.begin_cleaning(NOW_MS + DISK_PAUSE_MS) is None
    assert "failed 3 times" in world.manager.compaction.uncleanable[ORDERS]


def test_a_result_for_a_log_that_changed_is_dropped() -> None:
    world = World(COMPACTED)
    log = world.create("orders")[0]
    append(log, *[("k", f"v{n}") for n in range(30)])
    cleaning = world.manager.begin_cleaning(NOW_MS)
    assert cleaning is not None
    result = run(world.files, cleaning.job)
    log.truncate_fully_and_start_at(100)
    assert not world.manager.complete_cleaning(cleaning, result, NOW_MS)
    assert not [name for name in world.files.list(log.directory) if name.endswith(".cleaned")]
    assert world.manager.require(ORDERS).log_end_offset == 100


def test_a_result_for_a_deleted_log_is_dropped() -> None:
    world = World(COMPACTED)
    append(world.create("orders")[0], *[("k", f"v{n}") for n in range(30)])
    cleaning = world.manager.begin_cleaning(NOW_MS)
    assert cleaning is not None
    world.manager.delete(ORDERS, NOW_MS)
    assert not world.manager.complete_cleaning(cleaning, CleanerResult(30), NOW_MS)


def test_a_disk_that_fails_in_the_swap_fails_the_directory() -> None:
    world = World(COMPACTED)
    append(world.create("orders")[0], *[("k", f"v{n}") for n in range(30)])
    world.files.fail("rename", path=".cleaned")
    assert not compact(world)
    assert [path for path, _ in world.failures] == [ONE]
    world.files.heal()
    log = world.boot().require(ORDERS)
    assert read_all(log)[29] == (b"k", b"v29")


def test_a_full_disk_is_no_failing_disk() -> None:
    world = World()
    fill(world.create("orders")[0], 3)
    world.files.fail("write_atomic", errno.ENOSPC, path=ONE)
    for job in world.manager.begin_checkpoints():
        job.run()
        world.manager.complete_checkpoint(job)
    assert world.failures == []


def test_many_logs_are_closed_with_one_sync() -> None:
    world = World()
    for number in range(SYNC_TOGETHER_FROM):
        fill(world.create(f"orders{number}")[0], 1)
    syncs_before = world.files.sync_count
    world.manager.close(1)
    assert world.files.sync_count - syncs_before < SYNC_TOGETHER_FROM
    world.files.lose_power()
    world.boot()
    assert all(log.log_end_offset == 1 == log.recovery_point for log in world.manager.logs.values())


def test_a_partition_made_again_inherits_no_recovery_point() -> None:
    world = World()
    fill(world.create("orders")[0], 30)
    for flush in world.manager.begin_flushes(NOW_MS):
        flush.run()
        world.manager.complete_flush(flush)
    world.manager.logs[TopicPartition("orders", 0)].flush()
    for job in world.manager.begin_checkpoints():
        job.run()
    world.manager.delete(TopicPartition("orders", 0), NOW_MS)
    world.manager.create(TopicPartition("orders", 0), b"n" * 16, NOW_MS)
    for directory in world.manager.directories:
        path = f"{directory.path}/recovery-point-offset-checkpoint"
        if world.files.exists(path):
            assert TopicPartition("orders", 0) not in read_offsets(world.files, path)
