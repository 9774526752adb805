"""Golden decode: what librdkafka wrote, decoded by the source, equals what librdkafka reads."""

from __future__ import annotations

import struct
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cluster_under_test import Cluster
from confluent_kafka import Consumer, Producer, TopicPartition
from java_batches import JAVA_BATCHES
from source_rows import arrow_batches, rows, values

from tidemill.model.errors import MalformedMessage
from tidemill.spark.client.cluster import TopicPartition as Where
from tidemill.spark.source import decoding, scanning
from tidemill.spark.source.batches import AbortedTransactions, visible_batches
from tidemill.spark.source.compiled_scanning import scan_compiled
from tidemill.spark.source.decoding import Decoder
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.room import Room
from tidemill.spark.source.scanning import scan_by_numpy
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    Record,
    build_batch,
    encode_batch,
    read_header,
)
from tidemill.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress

COUNT = 700
SCANNERS = {"numpy": scan_by_numpy, "compiled": scan_compiled}


@pytest.fixture(params=SCANNERS)
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(scanning.SCANNER, "chosen", SCANNERS[request.param])
    name: str = request.param
    return name


def sample(number: int) -> dict[str, Any]:
    """A message of every shape: null and empty keys and values, long values, none to many headers."""
    key = [None, b"", b"key-%d" % number][number % 3]
    value = [b"value %d" % number, None, b"", bytes(range(256)) * (number % 40)][number % 4]
    headers = [(f"name-{n}", None if n % 2 else b"h" * n) for n in range(number % 5)]
    return {
        "key": key,
        "value": value,
        "headers": headers,
        "timestamp": 1_700_000_000_000 + number * 37 % 5000,
    }


def produce(cluster: Cluster, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 5})
    for number in range(COUNT):
        producer.produce(topic, partition=0, **sample(number))
        if number % 100 == 99:
            producer.flush(20)


