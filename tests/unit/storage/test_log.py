"""The log's own behaviour: appends, reads, rolls, retention, faults. (Random histories: test_log_model.)"""

from __future__ import annotations

import dataclasses
import errno

import pytest
from log_batches import (
    DIRECTORY,
    append,
    append_values,
    data_batch,
    offset_for_timestamp,
    open_log,
    producer_batch,
    read_bytes,
    read_records,
)

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.storage.open_files import OpenFiles
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import (
    HEADER_SIZE,
    Record,
    build_batch,
    checksum,
    encode_batch,
    iterate_headers,
    read_header,
)
from tidemill.wire.compression import GZIP, compress

SMALL = LogConfig(segment_bytes=800, index_interval_bytes=200)
TOPIC_ID = bytes(range(16))


def code_of(action: object, *arguments: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        action(*arguments)  # type: ignore[operator]
    return caught.value.code


def largest_timestamp(log: Log) -> tuple[int, int, int] | None:
    batch = log.batch_of_max_timestamp()
    return batch.first_from(batch.header.max_timestamp) if batch is not None else None


# -- appending -----------------------------------------------------------------------------------------


def test_a_batch_is_stamped_and_stored_byte_for_byte() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append_values(log, b"a", b"b")
    batch = data_batch([b"c", b"d", b"e"])
    info = append(log, batch, epoch=5)
    assert info == (2, 4, -1, False) and log.log_end_offset == 5
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2, 5) and checksum(
        batch, 0, len(batch)
    ) == header.crc
    assert files.read_all(f"{DIRECTORY}/{0:020d}.log").endswith(bytes(batch))
    assert log.latest_epoch == 5 and log.size == files.size(f"{DIRECTORY}/{0:020d}.log")


def test_append_time_replaces_the_producers() -> None:
    log = open_log(MemoryFiles(), LogConfig(message_timestamp_type="LogAppendTime"))
    batch = data_batch(3, timestamp=1)
    assert append(log, batch, now_ms=777).append_time_ms == 777
    header = read_header(read_bytes(log, 0))
    assert header.is_log_append_time and header.max_timestamp == 777
    assert checksum(batch, 0, len(batch)) == header.crc
    assert offset_for_timestamp(log, 700) == (777, 0, 0)


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    log = open_log(MemoryFiles(), SMALL)
    append_values(log, b"x")
    assert code_of(append, log, data_batch(1, size=2000)) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 1


def test_followers_refuse_what_does_not_follow_or_is_damaged() -> None:
    log = open_log(MemoryFiles())
    good, gap, old = data_batch(2), data_batch(1, offset=7), data_batch(1, offset=1)
    log.append_as_follower(good + gap)
    assert log.log_end_offset == 8
    assert code_of(log.append_as_follower, old) is ErrorCode.CORRUPT_MESSAGE
    next_good, damaged = data_batch(1, offset=8), data_batch(1, offset=9)
    damaged[-1] ^= 1
    assert code_of(log.append_as_follower, next_good + damaged) is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 9, "what came before the damage is kept"
    assert log.append_as_follower(data_batch(1, offset=9)[:50]) is None
    assert [offset for offset, _ in read_records(log)] == [0, 1, 7, 8]


def test_an_empty_follower_takes_a_batch_that_begins_before_its_start() -> None:
    log = open_log(MemoryFiles())
    log.truncate_fully_and_start_at(35)
    info = log.append_as_follower(data_batch(10, offset=30) + data_batch(1, offset=40))
    assert info is not None and (info.first_offset, info.last_offset) == (30, 40)
    assert (log.log_start_offset, log.log_end_offset, log.segments[0].base_offset) == (35, 41, 30)
    assert code_of(log.read, 34, 10, 41) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(log.append_as_follower, data_batch(10, offset=35)) is ErrorCode.CORRUPT_MESSAGE


def test_followers_roll_inside_one_fetch() -> None:
    log = open_log(MemoryFiles(), SMALL)
    data = b"".join(data_batch(1, offset=offset, size=250) for offset in range(10))
    log.append_as_follower(data)
    assert log.log_end_offset == 10 and len(log.segments) == 5
    assert all(segment.size <= 800 for segment in log.segments)
    assert b"".join(read_bytes(log, segment.base_offset) for segment in log.segments) == data


# -- reading -------------------------------------------------------------------------------------------


