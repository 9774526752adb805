"""Producers: duplicates, order, fencing, transactions, snapshots."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, append, data_batch, marker_batch, open_log, producer_batch

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.storage.producer_snapshots import CorruptSnapshot, parse_snapshot, render_snapshot
from tidemill.storage.producer_state import ProducerEntry, ProducerState, RememberedBatch, read_end_marker
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import read_header

MAX_SEQUENCE = 0x7FFF_FFFF


@pytest.fixture
def log() -> Log:
    return open_log(MemoryFiles())


def refusal(log: Log, batch: bytearray, **options: int) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(ApiError) as caught:
        append(log, batch, **options)
    assert log.log_end_offset == end
    return caught.value.code


# -- sequences -----------------------------------------------------------------------------------------


def test_the_last_five_batches_are_recognised(log: Log) -> None:
    infos = [append(log, producer_batch(7, 2 * place, 2)) for place in range(7)]
    for place in range(2, 7):
        again = append(log, producer_batch(7, 2 * place, 2))
        assert again == infos[place]._replace(is_duplicate=True)
    assert refusal(log, producer_batch(7, 2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14


def test_a_duplicate_in_log_append_time_answers_the_first_time() -> None:
    log = open_log(MemoryFiles(), LogConfig(message_timestamp_type="LogAppendTime"))
    assert append(log, producer_batch(7, 0), now_ms=5000).append_time_ms == 5000
    assert append(log, producer_batch(7, 0), now_ms=6000) == (0, 0, 5000, True)


def test_gaps_and_half_duplicates_are_refused(log: Log) -> None:
    append(log, producer_batch(7, 0, 3))
    for sequence, count in ((4, 1), (1, 2), (0, 2), (0, 4)):
        assert refusal(log, producer_batch(7, sequence, count)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere(log: Log) -> None:
    assert append(log, producer_batch(7, 500)).first_offset == 0
    assert append(log, producer_batch(7, 501)).first_offset == 1


def test_an_unknown_producer_begins_at_zero_if_it_has_an_epoch_for_each_transaction(log: Log) -> None:
    log.check_begins_at_zero(read_header(producer_batch(7, 0)))
    with pytest.raises(ApiError) as caught:
        log.check_begins_at_zero(read_header(producer_batch(7, 1)))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, producer_batch(7, 0))
    log.check_begins_at_zero(read_header(producer_batch(7, 1)))


def test_a_new_epoch_begins_at_zero_and_fences_the_old(log: Log) -> None:
    append(log, producer_batch(7, 0, epoch=3))
    assert refusal(log, producer_batch(7, 1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, producer_batch(7, 0, epoch=4))
    assert refusal(log, producer_batch(7, 1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap_to_zero(log: Log) -> None:
    append(log, producer_batch(7, MAX_SEQUENCE - 1, 2))
    assert append(log, producer_batch(7, 0)).first_offset == 2
    again = append(log, producer_batch(7, MAX_SEQUENCE - 1, 2))
    assert again.is_duplicate and again.first_offset == 0
    append(log, producer_batch(8, MAX_SEQUENCE, 3))
    assert append(log, producer_batch(8, 2)).first_offset == 6


def test_batches_of_coordinators_have_no_sequence(log: Log) -> None:
    for _ in range(3):
        append(log, producer_batch(7, -1, epoch=2, transactional=True))
    assert (
        refusal(log, producer_batch(7, -1, epoch=1, transactional=True)) is ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_producers_do_not_mix(log: Log) -> None:
    append(log, producer_batch(7, 0))
    append(log, producer_batch(8, 0))
    append(log, data_batch())
    assert append(log, producer_batch(7, 1)).first_offset == 3
    assert sorted(entry.producer_id for entry in log.producers()) == [7, 8]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-7, 2), st.integers(1, 3)), max_size=40))
def test_against_a_list_of_everything_accepted(rows: list[tuple[int, int, int]]) -> None:
    """Per producer: accept what follows, answer one of the last five with its offsets, refuse the rest."""
    log = open_log(MemoryFiles())
    accepted: dict[int, list[tuple[int, int, int]]] = {0: [], 1: [], 2: []}
    for producer, shift, count in rows:
        past = accepted[producer]
        if shift < 0 and len(past) >= -shift:
            sequence, count, _ = past[shift]
            is_known = -shift <= 5
        else:
            following = past[-1][0] + past[-1][1] if past else 0
            sequence, is_known = following + max(shift, 0), False
        batch = producer_batch(producer, sequence, count)
        end = log.log_end_offset
        if is_known:
            assert append(log, batch) == (past[shift][2], past[shift][2] + count - 1, -1, True)
        elif not past or sequence == past[-1][0] + past[-1][1]:
            assert append(log, batch).first_offset == end
            past.append((sequence, count, end))
        else:
            assert refusal(log, batch) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- transactions --------------------------------------------------------------------------------------


def test_the_last_stable_offset_waits_for_the_oldest_transaction_and_the_watermark(log: Log) -> None:
    append(log, data_batch(5))
    append(log, producer_batch(7, 0, 5, transactional=True))
    append(log, producer_batch(8, 0, 5, transactional=True))
    log.update_high_watermark(15)
    assert log.last_stable_offset == 5
    append(log, marker_batch(7, commit=True))
    assert log.last_stable_offset == 5, "the marker is above the high watermark"
    log.update_high_watermark(16)
    assert log.last_stable_offset == 10
    append(log, marker_batch(8, commit=False))
    log.update_high_watermark(17)
    assert log.last_stable_offset == 17
    assert log.aborted_transactions(0, 17) == [(8, 10, 16, 17)]


def test_an_abort_notes_the_last_stable_offset_after_it(log: Log) -> None:
    append(log, producer_batch(7, 0, 5, transactional=True))
    append(log, producer_batch(8, 0, 5, transactional=True))
    append(log, marker_batch(7, commit=False))
    append(log, marker_batch(8, commit=False))
    assert log.aborted_transactions(0, 12) == [(7, 0, 10, 5), (8, 5, 11, 12)]
    assert log.aborted_transactions(6, 12) == [(7, 0, 10, 5), (8, 5, 11, 12)]
    assert log.aborted_transactions(11, 12) == [(8, 5, 11, 12)]
    assert log.aborted_transactions(0, 4) == [(7, 0, 10, 5)]


def test_a_plain_batch_inside_a_transaction_is_refused(log: Log) -> None:
    append(log, producer_batch(7, 0, transactional=True))
    assert refusal(log, producer_batch(7, 1)) is ErrorCode.INVALID_TXN_STATE


def test_markers_of_old_epochs_and_old_coordinators_are_refused(log: Log) -> None:
    append(log, producer_batch(7, 0, epoch=2, transactional=True))
    assert refusal(log, marker_batch(7, commit=True, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, marker_batch(7, commit=True, epoch=2, coordinator_epoch=5))
    old = marker_batch(7, commit=True, epoch=2, coordinator_epoch=4)
    assert refusal(log, old) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_in_transactions_of_version_2_the_marker_brings_a_larger_epoch(log: Log) -> None:
    append(log, producer_batch(7, 0, epoch=2, transactional=True))
    late = marker_batch(7, commit=True, epoch=2)
    assert refusal(log, late, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, marker_batch(7, commit=True, epoch=3), transaction_version=2)
    append(log, marker_batch(7, commit=True, epoch=3), transaction_version=2)
    append(log, producer_batch(7, 0, epoch=3, transactional=True))
    assert (
        refusal(log, producer_batch(7, 5, epoch=3, transactional=True))
        is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_a_marker_without_a_transaction_only_bumps_the_epoch(log: Log) -> None:
    append(log, marker_batch(7, commit=False, epoch=4))
    assert log.aborted_transactions(0, 10) == [] and log.producers()[0].epoch == 4


def test_followers_keep_the_same_state_as_the_leader(log: Log) -> None:
    for batch in (
        producer_batch(7, 0, 5, transactional=True),
        producer_batch(8, 0, 5),
        marker_batch(7, commit=False),
        producer_batch(7, 5, 2, transactional=True),
    ):
        append(log, batch)
    records = log.read(0, 1 << 20, log.log_end_offset)
    assert records is not None
    follower = open_log(MemoryFiles())
    follower.append_as_follower(records.file.read(records.position, records.length))
    follower.update_high_watermark(13)
    assert follower.last_stable_offset == 11
    assert follower.aborted_transactions(0, 13) == log.aborted_transactions(0, 13) == [(7, 0, 10, 11)]
    assert follower.producers()[0].batches[-1] == log.producers()[0].batches[-1]


def test_other_control_records_are_no_markers() -> None:
    leader_change = data_batch([b""], producer_id=-1, attributes=0x20)
    log = open_log(MemoryFiles())
    append(log, leader_change)
    assert log.producers() == []
    batch = marker_batch(7, commit=True)
    struct.pack_into(">i", batch, 57, 0)
    assert read_end_marker(batch, read_header(batch)) is None


# -- expiry --------------------------------------------------------------------------------------------


def test_idle_producers_are_forgotten_open_transactions_are_not() -> None:
    log = open_log(MemoryFiles(), producer_expiration_ms=100)
    append(log, producer_batch(7, 0, timestamp=1000))
    append(log, producer_batch(8, 0, timestamp=1000, transactional=True))
    append(log, producer_batch(9, 0, timestamp=1050))
    assert log.expire_producers(1099) == 0
    assert log.expire_producers(1100) == 1
    assert sorted(entry.producer_id for entry in log.producers()) == [8, 9]
    assert append(log, producer_batch(7, 55)).first_offset == 3


# -- snapshots -----------------------------------------------------------------------------------------


def entry(producer_id: int) -> ProducerEntry:
    made = ProducerEntry(producer_id, 4)
    made.coordinator_epoch, made.last_timestamp, made.transaction_first_offset = 9, 1234, 50
    made.batches.append(RememberedBatch(10, 12, 60, 62, 1234))
    return made


def test_the_bytes_of_a_snapshot() -> None:
    data = render_snapshot([entry(7)])
    assert data[:2] == b"\0\1" and data[6:10] == b"\0\0\0\1"
    assert data[10:] == struct.pack(">qhiqiqiq", 7, 4, 12, 62, 2, 1234, 9, 50)
    read = parse_snapshot(data)[0]
    assert [getattr(read, name) for name in ProducerEntry.__slots__] == [
        getattr(entry(7), name) for name in ProducerEntry.__slots__
    ]


@given(st.integers(0, 8 * (10 + 46 * 2) - 1))
def test_any_flipped_bit_in_a_snapshot_is_found(bit: int) -> None:
    data = bytearray(render_snapshot([entry(7), entry(8)]))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CorruptSnapshot):
        parse_snapshot(bytes(data))


@given(st.integers(0, 101))
def test_a_cut_snapshot_is_found(size: int) -> None:
    with pytest.raises(CorruptSnapshot):
        parse_snapshot(render_snapshot([entry(7), entry(8)])[:size])


def test_state_after_a_clean_restart_comes_from_the_snapshot() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, producer_batch(7, 0, 3))
    append(log, producer_batch(8, 0, 2, transactional=True))
    log.close()
    assert files.exists(f"{DIRECTORY}/{5:020d}.snapshot")
    log = open_log(files, clean_shutdown=True, recovery_point=5)
    assert append(log, producer_batch(7, 0, 3)) == (0, 2, -1, True)
    assert append(log, producer_batch(7, 3)).first_offset == 5
    log.update_high_watermark(6)
    assert log.last_stable_offset == 3
    append(log, marker_batch(8, commit=False))
    assert log.aborted_transactions(0, 9) == [(8, 3, 6, 7)]


@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "none"])
@pytest.mark.parametrize("clean", [True, False])
def test_state_survives_the_loss_of_snapshots(damage: str, clean: bool) -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(segment_bytes=400))
    for place in range(12):
        append(log, producer_batch(7, place))
    log.close()
    for path in [path for path in files.paths() if path.endswith(".snapshot")]:
        {"flip": lambda p: files.flip_bit(p, 90), "tear": lambda p: files.tear(p, 20), "remove": files.remove,
         "none": lambda p: None}[damage](path)  # fmt: skip
    log = open_log(files, LogConfig(segment_bytes=400), clean_shutdown=clean, recovery_point=12)
    assert append(log, producer_batch(7, 11)).is_duplicate
    assert append(log, producer_batch(7, 12)).first_offset == 12


def test_rolling_leaves_a_snapshot_and_few_are_kept() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for place in range(8):
        append(log, producer_batch(7, place))
        log.roll()
        log.flush()
    snapshots = [path for path in files.paths() if path.endswith(".snapshot")]
    assert snapshots[-1] == f"{DIRECTORY}/{8:020d}.snapshot" and 2 <= len(snapshots) <= 3


def test_truncation_takes_the_state_back(log: Log) -> None:
    for place in range(4):
        append(log, producer_batch(7, place))
    append(log, producer_batch(8, 0, transactional=True))
    append(log, marker_batch(8, commit=False))
    log.roll()
    append(log, producer_batch(7, 4))
    log.truncate_to(5)
    assert log.aborted_transactions(0, 10) == []
    log.update_high_watermark(5)
    assert log.last_stable_offset == 4
    log.truncate_to(2)
    assert append(log, producer_batch(7, 2)).first_offset == 2


def test_state_objects_can_be_made_from_entries() -> None:
    state = ProducerState([entry(8), entry(7)])
    assert state.first_unstable_offset == 50
