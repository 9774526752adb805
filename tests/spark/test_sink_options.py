"""What the sink accepts and refuses, each by name; and which row goes where. No broker and no session is needed."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.errors import BadOption
from tidemill.spark.sink.partitioning import partitions_of_keys
from tidemill.spark.sink.routing import Router
from tidemill.spark.sink.settings import SinkSettings, read_settings

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders"}
VALUE = t.StructType().add("value", t.StringType())
HEADERS = t.ArrayType(t.StructType().add("key", t.StringType()).add("value", t.BinaryType()))


def settings_of(schema: t.StructType = VALUE, is_stream: bool = False, **options: str) -> SinkSettings:
    return read_settings(schema, GIVEN | options, overwrite=False, is_stream=is_stream)


def test_the_default_is_exactly_once_with_all_replicas() -> None:
    settings = settings_of()
    assert settings.is_exactly_once
    assert (settings.acks, settings.codec, settings.transaction_timeout_ms) == (-1, 0, 900_000)


@pytest.mark.parametrize(
    ("options", "attribute", "expected"),
    [
        ({"delivery": "at-least-once"}, "delivery", "at-least-once"),
        ({"DELIVERY": "Exactly-Once"}, "delivery", "exactly-once"),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"}, "level", 7),
        ({"kafka.compression.type": "lz4"}, "codec", 3),
        ({"kafka.batch.size": "1000"}, "batch_bytes", 1000),
        ({"delivery": "at-least-once", "kafka.acks": "1"}, "acks", 1),
        ({"kafka.delivery.timeout.ms": "5000"}, "delivery_timeout_ms", 5000),
        ({"kafka.transaction.timeout.ms": "60000"}, "transaction_timeout_ms", 60_000),
        ({"stagingInlineBytes": "0"}, "inline_bytes", 0),
        ({"stagingPartitions": "9"}, "staging_partitions", 9),
        ({"commitKey": "load/7"}, "commit_key", "load/7"),
        ({"includeHeaders": "true"}, "topic", "orders"),
        ({"kafka.linger.ms": "5", "kafka.buffer.memory": "1", "checkpointLocation": "x"}, "topic", "orders"),
    ],
)
def test_options_are_honoured(options: dict[str, str], attribute: str, expected: object) -> None:
    assert getattr(settings_of(**options), attribute) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"delivery": "at-most-once"},
            "option delivery is 'at-most-once'; allowed: one of exactly-once, at-least-once",
        ),
        ({"kafka.transactional.id": "x"}, "option kafka.transactional.id is not supported"),
        ({"kafka.enable.idempotence": "false"}, "option kafka.enable.idempotence is not supported"),
        ({"kafka.key.serializer": "x"}, "option kafka.key.serializer is not supported"),
        ({"kafka.value.serializer": "x"}, "option kafka.value.serializer is not supported"),
        ({"kafka.partitioner.class": "x"}, "option kafka.partitioner.class is not supported"),
        ({"kafka.interceptor.classes": "x"}, "option kafka.interceptor.classes is not supported"),
        ({"kafka.acks": "1"}, "option kafka.acks is '1'; allowed: one of all, -1"),
        ({"kafka.acks": "0", "delivery": "at-least-once"}, "option kafka.acks is '0'"),
        ({"kafka.compression.type": "brotli"}, "option kafka.compression.type is 'brotli'"),
        (
            {"kafka.compression.type": "gzip", "kafka.compression.gzip.level": "12"},
            "level is 12; allowed: 1 to 9",
        ),
        (
            {"kafka.batch.size": "none"},
            "option kafka.batch.size is 'none'; allowed: a whole number of at least 1",
        ),
        ({"kafka.batch.sise": "1"}, "did you mean kafka.batch.size"),
        ({"topik": "orders"}, "option topik there is no such option; allowed: did you mean topic"),
        ({"path": "/tmp/x"}, "option path has no meaning for a topic"),
        ({"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers must be set"),
        ({"includeHeaders": "1"}, "option includeHeaders is '1'; allowed: one of true, false"),
        ({"stagingInlineBytes": "-1"}, "option stagingInlineBytes is '-1'"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(BadOption) as refusal:
        settings_of(**options)
    assert named in str(refusal.value)


def test_overwrite_and_a_commit_key_of_a_stream_are_refused() -> None:
    with pytest.raises(BadOption, match="overwrite, but a topic can only be appended to"):
        read_settings(VALUE, GIVEN, overwrite=True, is_stream=False)
    with pytest.raises(BadOption, match="commitKey is for batch writes"):
        settings_of(is_stream=True, commitKey="x")


@pytest.mark.parametrize(
    ("name", "kind", "named"),
    [
        ("key", t.IntegerType(), "column key is int; allowed: string or binary"),
        ("value", t.DoubleType(), "column value is double; allowed: string or binary"),
        (
            "headers",
            t.StringType(),
            "column headers is string; allowed: array<struct<key:string,value:binary>>",
        ),
        ("headers", t.ArrayType(t.StringType()), "column headers is array<string>"),
        ("topic", t.BinaryType(), "column topic is binary; allowed: string"),
        ("partition", t.LongType(), "column partition is bigint; allowed: int"),
        ("timestamp", t.LongType(), "column timestamp is bigint; allowed: timestamp"),
    ],
)
def test_columns_of_the_wrong_type_are_refused_by_name(name: str, kind: t.DataType, named: str) -> None:
    fields = {"value": t.StringType(), name: kind}
    schema = t.StructType([t.StructField(*field) for field in fields.items()])
    with pytest.raises(ValueError, match="column") as refusal:
        settings_of(schema)
    assert named in str(refusal.value)


def test_a_missing_value_or_topic_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="column value is missing; there are key"):
        settings_of(t.StructType().add("key", t.StringType()))
    with pytest.raises(BadOption, match="option topic must be set"):
        read_settings(VALUE, {"kafka.bootstrap.servers": "x:1"}, overwrite=False, is_stream=False)


# -- routing --------------------------------------------------------------------------------------------------

ALL = (
    t.StructType().add("key", t.StringType()).add("value", t.BinaryType()).add("headers", HEADERS)
    .add("topic", t.StringType()).add("partition", t.IntegerType()).add("timestamp", t.TimestampType())
)  # fmt: skip
ARROW = pa.schema(
    [
        ("key", pa.string()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()), ("partition", pa.int32()), ("timestamp", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def row(**columns: Any) -> dict[str, Any]:
    return {
        "key": None,
        "value": b"v",
        "headers": None,
        "topic": "a",
        "partition": None,
        "timestamp": None,
    } | columns


def routed(
    rows: list[dict[str, Any]], partitions: int = 4, **options: str
) -> dict[TopicPartition, list[bytes]]:
    given = {"kafka.bootstrap.servers": "x:1"} | options
    router = Router(
        read_settings(ALL, given, overwrite=False, is_stream=False),
        lambda topic: partitions,
        first_partition=1,
    )
    batch = pa.RecordBatch.from_pylist(rows, schema=ARROW)
    return {target: found.dense().values.to_pylist() for target, found in router.route(batch)}


def test_rows_go_to_the_partition_they_name_then_to_that_of_their_key_then_together() -> None:
    hashed = int(partitions_of_keys(pa.array([b"key"], pa.binary()), 4)[0])
    assert hashed != 3
    found = routed(
        [
            row(key="key", partition=3, value=b"1"),
            row(key="key", value=b"2"),
            row(value=b"3"),
            row(value=b"4"),
        ]
    )
    expected: dict[TopicPartition, list[bytes]] = {TopicPartition("a", 3): [b"1"]}
    expected.setdefault(TopicPartition("a", hashed), []).append(b"2")
    expected.setdefault(TopicPartition("a", 1), []).extend([b"3", b"4"])
    assert found == expected


def test_topics_come_from_the_column_and_the_option_stands_above_it() -> None:
    rows = [
        row(topic="a", partition=0, value=b"1"),
        row(topic="b", partition=0, value=b"2"),
        row(topic="a", partition=0),
    ]
    assert routed(rows) == {TopicPartition("a", 0): [b"1", b"v"], TopicPartition("b", 0): [b"2"]}
    assert routed(rows, topic="c") == {TopicPartition("c", 0): [b"1", b"2", b"v"]}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"topic": None}, "column topic is null in a row"),
        ({"partition": 4}, "column partition is 4 in a row; topic a has the partitions 0 to 3"),
        ({"partition": -1}, "column partition is -1 in a row"),
    ],
)
def test_rows_that_cannot_be_placed_are_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match="column") as refusal:
        routed([row(), row(**wrong)])
    assert named in str(refusal.value)


def test_timestamps_are_cut_to_milliseconds_also_before_1970() -> None:
    router = Router(settings_of(ALL), lambda topic: 1, first_partition=0)
    moments = [datetime.datetime(2024, 5, 6, 7, 8, 9, 123_999, datetime.UTC), None]
    moments.append(datetime.datetime(1969, 12, 31, 23, 59, 59, 999_001, datetime.UTC))
    batch = pa.RecordBatch.from_pylist([row(timestamp=moment) for moment in moments], schema=ARROW)
    ((_, rows),) = router.route(batch)
    first, second, third = rows.times_ms.tolist()
    assert (first, third) == (1_714_979_289_123, -1)
    assert second > 1_750_000_000_000
