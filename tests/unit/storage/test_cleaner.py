"""Compaction against a dictionary, and its swap against a crash at every file operation."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cleaner_logs import (
    DELETE_RETENTION_MS,
    NOW_MS,
    Crash,
    CrashingFiles,
    base_offsets,
    batch,
    job_for,
    read_all_batches,
    read_records,
    swap_all,
    write_segment,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.errors import CorruptLog
from tidemill.ports.disk import Disk
from tidemill.storage.cleaner import build_offset_map, clean, group_segments, segment_path
from tidemill.storage.cleaner_filter import ENTRY_BYTES, OffsetMap
from tidemill.storage.cleaner_job import CleanerJob, CleanerResult, LastRecord, SegmentFiles
from tidemill.storage.cleaner_process import run
from tidemill.storage.segment_swap import recover_swaps
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    Record,
    encode_batch,
    read_header,
)

FILES = MemoryFiles()
numbers = itertools.count()


def fresh_directory() -> str:
    directory = f"/log-{next(numbers)}"
    FILES.make_directory(directory)
    return directory


@pytest.fixture
def directory() -> Iterator[str]:
    directory = fresh_directory()
    yield directory
    FILES.remove_tree(directory)


def record(offset: int, key: str | None, value: str | None, timestamp: int = 0) -> Record:
    return Record(
        offset,
        timestamp or 1000 + offset,
        key.encode() if key else None,
        value.encode() if value is not None else None,
    )


def kept(directory: str) -> list[tuple[int, str, str | None]]:
    return [
        (each.offset, (each.key or b"").decode(), each.value.decode() if each.value is not None else None)
        for each in read_records(FILES, directory)
    ]


def clean_and_swap(directory: str, job: CleanerJob) -> CleanerResult:
    result = clean(FILES, job)
    swap_all(FILES, directory, result)
    return result


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytearray:
    key, value = struct.pack(">hh", 0, 1 if commit else 0), struct.pack(">hi", 0, 0)
    return batch(
        [Record(offset, 1000 + offset, key, value)],
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def transactional(records: list[Record], producer_id: int, sequence: int = 0) -> bytearray:
    return batch(
        records,
        attributes=TRANSACTIONAL_MASK,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


# -- the last value of each key ------------------------------------------------------------------------


def test_the_last_value_of_each_key_survives_where_it_was(directory: str) -> None:
    write_segment(
        FILES, directory, 0, [batch([record(0, "a", "1"), record(1, "b", "2"), record(2, "a", "3")])]
    )
    write_segment(FILES, directory, 3, [batch([record(3, "b", "4"), record(4, "c", "5")])])
    result = clean_and_swap(directory, job_for(FILES, directory, 5))
    assert kept(directory) == [(2, "a", "3"), (3, "b", "4"), (4, "c", "5")]
    assert result.end_offset == 5
    assert (result.records_read, result.records_kept) == (5, 3)
    first = read_all_batches(FILES, directory)[0][0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    assert base_offsets(FILES, directory) == [0]


records_of_a_log = st.lists(
    st.tuples(
        st.sampled_from("abcdef") | st.just("a key that is longer than a digest"), st.none() | st.text("xy")
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(
    records_of_a_log,
    st.lists(st.integers(1, 5), min_size=1, max_size=10),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from([0, 1, 2, 3, 4]),
    st.integers(1, 8),
    st.integers(200, 2000),
)
def test_compaction_equals_a_dictionary(
    entries: list[tuple[str, str | None]], batch_sizes: list[int], segment_sizes: list[int], codec: int,
    keys: int, segment_bytes: int,
) -> None:  # fmt: skip
    directory = fresh_directory()
    written = [record(offset, key, value) for offset, (key, value) in enumerate(entries)]
    write_log(directory, written, batch_sizes, segment_sizes, codec)
    dirty = 0
    while dirty < len(written):
        job = job_for(
            FILES, directory, len(written), first_dirty_offset=dirty, segment_bytes=segment_bytes,
            offset_map_bytes=keys * ENTRY_BYTES,
        )  # fmt: skip
        result = clean_and_swap(directory, job)
        assert result.end_offset > dirty
        dirty = result.end_offset
    newest = {each.key: each for each in written}
    assert read_records(FILES, directory) == sorted(newest.values())
    offsets = [(header.base_offset, header.last_offset) for header, _ in read_all_batches(FILES, directory)]
    assert offsets == sorted(offsets)
    assert offsets[-1][1] == len(written) - 1
    FILES.remove_tree(directory)


def write_log(
    directory: str, records: list[Record], batch_sizes: list[int], segment_sizes: list[int], codec: int
) -> None:
    """Cut the records into batches and these into segments, in turns of the sizes given."""
    position = turn = 0
    while position < len(records):
        base, batches = position, []
        for _ in range(segment_sizes[turn % len(segment_sizes)]):
            size = batch_sizes[(position + turn) % len(batch_sizes)]
            if position < len(records):
                batches.append(batch(records[position : position + size], codec))
                position += size
        write_segment(FILES, directory, base, batches)
        turn += 1


def test_the_head_of_the_log_is_not_touched(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(0, "a", "1")])])
    write_segment(FILES, directory, 1, [batch([record(1, "a", "2")])])
    result = clean_and_swap(directory, job_for(FILES, directory, 1))
    assert result.replacements == () and result.end_offset == 1
    assert [offset for offset, _, _ in kept(directory)] == [0, 1]


def test_records_without_a_key_go(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(0, None, "1"), record(1, "a", "2")])])
    clean_and_swap(directory, job_for(FILES, directory, 2))
    assert kept(directory) == [(1, "a", "2")]


def test_timestamps_of_survivors_stay(directory: str) -> None:
    write_segment(
        FILES,
        directory,
        0,
        [batch([record(0, "a", "1", 500), record(1, "b", "2", 700), record(2, "a", None, 600)])],
    )
    clean_and_swap(directory, job_for(FILES, directory, 3))
    header, records = read_all_batches(FILES, directory)[0]
    assert [each.timestamp for each in records] == [700, 600]
    assert header.max_timestamp == 700


def test_a_full_map_ends_the_pass_and_the_next_goes_on(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(n, f"k{n % 4}", str(n)) for n in range(8)])])
    write_segment(FILES, directory, 8, [])
    job = job_for(FILES, directory, 8, offset_map_bytes=2 * ENTRY_BYTES)
    result = clean_and_swap(directory, job)
    assert result.map_is_full and result.end_offset == 2
    assert len(OffsetMap(2 * ENTRY_BYTES)) == 0


def test_only_the_dirty_section_is_mapped(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(0, "a", "1")])])
    write_segment(FILES, directory, 1, [batch([record(1, "b", "2"), record(2, "c", "3")])])
    offset_map = build_offset_map(FILES, job_for(FILES, directory, 3, first_dirty_offset=2))
    assert len(offset_map) == 1
    assert not offset_map.is_superseded(b"b", 0)


# -- tombstones ----------------------------------------------------------------------------------------


def test_a_tombstone_stays_until_its_horizon(directory: str) -> None:
    write_segment(
        FILES, directory, 0, [batch([record(0, "a", "1"), record(1, "a", None), record(2, "b", "2")])]
    )
    clean_and_swap(directory, job_for(FILES, directory, 3))
    assert kept(directory) == [(1, "a", None), (2, "b", "2")]
    header = read_all_batches(FILES, directory)[0][0]
    assert header.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS
    assert header.max_timestamp == 1002

    almost = job_for(FILES, directory, 3, first_dirty_offset=3, now_ms=NOW_MS + DELETE_RETENTION_MS - 1)
    assert clean_and_swap(directory, almost).replacements == ()
    assert kept(directory) == [(1, "a", None), (2, "b", "2")]

    due = job_for(FILES, directory, 3, first_dirty_offset=3, now_ms=NOW_MS + DELETE_RETENTION_MS)
    clean_and_swap(directory, due)
    assert kept(directory) == [(2, "b", "2")]
    header, records = read_all_batches(FILES, directory)[0]
    assert header.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS, "a horizon is set once"
    assert records[0].timestamp == 1002


# -- transactions --------------------------------------------------------------------------------------


def test_aborted_data_goes_and_committed_data_stays(directory: str) -> None:
    write_segment(
        FILES,
        directory,
        0,
        [
            transactional([record(0, "a", "committed")], 1),
            transactional([record(1, "a", "aborted"), record(2, "b", "aborted")], 2),
            marker(3, 2, commit=False),
            marker(4, 1, commit=True),
        ],
    )
    aborted = (AbortedTransaction(2, 1, 3, 0),)
    FILES.write_atomic(segment_path(directory, 0, "txnindex"), struct.pack(">hqqqq", 0, *aborted[0]))
    clean_and_swap(directory, job_for(FILES, directory, 5, aborted=aborted))
    batches = read_all_batches(FILES, directory)
    assert [(header.base_offset, header.is_control) for header, _ in batches] == [
        (0, False),
        (3, True),
        (4, True),
    ]
    assert batches[0][1][0].value == b"committed"
    assert FILES.read_all(segment_path(directory, 0, "txnindex")) == struct.pack(">hqqqq", 0, *aborted[0])


def test_markers_go_in_two_steps_once_their_data_is_gone(directory: str) -> None:
    write_segment(FILES, directory, 0, [transactional([record(0, "a", "1")], 1), marker(1, 1, commit=True)])
    write_segment(FILES, directory, 2, [batch([record(2, "a", "2")])])
    clean_and_swap(directory, job_for(FILES, directory, 3, segment_bytes=1))
    assert [header.base_offset for header, _ in read_all_batches(FILES, directory)] == [1, 2], (
        "data was there: kept"
    )
    again = job_for(FILES, directory, 3, first_dirty_offset=3, segment_bytes=1)
    clean_and_swap(directory, again)
    header = read_all_batches(FILES, directory)[0][0]
    assert header.is_control and header.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS
    later = job_for(
        FILES, directory, 3, first_dirty_offset=3, segment_bytes=1, now_ms=NOW_MS + DELETE_RETENTION_MS
    )
    clean_and_swap(directory, later)
    assert [header.base_offset for header, _ in read_all_batches(FILES, directory)] == [2]


def test_the_last_batch_of_an_active_producer_is_kept_empty(directory: str) -> None:
    first = batch(
        [record(0, "a", "1"), record(1, "a", "2")], producer_id=9, producer_epoch=3, base_sequence=40
    )
    write_segment(FILES, directory, 0, [first, batch([record(2, "a", "3")])])
    clean_and_swap(directory, job_for(FILES, directory, 3, last_records={9: LastRecord(1, 3)}))
    header, records = read_all_batches(FILES, directory)[0]
    assert records == []
    assert (header.base_offset, header.last_offset, header.last_sequence, header.producer_epoch) == (
        0,
        1,
        41,
        3,
    )
    clean_and_swap(directory, job_for(FILES, directory, 3, last_records={}))
    assert [header.base_offset for header, _ in read_all_batches(FILES, directory)] == [2]


def test_the_marker_of_a_producer_without_data_is_kept_empty(directory: str) -> None:
    write_segment(FILES, directory, 0, [marker(0, 7, commit=True, epoch=5), batch([record(1, "a", "1")])])
    last_records = {7: LastRecord(None, 5)}
    for now_ms in (NOW_MS, NOW_MS + DELETE_RETENTION_MS, NOW_MS + 2 * DELETE_RETENTION_MS):
        clean_and_swap(directory, job_for(FILES, directory, 2, now_ms=now_ms, last_records=last_records))
    header, records = read_all_batches(FILES, directory)[0]
    assert (header.producer_id, header.producer_epoch, header.is_control, records) == (7, 5, True, [])


def test_the_last_offset_of_the_pass_survives_even_if_its_batch_is_emptied(directory: str) -> None:
    write_segment(
        FILES, directory, 0, [batch([record(0, "a", "1")]), transactional([record(1, "b", "2")], 4)]
    )
    aborted = (AbortedTransaction(4, 1, 2, 1),)
    clean_and_swap(directory, job_for(FILES, directory, 2, aborted=aborted))
    assert [(header.last_offset, len(records)) for header, records in read_all_batches(FILES, directory)] == [
        (0, 1),
        (1, 0),
    ]


# -- segments ------------------------------------------------------------------------------------------


def test_small_neighbours_are_grouped() -> None:
    segments = tuple(
        SegmentFiles(base, size, 8, 12) for base, size in [(0, 60), (10, 30), (20, 50), (30, 40)]
    )
    job = CleanerJob("d", segments, 0, 40, 0, 0, 100, 1000, 64, 1000)
    assert [[each.base_offset for each in group] for group in group_segments(job, 40)] == [[0, 10], [20, 30]]
    assert [[each.base_offset for each in group] for group in group_segments(job, 20)] == [[0, 10]]
    far = (SegmentFiles(0, 1, 0, 0), SegmentFiles(5, 1, 0, 0), SegmentFiles(1 << 31, 1, 0, 0))
    job = CleanerJob("d", far, 0, (1 << 31) + 5, 0, 0, 100, 1000, 64, 1000)
    assert [len(group) for group in group_segments(job, 1 << 32)] == [2, 1]


def test_indexes_of_a_cleaned_segment_point_to_its_batches(directory: str) -> None:
    write_segment(FILES, directory, 100, [batch([record(100 + n, f"k{n}", "v" * 50)]) for n in range(20)])
    write_segment(FILES, directory, 120, [batch([record(120, "k0", "w")])])
    clean_and_swap(directory, job_for(FILES, directory, 121))
    data = FILES.read_all(segment_path(directory, 100, "log"))
    entries = list(struct.iter_unpack(">ii", FILES.read_all(segment_path(directory, 100, "index"))))
    assert len(entries) > 5
    for relative, position in entries:
        assert struct.unpack_from(">q", data, position)[0] == 100 + relative
    times = list(struct.iter_unpack(">qi", FILES.read_all(segment_path(directory, 100, "timeindex"))))
    assert times == sorted(times) and times[-1] == (1120, 20)


def test_a_cleaned_segment_has_the_age_of_the_newest_it_replaces(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(0, "a", "1")])])
    write_segment(FILES, directory, 1, [batch([record(1, "a", "2")])])
    FILES.set_modified_ms(segment_path(directory, 1, "log"), 5_000)
    clean_and_swap(directory, job_for(FILES, directory, 2))
    assert FILES.modified_ms(segment_path(directory, 0, "log")) == 5_000


# -- faults --------------------------------------------------------------------------------------------


def damaged_log(directory: str) -> None:
    write_segment(FILES, directory, 0, [batch([record(0, "a", "1")]), batch([record(1, "a", "2")])])
    path = segment_path(directory, 0, "log")
    FILES.flip_bit(path, 8 * (FILES.size(path) - 3))


def test_damage_stops_the_clean_and_leaves_nothing_behind(directory: str) -> None:
    damaged_log(directory)
    before = sorted(FILES.list(directory))
    with pytest.raises(CorruptLog, match="checksum"):
        clean(FILES, job_for(FILES, directory, 2))
    assert sorted(FILES.list(directory)) == before
    result = run(FILES, job_for(FILES, directory, 2))
    assert result.error is not None and "checksum" in result.error and not result.is_disk_error


def test_records_that_cannot_be_decoded_stop_the_clean(directory: str) -> None:
    whole = batch([record(0, "a", "1")], codec=4)
    write_segment(FILES, directory, 0, [encode_batch(read_header(whole), bytes(len(whole) - HEADER_SIZE))])
    result = run(FILES, job_for(FILES, directory, 1))
    assert result.error is not None


def test_the_process(tmp_path: Path) -> None:
    directory = str(tmp_path)
    write_segment(Disk(), directory, 0, [batch([record(0, "a", "1"), record(1, "a", "2")])])
    job = job_for(
        Disk(), directory, 2, last_records={5: LastRecord(None, 1)}, aborted=(AbortedTransaction(1, 2, 3, 4),)
    )
    assert CleanerJob.from_json(job.to_json()) == job
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.storage.cleaner_process"],
        input=job.to_json(),
        capture_output=True,
        text=True,
        check=True,
    )
    swap_all(Disk(), directory, CleanerResult.from_json(done.stdout))
    assert [each.value for each in read_records(Disk(), directory)] == [b"2"]


# -- a crash at every file operation of the swap -------------------------------------------------------


def two_groups(directory: str) -> CleanerJob:
    """Five segments that become two, one of them with an index of aborts."""
    for base in range(0, 10, 2):
        records = [record(base, "a", str(base)), record(base + 1, f"k{base}", "kept")]
        write_segment(FILES, directory, base, [batch(records)])
    FILES.write_atomic(segment_path(directory, 6, "txnindex"), b"")
    sizes = FILES.size(segment_path(directory, 0, "log"))
    return job_for(FILES, directory, 10, segment_bytes=3 * sizes)


def operations_of_a_swap() -> int:
    directory = fresh_directory()
    counting = CrashingFiles(FILES, 1000)
    swap_all(counting, directory, clean(FILES, two_groups(directory)))  # type: ignore[arg-type]
    return 1000 - counting.operations_left


@pytest.mark.parametrize("is_power_loss", [False, True])
@pytest.mark.parametrize("operation", range(operations_of_a_swap() + 1))
def test_a_crash_in_the_swap_loses_nothing(directory: str, operation: int, is_power_loss: bool) -> None:
    job = two_groups(directory)
    FILES.sync_directory(directory)
    result = clean(FILES, job)
    assert len(result.replacements) == 2
    everything = {each.offset: each for each in read_records(FILES, directory)}
    newest = {each.key: each for each in everything.values()}
    try:
        swap_all(CrashingFiles(FILES, operation), directory, result)  # type: ignore[arg-type]
    except Crash:
        pass
    if is_power_loss:
        FILES.lose_power()
    crash_in_recovery_too(directory)
    found = read_records(FILES, directory)
    assert [each.offset for each in found] == sorted({each.offset for each in found}), "in order, none twice"
    assert all(everything[each.offset] == each for each in found)
    assert {each.key: each for each in found} == newest
    assert not [name for name in FILES.list(directory) if name.endswith((".swap", ".cleaned", ".deleted"))]
    clean_and_swap(directory, job_for(FILES, directory, 10))
    assert read_records(FILES, directory) == sorted(newest.values())


def crash_in_recovery_too(directory: str) -> None:
    """Recover, stopped after one more operation each time."""
    operations = 0
    while True:
        try:
            recover_swaps(CrashingFiles(FILES, operations), directory, FILES.list(directory))  # type: ignore[arg-type]
            return
        except Crash:
            operations += 1
