"""Values in Avro: the schema is a file, the decoding is fastavro's, on the executors.

    AvroFormat(schema_json, framing="none")           the bytes of one datum, nothing before it
    AvroFormat(schema_json, framing="confluent", writers={7: older_schema_json})

With Confluent's framing a value begins with a zero byte and the number of the writer's schema (four bytes);
the writers' schemas are given by number, and a number that is not among them makes a bad row
(`unknown-schema`): nobody asks a registry. The reader's schema decides about the columns; Avro's own rules
resolve between the two.

Spark's `from_avro` is not used: its jar is not part of PyPI's pyspark.
"""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FRAMINGS = ("none", "confluent")


class AvroError(ValueError):
    """An Avro schema that cannot become columns."""


@dataclasses.dataclass(frozen=True)
class AvroFormat:
    """The reader's schema as JSON text, and the writers' by number."""

    schema_json: str
    framing: str = "none"
    writers: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def columns(self) -> types.StructType:
        kind = _spark_type(json.loads(self.schema_json))
        if not isinstance(kind, types.StructType):
            raise AvroError("the Avro schema must be a record")
        return kind


_PRIMITIVES: dict[str, types.DataType] = {
    "string": types.StringType(),
    "bytes": types.BinaryType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "enum": types.StringType(),
    "fixed": types.BinaryType(),
}
_LOGICAL: dict[str, types.DataType] = {
    "date": types.DateType(),
    "timestamp-millis": types.TimestampType(),
    "timestamp-micros": types.TimestampType(),
    "uuid": types.StringType(),
}


def _spark_type(schema: Any) -> types.DataType:
    if isinstance(schema, list):
        others = [kind for kind in schema if kind != "null"]
        if len(others) != 1:
            raise AvroError(f"union {schema}: only a union of null and one type can become a column")
        return _spark_type(others[0])
    if isinstance(schema, str):
        return _primitive(schema)
    return _complex_type(schema)


def _complex_type(schema: dict[str, Any]) -> types.DataType:
    kind = schema["type"]
    if schema.get("logicalType") == "decimal":
        return types.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if kind == "record":
        fields = [types.StructField(field["name"], _spark_type(field["type"])) for field in schema["fields"]]
        return types.StructType(fields)
    if kind == "array":
        return types.ArrayType(_spark_type(schema["items"]))
    if kind == "map":
        return types.MapType(types.StringType(), _spark_type(schema["values"]))
    return _spark_type(kind) if not isinstance(kind, str) else _primitive(kind)


def _primitive(name: str) -> types.DataType:
    if name not in _PRIMITIVES:
        raise AvroError(f"Avro type {name!r} cannot become a column; allowed are {', '.join(_PRIMITIVES)}")
    return _PRIMITIVES[name]


def decode_avro(placed: DataFrame, avro: AvroFormat) -> DataFrame:
    """Adds the columns of the schema and `_reason`; `placed` has the bytes in `_value`."""
    schema = types.StructType(
        [*avro.columns().fields, *placed.schema.fields, types.StructField("_reason", types.StringType())]
    )
    return placed.mapInArrow(_Decoder(avro, schema), schema)


@dataclasses.dataclass(frozen=True)
class _Decoder:
    """Travels to the executors."""

    avro: AvroFormat
    schema: types.StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from tidemill.spark.lake.columns import arrow_schema

        datum, schema = DatumReader(self.avro), arrow_schema(self.schema)
        names = self.avro.columns().names
        for batch in batches:
            read = [datum.read(value) for value in batch.column("_value").to_pylist()]
            columns = {name: [row.get(name) if row else None for row, _ in read] for name in names}
            columns["_reason"] = [reason for _, reason in read]
            arrays = [
                pa.array(columns[field.name], field.type)
                if field.name in columns
                else batch.column(field.name).cast(field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class DatumReader:
    """Bytes to a record, or the reason why not."""

    def __init__(self, avro: AvroFormat) -> None:
        import fastavro

        self._reader = fastavro.parse_schema(json.loads(avro.schema_json))
        self._framed = avro.framing == "confluent"
        self._writers = {
            number: fastavro.parse_schema(json.loads(text)) for number, text in avro.writers.items()
        }

    def read(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        if not value:
            return None, "no-value"
        writer = self._reader
        if self._framed:
            if len(value) < 5 or value[0] != 0:
                return None, "not-avro"
            number = struct.unpack(">I", value[1:5])[0]
            if number not in self._writers:
                return None, "unknown-schema"
            value, writer = value[5:], self._writers[number]
        return self._decode(value, writer)

    def _decode(self, value: bytes, writer: Any) -> tuple[dict[str, Any] | None, str | None]:
        import fastavro

        stream = io.BytesIO(value)
        try:
            found = fastavro.schemaless_reader(stream, writer, self._reader)
        except Exception:
            return None, "not-avro"
        if stream.tell() != len(value) or not isinstance(found, dict):
            return None, "not-avro"
        return found, None
