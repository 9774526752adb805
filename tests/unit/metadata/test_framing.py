from __future__ import annotations

import pytest

from tidemill.metadata.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    decode_control,
    encode_control,
)
from tidemill.metadata.framing import decode_value, encode_records, encode_value, iterate_records
from tidemill.metadata.records import (
    RECORD_TYPES,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import Record, checksum, read_header

LATEST = 30


def test_the_example_of_the_module_is_what_is_written() -> None:
    record = TopicRecord(name="a", topic_id=b"\x01" * 16)
    assert encode_value(record, LATEST).hex() == "010200" + "0261" + "01" * 16 + "00"


@pytest.mark.parametrize(("api_key", "schema"), RECORD_TYPES.items())
def test_every_type_of_record_survives_the_round_trip(api_key: int, schema: type) -> None:
    value = encode_value(schema(), LATEST)
    assert value[:2] == bytes((1, api_key))
    assert decode_value(value) == schema()


@pytest.mark.parametrize(
    ("record", "metadata_version", "version"),
    [
        (PartitionRecord(), 30, 2), (PartitionRecord(), 17, 1), (PartitionRecord(), 7, 0),
        (RegisterBrokerRecord(), 30, 4), (RegisterBrokerRecord(), 21, 3), (RegisterBrokerRecord(), 7, 1),
        (BrokerRegistrationChangeRecord(fenced=-1), 30, 0),
        (BrokerRegistrationChangeRecord(in_controlled_shutdown=1), 30, 1),
        (BrokerRegistrationChangeRecord(log_dirs=[bytes(16)]), 30, 2),
        (BrokerRegistrationChangeRecord(cordoned_log_dirs=[]), 30, 3),
        (ConfigRecord(), 30, 0),
    ],
)  # fmt: skip
def test_the_written_version_follows_the_metadata_version(
    record: PartitionRecord, metadata_version: int, version: int
) -> None:
    assert encode_value(record, metadata_version)[2] == version


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x02\x02\x00",
        b"\x01",
        b"\x01\x63\x00\x00",
        b"\x01\x02\x09\x00",
        b"\x01\x18\x00\x00\x00",
        b"\x01\x02\x00\x05a",
    ],
    ids=["empty", "frame version", "cut frame", "unknown type", "unknown version", "stray bytes", "cut body"],
)
def test_what_cannot_be_understood_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_value(value)


def test_a_batch_of_records_is_a_valid_record_batch_with_null_keys() -> None:
    topics = [TopicRecord(name=name, topic_id=bytes(16)) for name in "ab"]
    batch = encode_records(topics, base_offset=7, leader_epoch=3, timestamp_ms=99, metadata_version=LATEST)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (7, 8, 3)
    assert checksum(batch, 0, len(batch)) == header.crc
    raw = list(iterate_records(header, batch))
    assert [record.key for record in raw] == [None, None]
    assert [decode_value(record.value or b"") for record in raw] == topics


def test_a_leader_change_has_the_bytes_that_kafka_writes() -> None:
    voter = [Voter(voter_id=1)]
    raw = encode_control(LeaderChangeMessage(leader_id=1, voters=voter, granting_voters=voter), 0, 0)
    assert raw.key == bytes.fromhex("00000002")
    assert raw.value == bytes.fromhex("00000000000102000000010002000000010000")


@pytest.mark.parametrize(
    "message",
    [
        SnapshotHeaderRecord(last_contained_log_timestamp=5), SnapshotFooterRecord(),
        KRaftVersionRecord(kraft_version=1), LeaderChangeMessage(leader_id=4),
    ],
)  # fmt: skip
def test_control_records_survive_the_round_trip(message: LeaderChangeMessage) -> None:
    assert decode_control(encode_control(message, 3, 4)) == message


def test_an_unknown_control_record_is_skipped_and_a_broken_one_refused() -> None:
    assert decode_control(Record(0, 0, bytes.fromhex("00000063"), b"anything")) is None
    for key, value in ((None, b""), (b"\x00", b""), (bytes.fromhex("00000003"), b"\x00")):
        with pytest.raises(MalformedMessage):
            decode_control(Record(0, 0, key, value))
