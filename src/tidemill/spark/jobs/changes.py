"""Change events of Debezium and Canal as rows: which key, which values, and whether the row lives or is gone.

Debezium (JSON, with or without the schema part) has `op`, `before` and `after`:

    {"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "source": {...}, "ts_ms": 1}
    c create, r read (snapshot), u update: the row is `after`.   d delete: the row is `before`.
    A null value (the tombstone after a delete) says nothing new and is skipped.

Canal (flat JSON) has `type`, a list `data` of rows, all values as texts, and for updates `old` with what
changed:

    {"type": "UPDATE", "data": [{"id": "1", "name": "b"}], "old": [{"name": "a"}], "table": "t", "isDdl": false}
    An update that changes the key is a delete of the old key and an insert of the new one.

Times of Debezium are numbers, and only its own schema says of what: milliseconds (`time.precision.mode = connect`,
columns with up to three digits) or microseconds (the others). So `time_unit` says it for all columns of type
timestamp; a time that is an ISO text is read as such. With Canal they are texts.

    {"id": 1, "seen": 1794970800000}     millis: 2026-11-18T03:00:00Z     micros: 1970-01-21T18:36:10.8Z

Everything else (truncate, DDL, text that is no change event, a key that is null) is not applied but returned
as bad, with the reason: a table that silently misses a truncate would be worse.

The result has the declared columns, `_deleted`, the message's place, `_step` (the number of the row in its
message) and `_reason`, which is null for a change that can be applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, types
from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHANGE_FORMATS = ("debezium", "canal")
TIME_UNITS = {"millis": sql.timestamp_millis, "micros": sql.timestamp_micros}
PLACE = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_value"]


def changes(
    messages: DataFrame, kind: str, schema: types.StructType, key: list[str], time_unit: str = "millis"
) -> DataFrame:
    """One row per change; `time_unit` is one of TIME_UNITS."""
    place = [sql.col(name.removeprefix("_")).alias(name) for name in PLACE]
    placed = messages.where("value is not null").select(
        *place, sql.col("value").cast("string").alias("_text")
    )
    found = _debezium(placed, schema, time_unit) if kind == "debezium" else _canal(placed, schema, key)
    return _judged(found, schema, key)


def _debezium(placed: DataFrame, schema: types.StructType, time_unit: str) -> DataFrame:
    envelope = types.StructType(
        [
            types.StructField("op", types.StringType()),
            types.StructField("before", types.StringType()),
            types.StructField("after", types.StringType()),
        ]
    )
    whole = types.StructType([*envelope.fields, types.StructField("payload", envelope)])
    read = placed.withColumn("_event", sql.from_json("_text", whole))
    event = sql.when(sql.col("_event.payload").isNotNull(), sql.col("_event.payload")).otherwise(
        sql.struct(*[sql.col(f"_event.{name}").alias(name) for name in envelope.names])
    )
    read = read.withColumn("_event", event)
    operation = sql.col("_event.op")
    image = sql.when(operation == "d", sql.col("_event.before")).otherwise(sql.col("_event.after"))
    read = read.withColumn("_row", _row_of(image, schema))
    columns = [_column_of_row(field, time_unit) for field in schema.fields]
    unfit = [sql.col("_row").getField(field.name).isNotNull() & column.isNull()
             for field, column in zip(schema.fields, columns, strict=True)]  # fmt: skip
    reason = (
        sql.when(operation.isNull(), "not-a-change")
        .when(operation == "t", "truncate")
        .when(~operation.isin("c", "r", "u", "d"), "unknown-operation")
        .when(image.isNull(), "no-row-image")
        .when(sql.col("_row._corrupt").isNotNull() | _any(unfit), "wrong-type")
    )
    return read.select(
        *[column.alias(name) for name, column in zip(schema.names, columns, strict=True)],
        (operation == "d").alias("_deleted"),
        sql.lit(0).alias("_step"),
        *PLACE,
        reason.alias("_reason"),
    )


def _row_of(image: Column, schema: types.StructType) -> Column:
    """The image with its times as texts: Spark would take a number for seconds."""
    fields = [
        types.StructField(field.name, types.StringType() if _is_time(field) else field.dataType)
        for field in schema.fields
    ]
    row = types.StructType([*fields, types.StructField("_corrupt", types.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    return sql.from_json(image, row, options)


def _is_time(field: types.StructField) -> bool:
    return isinstance(field.dataType, types.TimestampType)


def _column_of_row(field: types.StructField, time_unit: str) -> Column:
    found = sql.col("_row").getField(field.name)
    if not _is_time(field):
        return found
    number = found.try_cast("bigint")
    return sql.when(number.isNull(), found.try_cast("timestamp")).otherwise(TIME_UNITS[time_unit](number))


def _canal(placed: DataFrame, schema: types.StructType, key: list[str]) -> DataFrame:
    texts = types.MapType(types.StringType(), types.StringType())
    envelope = types.StructType(
        [
            types.StructField("type", types.StringType()),
            types.StructField("isDdl", types.BooleanType()),
            types.StructField("data", types.ArrayType(texts)),
            types.StructField("old", types.ArrayType(texts)),
        ]
    )
    read = placed.withColumn("_event", sql.from_json("_text", envelope))
    operation = sql.upper("_event.type")
    reason = (
        sql.when(operation.isNull(), "not-a-change")
        .when(sql.col("_event.isDdl") | ~operation.isin("INSERT", "UPDATE", "DELETE"), sql.lower(operation))
        .when(sql.size(sql.coalesce("_event.data", sql.array())) == 0, "no-row-image")
    )
    read = read.withColumns({"_operation": operation, "_reason": reason})
    images = sql.when(sql.col("_reason").isNull(), _canal_images(key))
    exploded = read.select("*", sql.posexplode_outer(images).alias("_step", "_image"))
    cast = [
        sql.col("_image.row").getItem(field.name).try_cast(field.dataType).alias(field.name)
        for field in schema.fields
    ]
    unfit = [
        sql.col("_image.row").getItem(name).isNotNull() & sql.col(name).isNull() for name in schema.names
    ]
    rows = exploded.select("_image", *cast, "_step", *PLACE, "_reason")
    wrong = sql.when(sql.col("_reason").isNull() & _any(unfit), "wrong-type").otherwise(sql.col("_reason"))
    return rows.select(
        *schema.names, sql.coalesce("_image.deleted", sql.lit(False)).alias("_deleted"),
        sql.coalesce("_step", sql.lit(0)).alias("_step"), *PLACE, wrong.alias("_reason"),
    )  # fmt: skip


def _canal_images(key: list[str]) -> Column:
    """The rows of a message in order, a delete of the old key before a row whose key has changed."""
    deleting = sql.col("_operation") == "DELETE"

    def images(row: Column, position: Column) -> Column:
        old = sql.get(sql.col("_event.old"), position)
        moved = _any([sql.coalesce(old.getItem(name) != row.getItem(name), sql.lit(False)) for name in key])
        gone = sql.struct(
            sql.map_concat(_without(row, old), old).alias("row"), sql.lit(True).alias("deleted")
        )
        here = sql.struct(row.alias("row"), deleting.alias("deleted"))
        return sql.when(moved & ~deleting, sql.array(gone, here)).otherwise(sql.array(here))

    return sql.flatten(sql.transform(sql.col("_event.data"), images))


def _without(row: Column, old: Column) -> Column:
    """The entries of `row` that `old` does not replace."""
    return sql.map_filter(row, lambda name, value: ~sql.map_contains_key(old, name))


def _any(conditions: list[Column]) -> Column:
    found = sql.lit(False)
    for condition in conditions:
        found = found | condition
    return found


def _judged(found: DataFrame, schema: types.StructType, key: list[str]) -> DataFrame:
    nothing = _any([sql.col(name).isNull() for name in key])
    reason = sql.when(sql.col("_reason").isNull() & nothing, "key-is-null").otherwise(sql.col("_reason"))
    return found.withColumn("_reason", reason)


def newest_per_key(changes: DataFrame, key: list[str]) -> DataFrame:
    """The last change of each key in this batch.

    Inside a partition the offset decides. A key is in two partitions only if the topic was widened in between, or if
    several topics are read; then the message's timestamp decides.
    """
    inside = Window.partitionBy(*key, "_topic", "_partition").orderBy(sql.desc("_offset"), sql.desc("_step"))
    across = Window.partitionBy(*key).orderBy(
        sql.desc("_timestamp"), sql.desc("_topic"), sql.desc("_partition")
    )
    last = changes.withColumn("_rank", sql.row_number().over(inside)).where("_rank = 1")
    return last.withColumn("_rank", sql.row_number().over(across)).where("_rank = 1").drop("_rank")


def bad_changes(found: DataFrame) -> DataFrame:
    """The columns of a dead-letter table."""
    place = [sql.col(name).alias(name.removeprefix("_")) for name in PLACE]
    return found.where("_reason is not null").select(
        *place, sql.col("_reason").alias("reason"), sql.lit("the change was not applied").alias("detail")
    )
