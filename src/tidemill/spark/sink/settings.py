"""What the sink was told: options and columns, checked before a row is written.

    option                      default        meaning
    topic                                      where all rows go; stands above the column topic
    delivery                    exactly-once   or at-least-once
    commitKey                                  batch only: a name; a second write with this name is skipped.
                                               In foreachBatch its default is made of query, batch and topic
    stagingInlineBytes          256 KiB        what a task hands to the driver instead of staging it
    stagingPartitions           4              partitions of a staging topic
    includeHeaders                             no effect: headers are written when there is a column headers
    kafka.bootstrap.servers                    required
    kafka.compression.type      none           gzip, snappy, lz4, zstd; kafka.compression.<codec>.level
    kafka.batch.size            512 KiB        bytes of a batch before compression
    kafka.acks                  all            at-least-once only: also 1
    kafka.delivery.timeout.ms   120,000        how long a broker may be away
    kafka.transaction.timeout.ms  900,000      how long the driver may take to publish one batch of the query

    column      type                                            without it
    value       string or binary                                (required)
    key         string or binary                                no key
    headers     array of struct of key string, value binary     no headers
    topic       string                                          the option topic is required
    partition   integer                                         by the hash of the key, or one after the other
    timestamp   timestamp                                       the time of writing

Other columns are left out, as Spark's own sink does, so that what was read from a topic can be written to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemill.spark.client.settings import ClientSettings
from tidemill.spark.errors import BadOption
from tidemill.spark.options import Options
from tidemill.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"

OPTIONS = (
    "topic",
    "delivery",
    "commitKey",
    "stagingInlineBytes",
    "stagingPartitions",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
    "path",
)
"""Spark shows its own `checkpointLocation` and `queryName` to every sink; `path` is refused by name below.

