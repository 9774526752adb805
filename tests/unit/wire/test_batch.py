"""Record batches against those of kafka-python and Java, and against damage."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from java_batches import JAVA_BATCHES
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    build_batch,
    checksum,
    encode_batch,
    increment_sequence,
    iterate_headers,
    iterate_records,
    read_header,
    read_prefix,
    read_varint,
    stamp,
    write_varint,
)
from tidemill.wire.compression import CODEC_NAMES, NONE, compress, decompress

NOW_MS = 1_700_000_000_000
CODECS = range(5)

texts = st.text("abé\N{SNOWMAN}", max_size=8)
blobs = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(texts, blobs), max_size=3).map(tuple)
record_lists = st.lists(
    st.builds(Record, st.just(0), st.integers(NOW_MS - 10**9, NOW_MS + 10**9), blobs, blobs, headers),
    min_size=1,
    max_size=12,
).map(lambda records: [record._replace(offset=offset) for offset, record in enumerate(records)])


def records_of(batch: bytes | bytearray) -> list[Record]:
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.crc == checksum(batch, 0, len(batch))
    payload = decompress(header.compression, batch[HEADER_SIZE:], 10_000_000)
    return list(iterate_records(header, payload))


def their_batch(records: list[Record], codec: int, **fields: Any) -> bytes:
    settings_of_builder = {
        "is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1,
    } | fields  # fmt: skip
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, batch_size=1 << 30, **settings_of_builder
    )
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(record_lists)
def test_we_read_what_kafka_python_writes(codec: int, records: list[Record]) -> None:
    assert records_of(their_batch(records, codec)) == records


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_large_batches_of_kafka_python(codec: int) -> None:
    records = [Record(n, NOW_MS + n, b"key-%d" % n, b"text %d " % n * 40, ()) for n in range(2_000)]
    batch = their_batch(
        records, codec, is_transactional=True, producer_id=9, producer_epoch=3, base_sequence=7
    )
    header = read_header(batch)
    assert header.compression == codec
    assert header.is_transactional and not header.is_control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 7)
    assert (header.last_offset, header.last_sequence, header.record_count) == (1_999, 2_006, 2_000)
    assert records_of(batch) == records


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(record_lists)
def test_kafka_python_reads_what_we_write(codec: int, records: list[Record]) -> None:
    plain = build_batch(records, producer_id=5, producer_epoch=1, base_sequence=0)
    header = read_header(plain)._replace(attributes=codec)
    batch = encode_batch(header, compress(codec, plain[HEADER_SIZE:]))
    found = MemoryRecords(bytes(batch)).next_batch()
    assert found.validate_crc()
    theirs = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found]
    assert theirs == records == records_of(batch)


def test_without_compression_our_bytes_are_those_of_kafka_python() -> None:
    records = [Record(n, NOW_MS + n, b"k", b"v", (("h", b"x"),)) for n in range(20)]
    assert build_batch(records) == their_batch(records, NONE)


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_java_writes(codec: int) -> None:
    batch = bytes.fromhex(JAVA_BATCHES[CODEC_NAMES[codec]])
    header = read_header(batch)
    assert header.is_transactional and header.compression == codec
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (100, 5, 102)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4_000, 7, 11)
    value = b"value " * 10
    assert records_of(batch) == [
        Record(100, NOW_MS, b"key-0", value + b"0", (("h", b"x0"), ("n", None))),
        Record(101, NOW_MS + 10, b"key-1", None, (("h", b"x1"), ("n", None))),
        Record(102, NOW_MS + 20, b"key-2", value + b"2", (("h", b"x2"), ("n", None))),
    ]


def test_without_compression_our_bytes_are_those_of_java() -> None:
    theirs = bytes.fromhex(JAVA_BATCHES["none"])
    ours = build_batch(
        records_of(theirs),
        leader_epoch=5,
        attributes=0x10,
        producer_id=4_000,
        producer_epoch=7,
        base_sequence=11,
    )
    assert ours == theirs


def test_stamping_changes_neither_records_nor_checksum() -> None:
    records = [Record(n, NOW_MS, b"k", b"%d" % n) for n in range(3)]
    data = bytearray(b"before") + build_batch(records) + b"after"
    stamp(memoryview(data), 6, 5_000_000_000, 12)
    batch = data[6:-5]
    header = read_header(data, 6)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (5_000_000_000, 12, 5_000_000_002)
    assert read_prefix(data, 6) == (5_000_000_000, len(batch))
    assert [record.offset for record in records_of(batch)] == [5_000_000_000 + n for n in range(3)]
    assert data[:6] == b"before" and data[-5:] == b"after"


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = build_batch([Record(n, NOW_MS + n, None, b"v") for n in range(3)], attributes=0x08)
    assert [record.timestamp for record in records_of(batch)] == [NOW_MS + 2] * 3


def test_delete_horizon() -> None:
    header = read_header(build_batch([Record(0, NOW_MS, b"k", None)], attributes=0x40))
    assert header.delete_horizon_ms == NOW_MS
    assert header._replace(attributes=0).delete_horizon_ms is None


def test_sequences_wrap_to_zero() -> None:
    assert increment_sequence(0x7FFFFFFF, 1) == 0
    assert increment_sequence(0x7FFFFFFE, 3) == 1
    assert increment_sequence(5, 0) == 5


def test_headers_of_several_batches_and_a_torn_tail() -> None:
    batches = [bytes(build_batch([Record(n * 10, NOW_MS, None, bytes(n))])) for n in range(4)]
    data = b"".join(batches)
    found = list(iterate_headers(data))
    assert [header.base_offset for _, header in found] == [0, 10, 20, 30]
    assert [position for position, _ in found] == [sum(map(len, batches[:n])) for n in range(4)]
    for cut in range(1, len(batches[-1]) + 1):
        assert len(list(iterate_headers(data[:-cut]))) == 3
    assert [header.base_offset for _, header in iterate_headers(data, len(batches[0]))] == [10, 20, 30]


@pytest.mark.parametrize("length", [-1, 0, HEADER_SIZE - LOG_OVERHEAD - 1, -(2**31)])
def test_a_length_that_cannot_be_stops_the_iteration(length: int) -> None:
    data = bytearray(build_batch([Record(0, NOW_MS, None, b"v")]))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(MalformedMessage, match=f"length {length}"):
        list(iterate_headers(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_there_and_back(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out, 0) == (value, len(out))
    assert len(out) <= 10


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
)
def test_varints_are_zigzag(value: int, encoded: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == encoded


def test_a_varint_of_eleven_bytes_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="ten bytes"):
        read_varint(b"\xff" * 10 + b"\x01", 0)


def damaged_payload() -> tuple[BatchHeader, bytearray]:
    batch = build_batch([Record(n, NOW_MS, b"key", b"value", (("name", b"x"),)) for n in range(3)])
    return read_header(batch), batch[HEADER_SIZE:]


def test_records_cut_anywhere_are_malformed() -> None:
    header, payload = damaged_payload()
    for cut in range(len(payload)):
        with pytest.raises(MalformedMessage):
            list(iterate_records(header, payload[:cut]))


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
def test_a_record_count_that_is_not_true_is_malformed(count: int) -> None:
    header, payload = damaged_payload()
    with pytest.raises(MalformedMessage):
        list(iterate_records(header._replace(record_count=count), payload))


def test_a_record_of_nonsense_claims() -> None:
    def record(*numbers: int) -> bytes:
        body = bytearray(1)
        for number in numbers:
            write_varint(body, number)
        out = bytearray()
        write_varint(out, len(body))
        return bytes(out + body)

    header = damaged_payload()[0]._replace(record_count=1)
    claims = [
        (0, 0, -1, -1, 2**31 - 1),  # headers
        (0, 0, -1, -1, -1),
        (0, 0, 2**31 - 1, -1, 0),  # length of the key
        (0, 0, -1, 2**62, 0),  # length of the value
        (0, 0, -1, -1, 1, -1, -1),  # a header without a name
        (2**63 - 1, 0, -1, -1, 0),  # beyond any timestamp
        (0, 0, -1, -1, 0, 0),  # more than its fields
    ]
    for claim in claims:
        with pytest.raises(MalformedMessage):
            list(iterate_records(header, record(*claim)))
    assert len(list(iterate_records(header, record(0, 0, -1, -1, 0)))) == 1


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_damage_raises_nothing_else(seed: int, changes: int) -> None:
    randomness = random.Random(seed)
    header, payload = damaged_payload()
    for _ in range(changes):
        payload[randomness.randrange(len(payload))] = randomness.randrange(256)
    try:
        assert len(list(iterate_records(header, payload))) == 3
    except MalformedMessage:
        pass


def test_every_flipped_bit_after_the_checksum_changes_it() -> None:
    batch = build_batch([Record(0, NOW_MS, b"key", b"value")])
    right = checksum(batch, 0, len(batch))
    for position in range(21, len(batch)):
        batch[position] ^= 1 << (position % 8)
        assert checksum(batch, 0, len(batch)) != right
        batch[position] ^= 1 << (position % 8)
