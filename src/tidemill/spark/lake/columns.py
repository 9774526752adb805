"""Columns by the names people write in a configuration, and the rule by which a table's columns may change.

Types are Spark's SQL names: `bigint`, `string`, `timestamp`, `decimal(12,2)`, `array<string>`,
`map<string,double>`, `struct<city:string,zip:string>`. They are read here, without a JVM, so that
`tidemill pipeline validate` is quick and names the column that is wrong.

    schema = declared({"id": "bigint", "tags": "array<string>"})
    grown(old=schema, new=declared({"id": "bigint", "name": "string"}))     # id, tags, name

A table only ever gains columns. One that is missing in the new schema stays, and is null in new rows; one
whose type differs is refused: no reader has to understand two types under one name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import types

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnError(ValueError):
    """A column that cannot be, with its name and what is allowed."""


SIMPLE_TYPES: dict[str, types.DataType] = {
    "string": types.StringType(),
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "binary": types.BinaryType(),
}
ALLOWED = ", ".join(
    (*SIMPLE_TYPES, "decimal(p,s)", "array<type>", "map<string,type>", "struct<name:type,...>")
)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED = re.compile(r"(array|map|struct)<(.*)>")


def declared(columns: Mapping[str, str]) -> types.StructType:
    """The schema of a table `{column: type name}`."""
    return types.StructType(
        [types.StructField(name, _column_type(name, text)) for name, text in columns.items()]
    )


def _column_type(name: str, text: str) -> types.DataType:
    if not name or name.startswith("_"):
        raise ColumnError(f"column {name!r}: names are not empty and do not begin with _ (those are ours)")
    try:
        return data_type(text)
    except ColumnError as error:
        raise ColumnError(f"column {name}: {error}") from error


def data_type(text: str) -> types.DataType:
    """Spark's type of that name."""
    text = re.sub(r"\s+", "", text)
    if text.lower() in SIMPLE_TYPES:
        return SIMPLE_TYPES[text.lower()]
    decimal = _DECIMAL.fullmatch(text.lower())
    if decimal is not None and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return types.DecimalType(int(decimal[1]), int(decimal[2]))
    nested = _NESTED.fullmatch(text)
    if nested is not None:
        return _nested_type(nested[1], _split(nested[2]))
    raise ColumnError(f"{text!r} is no type; allowed are {ALLOWED}")


def _nested_type(kind: str, parts: list[str]) -> types.DataType:
    if kind == "array" and len(parts) == 1:
        return types.ArrayType(data_type(parts[0]))
    if kind == "map" and len(parts) == 2:
        return types.MapType(data_type(parts[0]), data_type(parts[1]))
    if kind == "struct" and all(":" in part for part in parts):
        fields = [part.split(":", 1) for part in parts]
        return types.StructType([types.StructField(name, data_type(inner)) for name, inner in fields])
    raise ColumnError(f"{kind}<{','.join(parts)}> is no type; allowed are {ALLOWED}")


def _split(text: str) -> list[str]:
    """`a:int,b:map<string,int>` at the commas that no bracket encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def grown(old: types.StructType, new: types.StructType) -> types.StructType:
    """The old columns, then those that only the new schema has; a changed type is refused by name."""
    known = {field.name: field for field in old.fields}
    for field in new.fields:
        if field.name in known and not _same(known[field.name].dataType, field.dataType):
            raise ColumnError(
                f"column {field.name} is {known[field.name].dataType.simpleString()} in the table and "
                f"{field.dataType.simpleString()} now: a table only gains columns, choose another name"
            )
    return types.StructType(
        old.fields + [_nullable(field) for field in new.fields if field.name not in known]
    )


def missing(old: types.StructType, new: types.StructType) -> list[types.StructField]:
    """What `grown` adds."""
    return grown(old, new).fields[len(old.fields) :]


def _same(one: types.DataType, other: types.DataType) -> bool:
    return one.simpleString() == other.simpleString()


def _nullable(field: types.StructField) -> types.StructField:
    return types.StructField(field.name, field.dataType, True)


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """The same columns for Arrow, times in UTC."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, _arrow_type(field.dataType)) for field in schema.fields])


def _arrow_type(kind: types.DataType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    if isinstance(kind, types.MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    if isinstance(kind, types.StructType):
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, types.TimestampType):
        return pa.timestamp("us", tz="UTC")
    return pa.type_for_alias(_ARROW_NAMES[kind.typeName()])


_ARROW_NAMES = {
    "string": "string",
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "date": "date32",
    "binary": "binary",
}
