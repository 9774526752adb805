"""The columns of the source: those of Spark's Kafka connector, and how to ask for fewer.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    headers array<struct<key string, value binary>>        with includeHeaders=true

Spark does not tell a Python source which columns a query uses, so the query says it: `.option("columns",
"value,offset")`, or a schema that picks from these columns. What is not asked for is neither decoded nor
copied nor sent to the JVM, which is the largest lever on speed there is.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.spark.errors import BadOption
from tidemill.spark.options import Options

HEADERS = "headers"
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def source_schema(given: Mapping[str, str]) -> StructType:
    """The schema that these options ask for."""
    options = Options(given)
    has_headers = options.boolean("includeHeaders", False)
    names = [name for name in COLUMNS if name != HEADERS or has_headers]
    if "columns" in options:
        names = _wanted(options.words("columns"), names)
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def _wanted(asked: list[str], names: list[str]) -> list[str]:
    by_lower = {name.lower(): name for name in names}
    for name in asked:
        if name.lower() == HEADERS and HEADERS not in names:
            raise BadOption(
                "columns", "names headers without includeHeaders", "includeHeaders=true beside it"
            )
        if name.lower() not in by_lower:
            raise BadOption("columns", f"names {name!r}", ", ".join(names))
    if not asked or len({name.lower() for name in asked}) < len(asked):
        raise BadOption("columns", "is empty or names a column twice", ", ".join(names))
    return [by_lower[name.lower()] for name in asked]


def check_schema(schema: StructType) -> list[str]:
    """The names of the columns to deliver; a schema of the user's may pick columns, and nothing else."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType:
            allowed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
            raise BadOption("schema", f"has {field.name} {field.dataType.simpleString()}", allowed)
    return schema.fieldNames()
