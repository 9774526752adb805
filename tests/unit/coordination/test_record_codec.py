"""Records of internal topics as bytes, as Kafka writes them."""

from __future__ import annotations

import pytest

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.record_codec import (
    EndOfTransaction,
    LoggedRecord,
    Producer,
    decode_record,
    encode_key,
    encode_marker,
    encode_records,
    encode_value,
    read_batches,
)
from tidemill.coordination.records.group_records import (
    RECORD_TYPES,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicPartitions,
)
from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import stamp

NOW_MS = 1_700_000_000_000
COMMIT = CoordinatorRecord(
    1,
    OffsetCommitKey(group="g", topic="t", partition=0),
    OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=NOW_MS),
    3,
)
TOMBSTONE = CoordinatorRecord(1, OffsetCommitKey(group="g", topic="t", partition=1), None)


def test_bytes_of_a_committed_offset() -> None:
    assert encode_key(COMMIT).hex(" ", 1) == "00 01 00 01 67 00 01 74 00 00 00 00"
    value = encode_value(COMMIT)
    assert value is not None
    assert value == bytes.fromhex("0003 000000000000002a 00000007 00016d 0000018bcfe56800")
    assert encode_value(TOMBSTONE) is None


@pytest.mark.parametrize("compression", range(5))
def test_a_batch_is_read_as_it_was_written(compression: int) -> None:
    batch = encode_records([COMMIT, TOMBSTONE], NOW_MS, compression)
    stamp(batch, 0, 100, 3)
    (read,) = read_batches(batch, RECORD_TYPES)
    assert read.last_offset == 101
    assert list(read.entries) == [LoggedRecord(COMMIT, 100, -1), LoggedRecord(TOMBSTONE, 101, -1)]


def test_transactions_are_told_apart() -> None:
    data = encode_records([COMMIT], NOW_MS, producer=Producer(9, 2)) + encode_marker(
        Producer(9, 2), True, 5, NOW_MS
    )
    entries = [entry for batch in read_batches(data, RECORD_TYPES) for entry in batch.entries]
    assert entries == [LoggedRecord(COMMIT, 0, 9), EndOfTransaction(9, 2, True, 0)]


def test_what_only_a_newer_release_knows_is_left_out() -> None:
    assert decode_record(b"\x00\x63rest", b"", RECORD_TYPES) is None
    key, value = encode_key(COMMIT), encode_value(COMMIT)
    assert value is not None
    assert decode_record(key, b"\x00\x63" + value[2:], RECORD_TYPES) is None


def test_damage_is_an_error_and_a_torn_end_is_not() -> None:
    batch = encode_records([COMMIT], NOW_MS)
    assert list(read_batches(batch[:-1], RECORD_TYPES)) == []
    batch[-3] ^= 1
    with pytest.raises(MalformedMessage, match="checksum"):
        list(read_batches(batch, RECORD_TYPES))


def test_what_we_wrote_ourselves_may_be_large() -> None:
    """A member with many partitions has more array elements than a stranger may send."""
    partitions = TopicPartitions(
        topic_id=b"t" * 16, partitions=list(range(60_000)), assignment_epochs=[5] * 60_000
    )
    record = CoordinatorRecord(
        8,
        ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        ConsumerGroupCurrentMemberAssignmentValue(member_epoch=5, assigned_partitions=[partitions]),
        0,
    )
    value = encode_value(record)
    assert value is not None
    read = decode_record(encode_key(record), value, RECORD_TYPES)
    assert read is not None and read.value == record.value