def ten_batches(config: LogConfig = SMALL) -> Log:
    log = open_log(MemoryFiles(), config)
    for place in range(10):
        append(log, data_batch(10, timestamp=1000 + place))
    return log


def test_reads_stay_below_the_limit() -> None:
    log = ten_batches()
    assert log.read(100, 1 << 20, 100) is None
    assert log.read(50, 1 << 20, 50) is None and log.read(50, 1 << 20, 20) is None
    assert [header.base_offset for _, header in iterate_headers(read_bytes(log, 0, 20))] == [0, 10]
    assert [header.base_offset for _, header in iterate_headers(read_bytes(log, 5, 25))] == [0, 10]
    assert read_bytes(log, 11, 15) == b"", "a batch that reaches beyond the limit is not shown"


def test_a_read_in_the_middle_of_a_batch_begins_with_the_batch() -> None:
    log = ten_batches()
    assert read_header(read_bytes(log, 37)).base_offset == 30


def test_max_bytes_cuts_but_never_the_first_batch() -> None:
    log = ten_batches()
    size = read_header(read_bytes(log, 0)).size
    for max_bytes, expected in ((0, size), (10, size), (size, size), (size + 7, size), (2 * size, 2 * size)):
        records = log.read(0, max_bytes, 100)
        assert records is not None and records.length == expected
    for max_bytes, expected in ((0, 0), (size - 1, 0), (size, size), (size + 7, size)):
        records = log.read(0, max_bytes, 100, False)
        assert records is not None and records.length == expected


@pytest.mark.parametrize("offset", [-1, 101, 1 << 40])
def test_reads_outside_the_log(offset: int) -> None:
    assert code_of(ten_batches().read, offset, 100, 100) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_sequential_reads_do_not_search(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ten_batches(LogConfig())
    monkeypatch.setattr(type(log), "_locate", lambda *_: pytest.fail("searched"))
    position = 80
    while position < 100:
        data = read_bytes(log, position, position + 10)
        position = read_header(data).last_offset + 1
    append(log, data_batch(1))
    assert read_header(read_bytes(log, 100)).base_offset == 100


def test_a_slice_outlives_eviction_and_deletion() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL, open_files=OpenFiles(1))
    first = data_batch(10)
    append(log, first)
    records = log.read(0, 1 << 20, 10)
    for _ in range(5):
        append(log, data_batch(10))
        log.roll()
        read_bytes(log, log.log_start_offset)
    log.truncate_fully_and_start_at(500)
    assert records is not None and records.file.read(records.position, records.length) == bytes(first)


def test_offset_bound_reaches_the_end_of_a_slice() -> None:
    log = ten_batches()
    for max_bytes in (1, 400, 800, 5000):
        for start in range(0, 100, 10):
            records = log.read(start, max_bytes, 100)
            assert records is not None
            data = records.file.read(records.position, records.length)
            last = [header.last_offset for _, header in iterate_headers(data)][-1]
            assert last < log.offset_bound(records, start) <= 100


# -- timestamps ----------------------------------------------------------------------------------------


def test_the_first_message_at_or_after_a_timestamp() -> None:
    log = ten_batches()
    assert offset_for_timestamp(log, 0) == (1000, 0, 0)
    assert offset_for_timestamp(log, 1004) == (1004, 40, 0)
    assert offset_for_timestamp(log, 1009) == (1009, 90, 0)
    assert offset_for_timestamp(log, 1010) is None
    assert largest_timestamp(log) == (1009, 90, 0)
    log.update_high_watermark(100)
    log.increase_log_start_offset(55)
    assert offset_for_timestamp(log, 1000) == (1005, 55, 0)


def test_timestamps_inside_batches_also_compressed_ones() -> None:
    log = open_log(MemoryFiles())
    for codec in (0, GZIP):
        plain = build_batch([Record(place, 100 * place + codec, None, b"v") for place in range(5)])
        header = read_header(plain)._replace(attributes=codec)
        append(log, encode_batch(header, compress(codec, bytes(plain[HEADER_SIZE:]))), epoch=3)
    assert offset_for_timestamp(log, 150) == (200, 2, 3)
    assert offset_for_timestamp(log, 401) == (401, 9, 3)
    assert largest_timestamp(log) == (401, 9, 3)