def consume(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """The oracle: what librdkafka's own consumer sees."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "oracle", "enable.partition.eof": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while len(seen) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(COUNT, 1.0):
            assert message.error() is None
            headers = [{"key": key, "value": value} for key, value in message.headers() or []]
            kind, milliseconds = message.timestamp()
            row = {
                "key": message.key(),
                "value": message.value(),
                "offset": message.offset(),
                "headers": headers or None,
            }
            seen.append({**row, "milliseconds": milliseconds, "timestampType": kind - 1})
    consumer.close()
    return seen


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_wrote(cluster: Cluster, codec: str, scanner: str) -> None:
    topic = cluster.topic()
    produce(cluster, topic, codec)
    found = rows(cluster.bootstrap, subscribe=topic, includeHeaders="true")
    for row in found:
        assert (row.pop("topic"), row.pop("partition")) == (topic, 0)
        row["milliseconds"] = round(row.pop("timestamp").timestamp() * 1000)
    assert found == consume(cluster, topic)


def test_times_of_appending(cluster: Cluster, scanner: str) -> None:
    topic = cluster.topic(message_timestamp_type="LogAppendTime")
    before = time.time() - 1
    produce(cluster, topic, "lz4")
    found = rows(cluster.bootstrap, subscribe=topic, columns="timestamp,timestampType")
    assert {row["timestampType"] for row in found} == {1}
    assert all(before <= row["timestamp"].timestamp() <= time.time() + 1 for row in found)


def test_only_wanted_columns_in_the_wanted_order(cluster: Cluster, topic: str, scanner: str) -> None:
    produce(cluster, topic, "none")
    (first, *_) = arrow_batches(cluster.bootstrap, subscribe=topic, columns="offset,value")
    assert first.schema.names == ["offset", "value"]
    assert first.column(0).to_pylist() == list(range(first.num_rows))


def test_ranges_begin_and_end_within_batches(cluster: Cluster, topic: str, scanner: str) -> None:
    produce(cluster, topic, "zstd")
    window = {"startingOffsets": f'{{"{topic}":{{"0":123}}}}', "endingOffsets": f'{{"{topic}":{{"0":456}}}}'}
    found = rows(cluster.bootstrap, subscribe=topic, columns="offset", **window, minPartitions=7)
    assert [row["offset"] for row in found] == list(range(123, 456))


@pytest.mark.parametrize("codec", JAVA_BATCHES)
def test_what_java_wrote(codec: str, scanner: str) -> None:
    data = bytes.fromhex(JAVA_BATCHES[codec])
    found = decode(data, OffsetRange(Where("t", 3), 0, 1000))
    assert [row["offset"] for row in found] == [100, 101, 102]
    assert [row["key"] for row in found] == [b"key-0", b"key-1", b"key-2"]
    assert found[1]["value"] is None
    assert found[2]["headers"] == [{"key": "h", "value": b"x2"}, {"key": "n", "value": None}]


def decode(
    data: bytes, wanted: OffsetRange, aborted: AbortedTransactions | None = None
) -> list[dict[str, Any]]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidemill.spark.source.schema import source_schema

    schema = to_arrow_schema(source_schema({"includeHeaders": "true"}), timezone="UTC")
    batches = Decoder(wanted, schema).decode(visible_batches(data, wanted, aborted, Room()))
    return [row for batch in batches for row in batch.to_pylist()]


# -- transactions, from batches made here -----------------------------------------------------------------


def data_batch(first: int, producer: int, count: int = 2) -> bytes:
    records = [Record(first + n, 5, None, b"%d" % (first + n)) for n in range(count)]
    return bytes(build_batch(records, attributes=TRANSACTIONAL_MASK, producer_id=producer, producer_epoch=0))


def marker(offset: int, producer: int, kind: int) -> bytes:
    record = Record(offset, 5, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK
    return bytes(build_batch([record], attributes=attributes, producer_id=producer, producer_epoch=0))


ABORT, COMMIT = 0, 1
LOG = b"".join([
    data_batch(0, 7), data_batch(2, 8), marker(4, 7, ABORT), data_batch(5, 7), marker(7, 8, COMMIT),
    marker(8, 7, COMMIT), data_batch(9, 8), marker(11, 8, ABORT), data_batch(12, -1),
])  # fmt: skip


def offsets(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found]


def test_markers_are_nobodys_records_and_aborted_ones_are_hidden() -> None:
    wanted = OffsetRange(Where("t", 0), 0, 100)
    assert offsets(decode(LOG, wanted)) == [0, 1, 2, 3, 5, 6, 9, 10, 12, 13]
    assert offsets(decode(LOG, wanted, AbortedTransactions([(0, 7), (9, 8)]))) == [2, 3, 5, 6, 12, 13]
    again = AbortedTransactions([(9, 8)])
    again.add([(9, 8)])
    assert offsets(decode(LOG, wanted._replace(start=5), again)) == [5, 6, 12, 13]


# -- damage -------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(data_batch(0, -1))
    data[HEADER_SIZE + 3] ^= 1
    with pytest.raises(MalformedMessage, match="offset 0 of t-0 is damaged"):
        decode(bytes(data), OffsetRange(Where("t", 0), 0, 10))


def test_a_torn_last_batch_is_left_for_the_next_fetch() -> None:
    data = data_batch(0, -1) + data_batch(2, -1)[:-1]
    assert offsets(decode(data, OffsetRange(Where("t", 0), 0, 10))) == [0, 1]


@pytest.mark.parametrize("scan", SCANNERS.values(), ids=SCANNERS)
def test_records_that_do_not_fit_their_batch_are_refused(scan: scanning.Scanner) -> None:
    """Whatever bytes stand where records should be: an error or fields within the buffer, nothing else."""
    random = np.random.default_rng(5)
    refused = 0
    for _ in range(400):
        buffer = random.integers(0, 24, 40).astype(np.uint8)
        one = np.ones(1, np.int64)
        pieces = scanning.Pieces(one * 0, one * 40, one * 3, one * 0, one * 0)
        try:
            fields = scan(buffer, pieces)
        except MalformedMessage:
            refused += 1
        else:
            assert (fields.header_starts < fields.ends).all()
            assert (fields.ends <= 40).all()
    assert refused > 300


def test_both_scanners_say_the_same() -> None:
    records = [
        Record(n, 5 + n, None if n % 3 else b"k" * n, None if n % 4 == 1 else b"v" * n * 7)
        for n in range(300)
    ]
    buffer = np.frombuffer(bytes(build_batch(records)), np.uint8)
    one = np.ones(1, np.int64)
    pieces = scanning.Pieces(one * HEADER_SIZE, one * buffer.size, one * 300, one * 0, one * 5)
    for slow, fast in zip(scan_by_numpy(buffer, pieces), scan_compiled(buffer, pieces), strict=True):
        assert (slow == fast).all()


@pytest.mark.parametrize("trouble", [ImportError, RuntimeError, OSError])
def test_without_a_working_numba_records_are_read_all_the_same(
    trouble: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise trouble("no such processor")

    monkeypatch.setattr(scanning.SCANNER, "chosen", None)
    monkeypatch.setattr(scanning.SCANNER, "worth_compiling", 0)
    monkeypatch.setattr("tidemill.spark.source.compiled_scanning.scan_compiled", fail)
    wanted = OffsetRange(Where("t", 0), 0, 10)
    for _ in range(2):
        assert offsets(decode(data_batch(0, -1), wanted)) == [0, 1]
    (warning,) = caplog.messages
    assert warning.startswith("numba does not work here") and "no such processor" in warning


def test_a_numba_that_cannot_be_imported_is_worth_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tidemill.spark.source.compiled_scanning", None)
    assert scanning.SCANNER.load() is scan_by_numpy
    assert "numba does not work here" in caplog.text


# -- portions -------------------------------------------------------------------------------------------------


def plain_batch(first: int, count: int, codec: int = 0) -> bytes:
    batch = bytes(build_batch([Record(first + n, 5, None, b"%d" % (first + n)) for n in range(count)]))
    header = read_header(batch)._replace(attributes=codec)
    return bytes(encode_batch(header, compress(codec, batch[HEADER_SIZE:])))


def portions(*fetches: bytes) -> list[pa.RecordBatch]:
    wanted, room = OffsetRange(Where("t", 0), 0, 1000), Room()
    payloads = (p for data in fetches for p in visible_batches(data, wanted, None, room))
    schema = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    return list(Decoder(wanted, schema).decode(payloads))


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_half_a_portion_is_not_joined_with_the_next_fetch(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked batches stand in one buffer, whichever fetch brought them: only others end where their fetch does."""
    monkeypatch.setattr(decoding, "ROWS", 10)
    half = [plain_batch(first, 3, codec) for first in (0, 3)]
    less = [plain_batch(6, 3, codec)]
    rest = [plain_batch(first, 3, codec) for first in (9, 12, 15)]
    found = portions(*(b"".join(fetch) for fetch in (half, less, rest)))
    assert [batch.num_rows for batch in found] == ([6, 12] if codec == NONE else [12, 6])
    read = [value for batch in found for value in batch.column("value").to_pylist()]
    assert read == [b"%d" % number for number in range(18)]


def test_keys_that_are_all_null_are_null() -> None:
    (batch,) = portions(plain_batch(0, 3))
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == [None] * 3


# -- the room for unpacked batches ------------------------------------------------------------------------------


def test_batches_are_unpacked_one_behind_the_other_until_the_room_is_full() -> None:
    room = Room(size=1000)
    packed = [compress(LZ4, bytes([number]) * 400) for number in range(3)]
    (first, *bounds), (second, *more), (third, *last) = [room.unpack(LZ4, each) for each in packed]
    assert first is second and third is not first
    assert [bounds, more, last] == [[0, 400], [400, 800], [0, 400]]
    assert bytes(first[:800]) == b"\0" * 400 + b"\1" * 400
    assert bytes(third[:400]) == b"\2" * 400


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_room_grows_for_what_does_not_fit_and_not_beyond_its_limit(codec: int) -> None:
    large, limit = bytes(50_000), 60_000
    room = Room(size=1000, limit=limit)
    buffer, start, end = room.unpack(codec, compress(codec, large))
    assert bytes(buffer[start:end]) == large
    with pytest.raises(MalformedMessage, match="more than 60000 bytes"):
        room.unpack(codec, compress(codec, bytes(limit + 1)))
    buffer, start, end = room.unpack(codec, compress(codec, bytes(limit)))
    assert (len(buffer), end - start) == (limit, limit)


def test_nothing_to_read_is_no_rows(cluster: Cluster, topic: str) -> None:
    assert values(cluster.bootstrap, subscribe=topic) == []
