"""Arrow columns into record batches: compared with the record writer that goes one record at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.errors import MalformedMessage
from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.sink.batching import Accumulator, Batch, Producer, stamp_producer, verify
from tidemill.spark.sink.compiled_encoding import encode_compiled
from tidemill.spark.sink.encoding import ENCODER, Encoder, Rows, encode_by_numpy, encode_headers
from tidemill.spark.sink.partitioning import murmur2, partitions_of_keys
from tidemill.wire.batch import HEADER_SIZE, Record, encode_record, iterate_records, read_header
from tidemill.wire.compression import CODEC_NAMES, decompress

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TARGET = TopicPartition("orders", 3)
ENCODERS: list[Encoder] = [encode_by_numpy, encode_compiled]

maybe_bytes = st.none() | st.binary(max_size=300)
header_lists = st.none() | st.lists(
    st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3
)
records = st.tuples(maybe_bytes, maybe_bytes, header_lists, st.integers(-(10**12), 3 * 10**12))


def rows_of(
    values: list[bytes | None], keys: list[bytes | None] | None = None, timestamp_ms: int = 1_000
) -> Rows:
    return Rows(
        None if keys is None else pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        None,
        np.full(len(values), timestamp_ms, np.int64),
    )


def records_in(batch: Batch) -> list[Record]:
    header = read_header(batch.data)
    assert header.size == len(batch.data)
    payload = decompress(header.compression, batch.data[HEADER_SIZE:], 1 << 30)
    return list(iterate_records(header, payload))


def doubled_and_reversed(rows: Rows) -> Rows:
    """The same rows, chosen by their places from longer columns."""
    column = pa.concat_arrays
    backwards = np.arange(len(rows))[::-1]
    twice = Rows(
        None if rows.keys is None else column([rows.keys.take(pa.array(backwards)), rows.keys]),
        column([rows.values.take(pa.array(backwards)), rows.values]),
        None if rows.headers is None else column([rows.headers.take(pa.array(backwards)), rows.headers]),
        np.concatenate([rows.times_ms[backwards], rows.times_ms]),
    )
    return twice.take(np.concatenate([backwards, backwards])).slice(0, len(rows))


@given(st.lists(records, min_size=1, max_size=30), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_records_equal_those_of_the_plain_writer(
    given_records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]],
    first: int,
    skipped: int,
) -> None:
    """Also when the columns are slices of longer ones, as Arrow hands them over."""
    padded = [given_records[0]] * skipped + given_records
    header_column = pa.array(
        [None if each[2] is None else [{"key": k, "value": v} for k, v in each[2]] for each in padded],
        HEADERS,
    )
    rows = Rows(
        pa.array([each[0] for each in padded], pa.binary()),
        pa.array([each[1] for each in padded], pa.binary()),
        encode_headers(header_column),
        np.array([each[3] for each in padded], np.int64),
    ).slice(skipped, len(padded))
    base_timestamp_ms = given_records[0][3]
    expected = bytearray()
    for number, (key, value, headers, timestamp) in enumerate(given_records):
        record = Record(first + number, timestamp, key, value, tuple(headers or ()))
        encode_record(expected, record, 0, base_timestamp_ms)
    chosen = doubled_and_reversed(rows)
    for encode in ENCODERS:
        assert bytes(encode(rows, first, base_timestamp_ms)) == bytes(expected)
        assert bytes(encode(chosen, first, base_timestamp_ms)) == bytes(expected)
        plain = Rows(None, rows.values, None, rows.timestamps_ms)
        assert bytes(encode(plain, first, 0)) == bytes(encode_by_numpy(plain, first, 0))


def test_enough_rows_are_worth_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODER, "chosen", None)
    monkeypatch.setattr(ENCODER, "_done", 0)
    assert ENCODER.choose(99_999) is encode_by_numpy
    assert ENCODER.choose(1) is encode_compiled


def test_a_slice_of_a_column_of_headers_keeps_its_own() -> None:
    column = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}], None], HEADERS)
    assert encode_headers(column.slice(1)).to_pylist() == encode_headers(column).to_pylist()[1:]


def test_a_header_without_a_name_is_refused() -> None:
    column = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(ValueError, match="every element of the column headers needs a key"):
        encode_headers(column)


KAFKAS_HASHES = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"abc": 479470107,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}  # fmt: skip


def test_murmur2_gives_the_values_of_kafkas_own_test() -> None:
    keys = pa.array([b"skipped", *KAFKAS_HASHES], pa.binary()).slice(1)
    assert murmur2(keys).tolist() == list(KAFKAS_HASHES.values())


def test_null_keys_have_no_partition_of_their_own() -> None:
    assert partitions_of_keys(pa.array([b"abc", None], pa.binary()), 7).tolist() == [479470107 % 7, -1]


def test_full_batches_are_cut_and_order_is_kept() -> None:
    accumulator = Accumulator(codec=0, batch_bytes=1_000)
    values: list[bytes | None] = [b"%04d" % number for number in range(200)]
    batches = accumulator.append(TARGET, rows_of(values[:150])) + accumulator.append(
        TARGET, rows_of(values[150:])
    )
    batches += accumulator.close()
    assert [record.value for batch in batches for record in records_in(batch)] == values
    assert len(batches) == 4
    assert max(len(batch.data) for batch in batches) < 1_000 + HEADER_SIZE
    assert [batch.record_count for batch in batches] == [len(records_in(batch)) for batch in batches]


def test_a_row_larger_than_a_batch_travels_alone() -> None:
    accumulator = Accumulator(codec=0, batch_bytes=100)
    batches = accumulator.append(TARGET, rows_of([b"a", b"b" * 5_000, b"c"])) + accumulator.close()
    assert [[record.value for record in records_in(batch)] for batch in batches] == [
        [b"a"],
        [b"b" * 5_000],
        [b"c"],
    ]


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_every_codec_comes_back(codec: int) -> None:
    accumulator = Accumulator(codec, batch_bytes=1 << 20)
    values: list[bytes | None] = [b"x" * 100, None, b""] * 40
    batches = accumulator.append(TARGET, rows_of(values, [b"k", None, b""] * 40)) + accumulator.close()
    assert [record.value for batch in batches for record in records_in(batch)] == values
    assert [record.key for record in records_in(batches[0])][:3] == [b"k", None, b""]
    assert read_header(batches[0].data).compression == codec


def test_stamping_changes_the_producer_and_nothing_else() -> None:
    accumulator = Accumulator(codec=0, batch_bytes=1_000)
    accumulator.append(TARGET, rows_of([b"one", b"two"]))
    (batch,) = accumulator.close()
    before = records_in(batch)
    stamp_producer(batch.data, Producer(77, 5, is_transactional=True), base_sequence=41)
    header = verify(batch.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 41)
    assert header.is_transactional
    assert records_in(batch) == before


def test_damage_of_a_staged_batch_is_found() -> None:
    accumulator = Accumulator(codec=0, batch_bytes=1_000)
    accumulator.append(TARGET, rows_of([b"one"]))
    (batch,) = accumulator.close()
    with pytest.raises(MalformedMessage, match="checksum"):
        verify(batch.data)
    stamp_producer(batch.data, Producer(77, 5, is_transactional=False), base_sequence=0)
    verify(batch.data)
    batch.data[-3] ^= 1
    with pytest.raises(MalformedMessage, match="checksum"):
        verify(batch.data)
