"""Opening logs that a crash, a power loss or a failing disk left behind."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import (
    DIRECTORY,
    append,
    data_batch,
    marker_batch,
    offset_for_timestamp,
    open_log,
    producer_batch,
    read_records,
)

from tidemill.model.errors import ApiError, CorruptLog
from tidemill.storage.batch_scan import find_valid_batch, has_zero_page, is_cut_off
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log, OnDamage
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import iterate_headers

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=300)
BATCHES, PER_BATCH = 20, 5
END = BATCHES * PER_BATCH


def path_of(base_offset: int, kind: str = "log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}.{kind}"


def written_log(
    *, close: bool, config: LogConfig = CONFIG
) -> tuple[MemoryFiles, list[tuple[int, bytes | None]], Log]:
    """Twenty batches in several segments: plain ones, and one aborted transaction."""
    files = MemoryFiles()
    log = open_log(files, config)
    for place in range(BATCHES - 6):
        append(log, data_batch(PER_BATCH, timestamp=1000 + place, size=20), epoch=place // 7)
    append(log, producer_batch(7, 0, 2 * PER_BATCH, transactional=True), epoch=2)
    append(log, marker_batch(7, commit=False), epoch=2)
    while log.log_end_offset < END:
        append(log, data_batch(min(PER_BATCH, END - log.log_end_offset), timestamp=2000), epoch=2)
    records = read_records(log)
    if close:
        log.close()
    else:
        files.kill()
    return files, records, log


def reopen(files: MemoryFiles, **options: object) -> Log:
    return open_log(files, CONFIG, **options)


def check_same(log: Log, records: list[tuple[int, bytes | None]]) -> None:
    assert read_records(log) == records
    assert log.aborted_transactions(0, END) == [(7, 70, 80, 81)]
    assert log.end_offset_for_epoch(1) == (1, 70)
    assert offset_for_timestamp(log, 1005) == (1005, 25, 0)


@pytest.mark.parametrize("recovery_point", [0, 33, END])
def test_after_a_kill_nothing_is_lost(recovery_point: int) -> None:
    files, records, _ = written_log(close=False)
    log = reopen(files, recovery_point=recovery_point)
    check_same(log, records)
    report = log.recovery_report
    assert report.truncated_bytes == 0 and report.checked_bytes > 0
    if recovery_point == 0:
        assert report.checked_bytes == log.size


def test_a_clean_start_reads_next_to_nothing() -> None:
    files, records, _ = written_log(close=True)
    log = reopen(files, clean_shutdown=True, recovery_point=END)
    assert log.recovery_report.checked_bytes == 0 == log.recovery_report.rebuilt_indexes
    check_same(log, records)


def test_closing_an_untouched_log_writes_nothing() -> None:
    files, _, _ = written_log(close=True)
    before = {path: files.read_all(path) for path in files.paths()}
    reopen(files, clean_shutdown=True, recovery_point=END).close()
    assert {path: files.read_all(path) for path in files.paths()} == before


def test_a_clean_close_survives_a_power_loss() -> None:
    files, records, _ = written_log(close=True)
    files.lose_power()
    check_same(reopen(files, clean_shutdown=True, recovery_point=END), records)


# -- torn tails ----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.data())
def test_a_torn_tail_is_cut_to_the_last_whole_batch(data: st.DataObject) -> None:
    files, records, old = written_log(close=False)
    active = old.segments[-1]
    size = data.draw(st.integers(0, active.size))
    files.tear(path_of(active.base_offset), size)
    log = reopen(files)
    whole = files.read_all(path_of(active.base_offset))
    ends = [position + header.size for position, header in iterate_headers(whole)]
    assert log.segments[-1].size == (ends[-1] if ends else 0) <= size
    assert read_records(log) == records[: log.log_end_offset]
    assert append(log, data_batch(1)).first_offset == log.log_end_offset - 1


@pytest.mark.parametrize("garbage", [b"\0" * 10, b"\0" * 5000, b"\xff" * 3, b"\xff" * 300, b"\2" * 300])
def test_garbage_at_the_end_is_cut(garbage: bytes) -> None:
    files, records, old = written_log(close=False)
    path = path_of(old.segments[-1].base_offset)
    files.write_atomic(path, files.read_all(path) + garbage)
    log = reopen(files)
    assert read_records(log) == records and log.recovery_report.truncated_bytes == len(garbage)


def test_a_flipped_bit_in_the_last_batch_cuts_it_if_it_was_not_synced() -> None:
    files, records, old = written_log(close=False)
    path = path_of(old.segments[-1].base_offset)
    files.flip_bit(path, 8 * files.size(path) - 1)
    log = reopen(files)
    assert read_records(log) == records[: log.log_end_offset] and END - PER_BATCH <= log.log_end_offset < END


def test_but_not_if_it_had_been_synced() -> None:
    files, _, old = written_log(close=False)
    path = path_of(old.segments[-1].base_offset)
    files.flip_bit(path, 8 * files.size(path) - 1)
    with pytest.raises(CorruptLog):
        reopen(files, recovery_point=END)


def test_a_missing_tail_of_synced_data_is_told() -> None:
    files, _, old = written_log(close=True)
    last = old.segments[-1]
    files.tear(path_of(last.base_offset), 0)
    log = reopen(files, clean_shutdown=True, recovery_point=END)
    assert log.recovery_report.missing_offsets == END - last.base_offset


# -- damage in the middle ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_damage_in_the_middle_is_never_cut(data: st.DataObject) -> None:
    files, records, old = written_log(close=False)
    segment = data.draw(st.sampled_from(old.segments[:-1]))
    path = path_of(segment.base_offset)
    before = {name: files.read_all(name) for name in files.paths() if name.endswith(".log")}
    bit = data.draw(st.integers(0, 8 * segment.size - 1))
    files.flip_bit(path, bit)
    with pytest.raises(CorruptLog, match=r"[0-9]{20}\.log"):  # a wrong epoch shows in the batch after it
        reopen(files)
    files.flip_bit(path, bit)
    assert {name: files.read_all(name) for name in files.paths() if name.endswith(".log")} == before
    check_same(reopen(files), records)


def test_damage_can_be_cut_on_demand_and_what_is_cut_is_kept() -> None:
    files, records, old = written_log(close=False)
    middle = old.segments[1]
    files.flip_bit(path_of(middle.base_offset), 8 * 300)
    cut_bytes = sum(segment.size for segment in old.segments[1:])
    with pytest.raises(CorruptLog):
        reopen(files)
    log = reopen(files, on_damage=OnDamage.CUT)
    assert middle.base_offset <= log.log_end_offset < middle.next_offset
    assert read_records(log) == records[: log.log_end_offset]
    kept = [path for path in files.paths() if path.endswith(".damaged")]
    assert sum(files.size(path) for path in kept) == log.recovery_report.kept_damaged_bytes
    assert log.recovery_report.kept_damaged_bytes == cut_bytes - log.segments[-1].size
    log.close()
    assert (
        read_records(reopen(files, clean_shutdown=True, recovery_point=log.log_end_offset))
        == records[: log.log_end_offset]
    )


def test_a_hole_that_was_never_written_is_cut_with_what_follows() -> None:
    """Power loss may keep later pages and lose earlier ones; what is above the recovery point may go."""
    files, records, old = written_log(close=False)
    second = old.segments[1]
    files.tear(path_of(second.base_offset), second.size - 10)
    log = reopen(files, recovery_point=second.base_offset)
    assert second.base_offset <= log.log_end_offset < second.next_offset
    assert read_records(log) == records[: log.log_end_offset]
    assert [segment.base_offset for segment in log.segments] == [0, second.base_offset]


def test_a_segment_cut_at_a_batch_leaves_no_gap() -> None:
    files, records, old = written_log(close=False)
    second = old.segments[1]
    files.tear(path_of(second.base_offset), 0)
    log = reopen(files, recovery_point=second.base_offset)
    assert log.log_end_offset == second.base_offset and read_records(log) == records[: second.base_offset]


def test_structural_damage_below_the_recovery_point_is_found_when_walked() -> None:
    files, _, old = written_log(close=True)
    first = old.segments[0]
    files.flip_bit(path_of(0), 8 * 8)
    for path in [path for path in files.paths() if path.endswith((".snapshot", ".index"))]:
        files.remove(path)
    with pytest.raises(CorruptLog):
        reopen(files, clean_shutdown=True, recovery_point=END)
    assert first.base_offset == 0


# -- indexes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "all"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_indexes_are_rebuilt(kind: str, clean: bool) -> None:
    files, records, _ = written_log(close=True)
    kinds = ("index", "timeindex", "txnindex") if kind == "all" else (kind,)
    removed = {
        path: files.read_all(path)
        for path in files.paths()
        if path.endswith(tuple("." + each for each in kinds))
    }
    for path in removed:
        files.remove(path)
    log = reopen(files, clean_shutdown=clean, recovery_point=0)
    check_same(log, records)
    log.close()
    for path, data in removed.items():
        assert files.read_all(path) == data


@settings(max_examples=120)
@given(st.data())
def test_any_flipped_bit_in_any_index_does_no_harm(data: st.DataObject) -> None:
    files, records, _ = written_log(close=True)
    indexes = [path for path in files.paths() if path.endswith("index") and files.size(path)]
    path = data.draw(st.sampled_from(indexes))
    if data.draw(st.booleans()):
        files.flip_bit(path, data.draw(st.integers(0, 8 * files.size(path) - 1)))
    else:
        files.tear(path, data.draw(st.integers(0, files.size(path) - 1)))
    log = reopen(files, clean_shutdown=True, recovery_point=END)
    for offset in data.draw(st.permutations(range(0, END, 9))):
        assert read_records(log, offset) == records[offset:][: len(records)] or not records
    check_same(log, records)


def test_a_closed_log_is_the_same_whether_built_or_rebuilt() -> None:
    files, _, _ = written_log(close=True)
    before = {path: files.read_all(path) for path in files.paths()}
    log = reopen(files, recovery_point=0)
    log._is_changed = True
    log.close()
    assert {path: files.read_all(path) for path in files.paths()} == before


# -- leftovers -----------------------------------------------------------------------------------------


def test_leftovers_are_removed() -> None:
    files, records, _ = written_log(close=True)
    stray = [
        path_of(5000, "index"),
        f"{path_of(0)}.deleted",
        f"{path_of(0, 'index')}.cleaned",
        f"{DIRECTORY}/x.tmp",
    ]
    for path in stray:
        files.write_atomic(path, b"12345678")
    log = reopen(files, clean_shutdown=True, recovery_point=END)
    check_same(log, records)
    assert not any(files.exists(path) for path in stray)


def test_a_log_that_ends_below_its_start_begins_anew() -> None:
    files, _, _ = written_log(close=True)
    log = reopen(files, clean_shutdown=True, recovery_point=END, log_start_offset=END + 50)
    assert (log.log_start_offset, log.log_end_offset) == (END + 50, END + 50)
    assert append(log, data_batch(1)).first_offset == END + 50


def test_truncation_below_the_recovery_point_is_no_loss() -> None:
    files, records, _ = written_log(close=True)
    log = reopen(files, clean_shutdown=True, recovery_point=END)
    log.truncate_to(52)
    append(log, data_batch(5))
    active = log.segments[-1]
    files.kill()
    files.tear(path_of(active.base_offset), active.size - 3)
    log = reopen(files, recovery_point=END)
    assert log.log_end_offset == 50 and read_records(log) == records[:50]


def test_compacted_logs_may_have_gaps_between_segments() -> None:
    config = dataclasses.replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    files, _, old = written_log(close=False, config=config)
    files.tear(path_of(old.segments[1].base_offset), 0)
    log = open_log(files, config)
    assert log.log_end_offset == END
    with pytest.raises(ApiError):
        log.read(END + 1, 1, END)


# -- the evidence --------------------------------------------------------------------------------------


def test_zero_pages() -> None:
    assert has_zero_page(bytes(4096), 0) and has_zero_page(b"\1" * 100 + bytes(4096 * 2), 0)
    assert not has_zero_page(b"\1" * 4096, 0) and not has_zero_page(b"\1" + bytes(400), 0)
    assert has_zero_page(b"\1" * 10 + bytes(600), 4086)


def test_a_cut_batch_and_a_batch_with_a_wrong_length() -> None:
    batch = data_batch(5)
    assert is_cut_off(bytes(batch[:100]))
    batch[10] ^= 0x40
    assert not is_cut_off(bytes(batch))


def test_valid_batches_are_found_anywhere() -> None:
    files = MemoryFiles()
    batch = bytes(data_batch(3, offset=40))
    files.write_atomic("/a", b"\2" * 333 + batch)
    file = files.open("/a")
    found = find_valid_batch(file, 0, file.size(), 10)
    assert found is not None and found[0] == 333 and found[1].base_offset == 40
    assert find_valid_batch(file, 0, file.size(), 41) is None
    assert find_valid_batch(file, 334, file.size(), 10) is None
