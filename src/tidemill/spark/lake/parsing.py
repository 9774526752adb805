"""Messages to rows, and messages that are none to a dead-letter table with the reason.

`parse` takes a frame with the columns of a topic (key, value, topic, partition, offset, timestamp, perhaps headers) and
returns the declared columns, the message's own place (`_topic`, `_partition`, `_offset`, `_timestamp`, `_key`), its
`_headers` if the frame has them, the untouched bytes (`_value`) and `_reason`, which is null for a row that parsed.

    parsed = parse(messages, ValueFormat("json", declared({"id": "bigint"}), required=("id",)))
    good_rows(parsed)      # id, _topic, _partition, _offset, _timestamp, _key, _headers
    bad_rows(parsed)       # topic, partition, offset, timestamp, key, headers, value, reason, detail

JSON is parsed in the JVM, at full speed; only rows that failed there are looked at again in Python, to say
why. Nothing is guessed: a field of another type, text behind the object, an empty value or bytes that are no
UTF-8 make a bad row, and a bad row never stops a job. Fields that are not declared are dropped, unless the
columns are inferred (`inferred`), where they become new columns.

Reasons: no-value, not-utf8, not-json, wrong-type, missing-field, not-avro, unknown-schema.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql
from pyspark.sql import types

from tidemill.spark.lake.avro import AvroFormat, decode_avro

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ("topic", "partition", "offset", "timestamp", "key")
HEADERS = "headers"
VALUE_FORMATS = ("raw", "json", "avro")
_CORRUPT = "_corrupt"


@dataclasses.dataclass(frozen=True)
class ValueFormat:
    """How values are to be read. `schema` is None for JSON whose columns are inferred, and for raw values."""

    kind: str
    schema: types.StructType | None = None
    required: tuple[str, ...] = ()
    avro: AvroFormat | None = None


def parse(messages: DataFrame, value_format: ValueFormat) -> DataFrame:
    """The declared columns, the place, `_value` and `_reason` of every message."""
    placed = _with_place(messages)
    if value_format.kind == "raw":
        return placed.withColumns({"value": sql.col("_value"), "_reason": sql.lit(None).cast("string")})
    if value_format.kind == "avro":
        assert value_format.avro is not None
        return _judged(decode_avro(placed, value_format.avro), value_format.required)
    assert value_format.schema is not None, "JSON needs columns: infer them first"
    return _judged(_parse_json(placed, value_format.schema), value_format.required)


def _with_place(messages: DataFrame) -> DataFrame:
    names = [*PLACE, *([HEADERS] if HEADERS in messages.columns else []), "value"]
    taken = {name: _no_null(messages, name) if name == HEADERS else sql.col(name) for name in names}
    return messages.select(*(column.alias(f"_{name}") for name, column in taken.items()))


def _no_null(messages: DataFrame, name: str) -> Column:
    """An empty array for a message without headers: Spark hands null arrays to Python ten times as slowly."""
    return sql.coalesce(sql.col(name), sql.array().cast(messages.schema[name].dataType))


def _parse_json(placed: DataFrame, schema: types.StructType) -> DataFrame:
    text = sql.col("_value").cast("string")
    fields = types.StructType([*schema.fields, types.StructField(_CORRUPT, types.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = placed.withColumn("_record", sql.from_json(text, fields, options))
    reason = (
        sql.when(sql.col("_value").isNull() | (sql.octet_length("_value") == 0), "no-value")
        .when(~sql.is_valid_utf8(text), "not-utf8")
        .when(~sql.rtrim(text).endswith("}") | ~sql.ltrim(text).startswith("{"), "not-json")
        .when(sql.col(f"_record.{_CORRUPT}").isNotNull(), "wrong-type")
    )
    columns = [sql.col("_record").getField(name).alias(name) for name in schema.names]
    return parsed.select(*columns, *placed.columns, reason.alias("_reason"))


def _judged(parsed: DataFrame, required: tuple[str, ...]) -> DataFrame:
    """A required field that is null makes a bad row."""
    reason = sql.col("_reason")
    for name in required:
        reason = sql.when(reason.isNull() & sql.col(name).isNull(), "missing-field").otherwise(reason)
    return parsed.withColumn("_reason", reason)


def good_rows(parsed: DataFrame) -> DataFrame:
    return parsed.where("_reason is null").drop("_reason", "_value")


def bad_rows(parsed: DataFrame, value_format: ValueFormat) -> DataFrame:
    """The columns of a dead-letter table; `detail` is a sentence for people."""
    names = [*PLACE, *([HEADERS] if f"_{HEADERS}" in parsed.columns else []), "value"]
    message = [sql.col(f"_{name}").alias(name) for name in names]
    bad = parsed.where("_reason is not null").select(*message, "_reason")
    detail = _explainer(value_format)(sql.col("value"), sql.col("_reason"))
    return bad.select(*names, _named_reason(detail).alias("reason"), _sentence(detail).alias("detail"))


def _named_reason(detail: Column) -> Column:
    return sql.substring_index(detail, ": ", 1)


def _sentence(detail: Column) -> Column:
    return sql.regexp_replace(detail, "^[a-z0-9-]+: ", "")


def _explainer(value_format: ValueFormat) -> Any:
    schema = value_format.schema.json() if value_format.schema is not None else None
    required = value_format.required

    def explained(value: bytes | None, reason: str) -> str:
        name, sentence = explain(value, reason, json.loads(schema) if schema else None, required)
        return f"{name}: {sentence}"

    return sql.udf(explained, types.StringType())


def explain(
    value: bytes | None, reason: str, schema: dict[str, Any] | None, required: tuple[str, ...]
) -> tuple[str, str]:
    """Why a value is no row: a name that can be counted, and a sentence."""
    if reason == "no-value":
        return reason, "the value is null" if value is None else "the value is empty"
    if reason == "not-utf8":
        return reason, _utf8_problem(value or b"")
    if reason == "missing-field":
        return reason, f"one of the required fields is missing or null: {', '.join(required)}"
    if reason not in ("not-json", "wrong-type") or schema is None:
        return reason, reason
    return _explain_json(bytes(value or b""), schema)


def _utf8_problem(value: bytes) -> str:
    try:
        bytes(value).decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is {value[error.start]:#04x}"
    return "the value is no UTF-8"


def _explain_json(value: bytes, schema: dict[str, Any]) -> tuple[str, str]:
    try:
        found = json.loads(value)
    except ValueError as error:
        return "not-json", str(error)
    if not isinstance(found, dict):
        return "not-json", f"a {type(found).__name__} where an object is expected"
    for field in schema["fields"]:
        problem = _type_problem(found.get(field["name"]), field["type"])
        if problem:
            return "wrong-type", f"field {field['name']}: {problem}"
    return "wrong-type", "a field does not fit its declared type"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "byte": (int,),
    "short": (int,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "date": (str,),
    "timestamp": (str, int),
    "binary": (str,),
}


def _type_problem(value: Any, kind: Any) -> str | None:
    if value is None or kind == "string":
        return None
    if isinstance(kind, dict):
        wanted = {"array": list, "map": dict, "struct": dict}[kind["type"]]
        return None if isinstance(value, wanted) else f"{value!r:.80} is no {kind['type']}"
    allowed = _PYTHON_TYPES.get(kind, (int, float, str))
    good = isinstance(value, allowed) and (kind == "boolean" or not isinstance(value, bool))
    return None if good and not isinstance(value, str) else f"{value!r:.80} is no {kind}"


def inferred(messages: DataFrame, known: types.StructType | None) -> types.StructType:
    """The known columns and those that the JSON objects of this batch have besides.

    A field keeps the type it had first; values of another type make bad rows. Reads the batch once more.
    """
    values = messages.where("is_valid_utf8(cast(value as string))").select(sql.col("value").cast("string"))
    reader = messages.sparkSession.read.option("columnNameOfCorruptRecord", _CORRUPT)
    lines = values.where("ltrim(value) like '{%'").rdd.map(lambda row: row[0])
    found = [field for field in reader.json(lines).schema.fields if not field.name.startswith("_")]
    fields = list(known.fields) if known is not None else []
    names = {field.name for field in fields}
    return types.StructType(fields + [field for field in found if field.name not in names])