def test_out_of_order_timestamps_do_not_hide_messages() -> None:
    log = open_log(MemoryFiles(), SMALL)
    for timestamp in (500, 100, 900, 200, 300, 1000, 50):
        append(log, data_batch(5, timestamp=timestamp))
    assert offset_for_timestamp(log, 600) == (900, 10, 0)
    assert offset_for_timestamp(log, 901) == (1000, 25, 0)
    assert offset_for_timestamp(log, 150) == (500, 0, 0)


def test_a_batch_that_lies_about_its_timestamps_is_answered_as_a_whole() -> None:
    """Whoever writes many of them must not make the broker unpack them all."""
    log = open_log(MemoryFiles())
    for _ in range(3):
        honest = data_batch(4, timestamp=100)
        header = read_header(honest)._replace(max_timestamp=900, attributes=GZIP)
        append(log, encode_batch(header, compress(GZIP, bytes(honest[HEADER_SIZE:]))))
    assert offset_for_timestamp(log, 500) == (900, 0, 0)
    assert log.batch_for_timestamp(500).is_large, "to be unpacked in a thread"


def test_an_empty_log_knows_no_timestamps() -> None:
    log = open_log(MemoryFiles())
    assert offset_for_timestamp(log, 0) is None and largest_timestamp(log) is None


# -- rolling -------------------------------------------------------------------------------------------


def test_roll_by_size() -> None:
    log = ten_batches(SMALL)
    assert len(log.segments) == 5 and all(segment.size <= 800 for segment in log.segments)
    assert [segment.base_offset for segment in log.segments] == [0, 20, 40, 60, 80]


def test_roll_by_the_timestamps_of_the_batches() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_ms=100))
    for timestamp in (1000, 1100, 1101, 1150, 1300):
        append(log, data_batch(1, timestamp=timestamp), now_ms=5)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_roll_by_the_clock_if_there_are_no_timestamps() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_ms=100), now_ms=1000)
    for now_ms in (1000, 1100, 1101):
        append(log, data_batch(1, timestamp=-1), now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_rolls_earlier() -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
    log = open_log(MemoryFiles(), config, randomness=SeededRandomness(3))
    log.append_as_follower(data_batch(1, timestamp=0))
    log.roll()
    jitter = log.segments[-1].roll_jitter_ms
    assert 0 < jitter < 900
    for timestamp, segments in ((0, 2), (1000 - jitter, 2), (1001 - jitter, 3)):
        append(log, data_batch(1, timestamp=timestamp))
        assert len(log.segments) == segments


def test_jitter_counts_from_the_first_segment_on_and_after_a_start() -> None:
    """Thousands of logs that are opened together must not roll together."""
    config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
    files = MemoryFiles()
    log = open_log(files, config, randomness=SeededRandomness(3))
    append(log, data_batch(1, timestamp=0))
    assert 0 < log.segments[-1].roll_jitter_ms < 900
    log.close()
    again = open_log(files, config, clean_shutdown=True, recovery_point=1, randomness=SeededRandomness(5))
    jitter = again.segments[-1].roll_jitter_ms
    assert 0 < jitter < 900
    for timestamp, segments in ((1000 - jitter, 1), (1001 - jitter, 2)):
        append(again, data_batch(1, timestamp=timestamp))
        assert len(again.segments) == segments
    again.truncate_fully_and_start_at(7)
    assert 0 < again.segments[-1].roll_jitter_ms < 900


def test_roll_by_full_index() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_index_bytes=8 * 3, index_interval_bytes=1))
    for _ in range(12):
        append(log, data_batch(1))
    assert len(log.segments) >= 3
    assert read_records(log)[-1][0] == 11


def test_roll_by_relative_offset() -> None:
    log = open_log(MemoryFiles(), LogConfig(cleanup_policy=frozenset({"compact"})))
    far = (1 << 31) + 5
    for offset in (0, 1, far, far + 1):
        log.append_as_follower(data_batch(1, offset=offset))
    assert [segment.base_offset for segment in log.segments] == [0, far]
    assert [offset for offset, _ in read_records(log)] == [0, 1, far, far + 1]
    assert read_header(read_bytes(log, 500)).base_offset == far


