"""The gate before a transactional write, and the control batch that ends a transaction."""

from __future__ import annotations

import pytest

from tidemill.coordination.record_codec import Producer, encode_marker
from tidemill.coordination.transaction.verification import (
    OFFSET_COMMIT,
    PRODUCE,
    Operation,
    Verdict,
    VerificationGuards,
    client_error,
    verdict,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.storage.producer_state import EndMarker, ProducerState, read_end_marker
from tidemill.wire.batch import TRANSACTIONAL_MASK, BatchHeader, checksum, read_header

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("open_epoch", "api_version", "operation", "expected"),
    [
        (3, 3, PRODUCE, Verdict.ACCEPT),
        (3, 12, PRODUCE, Verdict.ACCEPT),
        (2, 12, PRODUCE, Verdict.ADD_FIRST),
        (None, 12, PRODUCE, Verdict.ADD_FIRST),
        (None, 11, PRODUCE, Verdict.VERIFY_FIRST),
        (None, 3, PRODUCE, Verdict.VERIFY_FIRST),
        (None, 5, OFFSET_COMMIT, Verdict.ADD_FIRST),
        (None, 4, OFFSET_COMMIT, Verdict.VERIFY_FIRST),
    ],
)
def test_what_a_leader_does_first(
    open_epoch: int | None, api_version: int, operation: Operation, expected: Verdict
) -> None:
    assert verdict(open_epoch, 3, api_version, operation) is expected


@pytest.mark.parametrize(
    ("error", "api_version", "operation", "told"),
    [
        ("PRODUCER_FENCED", 12, PRODUCE, "INVALID_PRODUCER_EPOCH"),
        ("TRANSACTION_ABORTABLE", 11, PRODUCE, "TRANSACTION_ABORTABLE"),
        ("TRANSACTION_ABORTABLE", 10, PRODUCE, "INVALID_TXN_STATE"),
        ("TRANSACTION_ABORTABLE", 4, OFFSET_COMMIT, "TRANSACTION_ABORTABLE"),
        ("TRANSACTION_ABORTABLE", 3, OFFSET_COMMIT, "INVALID_TXN_STATE"),
        ("CONCURRENT_TRANSACTIONS", 12, PRODUCE, "CONCURRENT_TRANSACTIONS"),
        ("CONCURRENT_TRANSACTIONS", 11, PRODUCE, "NOT_ENOUGH_REPLICAS"),
        ("NOT_COORDINATOR", 12, PRODUCE, "NOT_ENOUGH_REPLICAS"),
        ("CONCURRENT_TRANSACTIONS", 5, OFFSET_COMMIT, "CONCURRENT_TRANSACTIONS"),
        ("INVALID_PRODUCER_ID_MAPPING", 12, PRODUCE, "INVALID_PRODUCER_ID_MAPPING"),
    ],
)
def test_what_the_client_is_told(error: str, api_version: int, operation: Operation, told: str) -> None:
    assert client_error(ErrorCode[error], api_version, operation) is ErrorCode[told]


def test_a_marker_takes_the_guard_of_a_batch_that_waits() -> None:
    guards = VerificationGuards()
    guard = guards.take(T0, 7)
    assert guards.take(T0, 7) == guard, "batches that wait together share it"
    assert guards.take(T0, 8) != guard
    guards.on_marker(TopicPartition("t", 1), 7)
    assert guards.is_held(T0, 7, guard)
    guards.on_marker(T0, 7)
    assert not guards.is_held(T0, 7, guard)
    later = guards.take(T0, 7)
    assert later != guard
    guards.drop(T0, 7, guard)
    assert guards.is_held(T0, 7, later), "an old guard does not drop a new one"
    guards.drop(T0, 7, later)
    assert not guards.is_held(T0, 7, later)


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_marker_is_a_control_batch_that_storage_reads(is_commit: bool) -> None:
    batch = encode_marker(Producer(7, 3), is_commit, 5, now_ms=1_000)
    header = read_header(batch)
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert header.crc == checksum(batch, 0, len(batch))
    assert read_end_marker(batch, header) == EndMarker(is_abort=not is_commit, coordinator_epoch=5)
    kind = 1 if is_commit else 0
    record = bytes([0, 0, 0, 8, 0, 0, 0, kind, 12, 0, 0, 0, 0, 0, 5, 0])
    assert bytes(batch[61:]) == bytes([len(record) * 2]) + record, "the bytes that Kafka writes"


def data(epoch: int, offset: int) -> BatchHeader:
    return BatchHeader(offset, 50, 0, 2, 0, TRANSACTIONAL_MASK, 0, 0, 0, 7, epoch, -1, 1)


def end(state: ProducerState, epoch: int, offset: int, version: int) -> None:
    batch = encode_marker(Producer(7, epoch), True, 0, now_ms=0)
    header = read_header(batch)
    marker = read_end_marker(batch, header)
    assert marker is not None
    state.check_marker(header, marker, version)
    state.record_marker(header, marker, state.completion(header, marker, offset), 0)


def test_a_partition_knows_whose_transaction_is_open() -> None:
    state = ProducerState()
    assert state.open_transaction_epoch(7) is None
    state.record(data(3, 0), 0, 0)
    assert state.open_transaction_epoch(7) == 3
    end(state, 4, 1, version=2)
    assert state.open_transaction_epoch(7) is None


def test_a_late_marker_of_version_2_cannot_end_the_next_transaction() -> None:
    state = ProducerState()
    state.record(data(3, 0), 0, 0)
    end(state, 4, 1, version=2)
    end(state, 4, 2, version=2)
    state.record(data(4, 3), 3, 0)
    with pytest.raises(ApiError) as refused:
        end(state, 4, 4, version=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.open_transaction_epoch(7) == 4


def test_late_data_is_refused_after_the_marker() -> None:
    state = ProducerState()
    end(state, 4, 0, version=2)
    with pytest.raises(ApiError) as refused:
        state.check(data(3, 1))
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