`includeHeaders` says something to a read only. As in Spark's connector a write takes it and does the same either way:
the column headers is written when it is there.
"""

USED_SETTINGS = (
    "acks", "batch.size", "compression.type", "compression.gzip.level", "compression.lz4.level",
    "compression.zstd.level", "delivery.timeout.ms", "transaction.timeout.ms",
)  # fmt: skip

SETTINGS_WITHOUT_EFFECT = (
    "buffer.memory", "linger.ms", "max.block.ms", "max.in.flight.requests.per.connection", "max.request.size",
    "metadata.max.idle.ms", "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
)  # fmt: skip

PROTECTED_SETTINGS = {
    "transactional.id": "the sink names its transactions after the query, so that an older driver is fenced",
    "enable.idempotence": "the sink is always idempotent",
    "partitioner.class": "keys are hashed as Java's producer does; set the column partition instead",
    "transaction.two.phase.commit.enable": "the sink's transactions end where they begin",
}

_LEVELS = {"gzip": range(1, 10), "lz4": range(1, 18), "zstd": range(1, 23)}
LONGEST_TRANSACTION_MS = 900_000
"""What brokers allow by default (`transaction.max.timeout.ms`)."""


class Columns(NamedTuple):
    """Which columns the rows have."""

    key: bool
    headers: bool
    topic: bool
    partition: bool
    timestamp: bool


class SinkSettings(NamedTuple):
    client: ClientSettings
    columns: Columns
    topic: str | None
    delivery: str
    commit_key: str | None
    codec: int
    level: int | None
    batch_bytes: int
    acks: int
    delivery_timeout_ms: int
    transaction_timeout_ms: int
    inline_bytes: int
    staging_partitions: int

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


def read_settings(
    schema: StructType, given: dict[str, str], overwrite: bool, *, is_stream: bool
) -> SinkSettings:
    """Everything checked: raises `BadOption` or a ValueError that names the column."""
    options = Options(given)
    _refuse(options, overwrite, is_stream)
    columns = check_columns(schema, has_topic_option="topic" in options)
    delivery = options.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE)
    codec_name = options.choice("kafka.compression.type", CODEC_NAMES, "none")
    return SinkSettings(
        client=options.kafka,
        columns=columns,
        topic=options.text("topic"),
        delivery=delivery,
        commit_key=options.text("commitKey"),
        codec=CODEC_NAMES.index(codec_name),
        level=_level(options, codec_name),
        batch_bytes=options.number("kafka.batch.size", 512 * 1024, minimum=1),
        acks=_acks(options, delivery),
        delivery_timeout_ms=options.number("kafka.delivery.timeout.ms", 120_000, minimum=1),
        transaction_timeout_ms=options.number(
            "kafka.transaction.timeout.ms", LONGEST_TRANSACTION_MS, minimum=1_000
        ),
        inline_bytes=options.number("stagingInlineBytes", 256 * 1024),
        staging_partitions=options.number("stagingPartitions", 4, minimum=1),
    )


def _refuse(options: Options, overwrite: bool, is_stream: bool) -> None:
    for setting, reason in PROTECTED_SETTINGS.items():
        if f"kafka.{setting}" in options:
            raise BadOption(f"kafka.{setting}", "is not supported", reason)
    options.check_known(OPTIONS, (*USED_SETTINGS, *SETTINGS_WITHOUT_EFFECT))
    options.boolean("includeHeaders", False)
    if "path" in options:
        raise BadOption(
            "path", "has no meaning for a topic", 'save() without a path, and .option("topic", NAME)'
        )
    if overwrite:
        allowed = "append, the default of streams" if is_stream else '.mode("append")'
        raise BadOption("mode", "is overwrite, but a topic can only be appended to", allowed)
    if is_stream and "commitKey" in options:
        raise BadOption(
            "commitKey", "is for batch writes", "leave it out: a stream is known by its query and batch"
        )


def _level(options: Options, codec_name: str) -> int | None:
    name = f"kafka.compression.{codec_name}.level"
    if codec_name not in _LEVELS or name not in options:
        return None
    allowed = _LEVELS[codec_name]
    level = options.number(name, allowed[0], minimum=allowed[0])
    if level not in allowed:
        raise BadOption(name, f"is {level}", f"{allowed[0]} to {allowed[-1]}")
    return level


def _acks(options: Options, delivery: str) -> int:
    allowed = ("all", "-1") if delivery == EXACTLY_ONCE else ("all", "-1", "1")
    chosen = options.choice("kafka.acks", allowed, "all")
    return 1 if chosen == "1" else -1


def check_columns(schema: StructType, *, has_topic_option: bool) -> Columns:
    """Which columns there are; a wrong type, or a column that is missing, is refused by name."""
    types = {field.name: field.dataType for field in schema.fields}
    for name, allowed in _allowed_types().items():
        if name in types and not any(_is_type(types[name], each) for each in allowed):
            wanted = " or ".join(each.simpleString() for each in allowed)
            raise ValueError(f"column {name} is {types[name].simpleString()}; allowed: {wanted}")
    if "value" not in types:
        raise ValueError(f"column value is missing; there are {', '.join(types) or 'no columns'}")
    if "topic" not in types and not has_topic_option:
        raise BadOption(
            "topic", "must be set", "the name of a topic, or a column topic with a name in each row"
        )
    return Columns(*(name in types for name in Columns._fields))


def _allowed_types() -> dict[str, list[DataType]]:
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    text_or_bytes: list[DataType] = [types.StringType(), types.BinaryType()]
    return {
        "key": text_or_bytes,
        "value": text_or_bytes,
        "headers": [types.ArrayType(header)],
        "topic": [types.StringType()],
        "partition": [types.IntegerType()],
        "timestamp": [types.TimestampType()],
    }


def _is_type(found: DataType, allowed: DataType) -> bool:
    """Equal but for nullability, names of struct fields and collation, which say nothing about the bytes."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(allowed, ArrayType) and isinstance(found, ArrayType):
        return _is_type(found.elementType, allowed.elementType)
    if isinstance(allowed, StructType) and isinstance(found, StructType):
        pairs = zip(found.fields, allowed.fields, strict=False)
        same_length = len(found.fields) == len(allowed.fields)
        return same_length and all(_is_type(left.dataType, right.dataType) for left, right in pairs)
    return isinstance(found, type(allowed))