def test_rolling_an_empty_segment_does_nothing() -> None:
    log = open_log(MemoryFiles())
    log.roll()
    append_values(log, b"x")
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_an_idle_partition_costs_one_empty_file() -> None:
    files = MemoryFiles()
    log = open_log(files, topic_id=TOPIC_ID)
    assert files.list(DIRECTORY) == [f"{0:020d}.log", "partition.metadata"]
    assert (
        files.read_all(f"{DIRECTORY}/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    )
    log.close()
    again = open_log(files, clean_shutdown=True)
    assert again.topic_id == TOPIC_ID and again.topic_partition == TopicPartition("orders", 3)


# -- retention -----------------------------------------------------------------------------------------


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    log = ten_batches(dataclasses.replace(SMALL, retention_ms=0))
    assert log.delete_old_segments(1 << 50) == 0
    log.update_high_watermark(59)
    assert log.delete_old_segments(1 << 50) == 2 and log.log_start_offset == 40


def test_retention_by_time_may_take_everything() -> None:
    log = ten_batches(dataclasses.replace(SMALL, retention_ms=100))
    log.update_high_watermark(100)
    assert log.delete_old_segments(1103) == 1, "the newest record of the first segment is 101 ms old"
    assert log.delete_old_segments(1 << 50) == 4
    assert (log.log_start_offset, log.log_end_offset, log.size) == (100, 100, 0)
    assert append_values(log, b"x").first_offset == 100


def test_retention_by_size_keeps_at_least_that_much() -> None:
    log = ten_batches()
    log.update_high_watermark(100)
    size = log.segments[0].size
    log.config = dataclasses.replace(SMALL, retention_bytes=log.size - 2 * size + 1)
    assert log.delete_old_segments(1000) == 1
    log.config = dataclasses.replace(SMALL, retention_bytes=log.size - 2 * size)
    assert log.delete_old_segments(1000) == 2 and log.log_start_offset == 60


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    files = MemoryFiles()
    files.now_ms = 5000
    log = open_log(files, LogConfig(retention_ms=100))
    append(log, data_batch(1, timestamp=-1))
    log.update_high_watermark(1)
    assert log.delete_old_segments(5100) == 0
    assert log.delete_old_segments(5101) == 1


def test_compacted_logs_only_delete_below_the_log_start() -> None:
    policy = frozenset({"compact"})
    log = ten_batches(dataclasses.replace(SMALL, retention_ms=0, retention_bytes=0, cleanup_policy=policy))
    log.update_high_watermark(100)
    assert log.delete_old_segments(1 << 50) == 0
    log.increase_log_start_offset(45)
    assert log.delete_old_segments(1 << 50) == 2 and log.log_start_offset == 45


def test_deleted_files_stay_for_a_while() -> None:
    files = MemoryFiles()
    log = open_log(files, dataclasses.replace(SMALL, retention_bytes=0, file_delete_delay_ms=60))
    append(log, data_batch(10))
    log.roll()
    log.update_high_watermark(10)
    assert log.delete_old_segments(1000) == 1
    assert files.exists(f"{DIRECTORY}/{0:020d}.log.deleted")
    log.delete_old_segments(1059)
    assert files.exists(f"{DIRECTORY}/{0:020d}.log.deleted")
    log.delete_old_segments(1060)
    assert not [path for path in files.paths() if path.endswith(".deleted")]


def test_the_log_start_moves_only_forward_and_not_beyond_the_watermark() -> None:
    log = ten_batches()
    log.update_high_watermark(50)
    assert log.increase_log_start_offset(33) and not log.increase_log_start_offset(20)
    assert code_of(log.increase_log_start_offset, 51) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(log.read, 32, 100, 100) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read_header(read_bytes(log, 33)).base_offset == 30


# -- faults --------------------------------------------------------------------------------------------


def log_with_a_failed_write(error: int) -> Log:
    """One batch is in it; of the second nothing is left."""
    files = MemoryFiles()
    log = open_log(files)
    append(log, producer_batch(7, 0))
    before = read_bytes(log, 0)
    files.fail("write", error, path=".log")
    with pytest.raises(OSError):
        append(log, producer_batch(7, 1))
    assert files.read_all(f"{DIRECTORY}/{0:020d}.log") == before and log.log_end_offset == 1
    return log


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_after_a_write_without_room_the_log_goes_on(error: int) -> None:
    log = log_with_a_failed_write(error)
    assert append(log, producer_batch(7, 1)).first_offset == 1
    assert not log.is_offline


def test_after_a_write_that_the_disk_refused_nothing_is_acknowledged() -> None:
    log = log_with_a_failed_write(errno.EIO)
    assert log.is_offline
    assert code_of(append, log, producer_batch(7, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(log.read, 0, 100, 1) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_full_disk_works_again_when_there_is_room() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    append_values(log, b"first")
    files.capacity_bytes = files.used_bytes() + 30
    for batch in (data_batch(1), data_batch(10, size=30), producer_batch(7, 0)):
        with pytest.raises(OSError) as caught:
            append(log, batch)
        assert caught.value.errno == errno.ENOSPC
    files.capacity_bytes = None
    append_values(log, b"second")
    assert read_records(log) == [(0, b"first"), (1, b"second")]


def test_a_full_disk_while_rolling() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for place in range(200):
        if place % 7 == 0:
            files.capacity_bytes = files.used_bytes() + 40 * (place % 5)
        elif place % 7 == 6:
            files.capacity_bytes = None
        try:
            append_values(log, b"%d" % place * 30)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    files.heal()
    append_values(log, b"end")
    expected = read_records(log)
    assert [offset for offset, _ in expected] == list(range(log.log_end_offset))
    log.close()
    for clean in (True, False):
        log = open_log(files, SMALL, clean_shutdown=clean, recovery_point=log.log_end_offset)
        assert read_records(log) == expected


def test_if_the_cut_fails_too_the_log_is_offline() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append_values(log, b"x")
    files.fail("write")
    files.fail("truncate")
    with pytest.raises(OSError):
        append_values(log, b"x")
    assert code_of(append_values, log, b"x") is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(log.read, 0, 1, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    log.close()


def test_an_index_that_cannot_be_written_does_not_stop_the_log() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(index_interval_bytes=1))
    files.fail("write", path="index", times=20)
    for _ in range(10):
        append(log, data_batch(10))
    assert len(read_records(log)) == 100
    append(log, data_batch(10))
    files.heal()
    append(log, data_batch(10))
    assert log.segments[0].offset_index.count == 1


# -- flushing ------------------------------------------------------------------------------------------


def test_a_flush_moves_the_recovery_point_to_what_it_synced() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    assert log.begin_flush() is None
    for _ in range(5):
        append(log, data_batch(10))
    job = log.begin_flush()
    assert job is not None
    job.run()
    append(log, data_batch(10))
    assert log.recovery_point == 0
    log.complete_flush(job)
    assert log.recovery_point == 50
    files.lose_power()
    assert open_log(files, SMALL, recovery_point=50).log_end_offset == 50


def test_after_a_failed_sync_the_log_is_offline_for_good() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append_values(log, b"x")
    job = log.begin_flush()
    assert job is not None
    files.fail("sync")
    with pytest.raises(OSError):
        job.run()
    assert code_of(log.complete_flush, job) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline and log.recovery_point == 0
    assert code_of(append_values, log, b"y") is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(log.begin_flush) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_flush_of_what_was_truncated_meanwhile_does_not_count() -> None:
    log = open_log(MemoryFiles())
    append(log, data_batch(10))
    job = log.begin_flush()
    assert job is not None
    log.truncate_to(0)
    append(log, data_batch(10))
    job.run()
    log.complete_flush(job)
    assert log.recovery_point == 0


# -- moving and deleting -------------------------------------------------------------------------------


def test_a_moved_log_goes_on() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for _ in range(5):
        append(log, data_batch(10))
    before = read_records(log)
    log.move_directory("/data/orders-3.abc-delete")
    assert read_records(log) == before
    append(log, data_batch(10))
    log.flush()
    log.delete()
    assert files.paths() == []
    assert code_of(log.read, 0, 1, 1) is ErrorCode.KAFKA_STORAGE_ERROR


def test_thousands_of_segments_need_few_handles() -> None:
    files, open_files = MemoryFiles(), OpenFiles(10)
    log = open_log(files, dataclasses.replace(SMALL, segment_bytes=200), open_files=open_files)
    for place in range(300):
        append(log, data_batch(1, timestamp=place))
    for offset in range(0, 300, 7):
        assert read_header(read_bytes(log, offset)).base_offset == offset
        assert offset_for_timestamp(log, offset) == (offset, offset, 0)
    assert len(log.segments) > 100 and len(open_files) <= 10
