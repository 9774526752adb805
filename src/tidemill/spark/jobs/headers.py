"""Headers of messages as columns. Names and meanings are the wire contract of docs/guides/pipelines.md.

    messages.withColumn("reason", header_text("tidemill-reason"))

Spark gives headers as an array of (key, value) in the order of the message; as with Kafka's own `lastHeader`,
the last one of a name counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column

PREFIX = "tidemill-"


def header_text(name: str) -> Column:
    """The value of the last header of that name as text, null if there is none."""
    mine = sql.filter(sql.col("headers"), lambda header: header["key"] == name)
    return sql.try_element_at(mine, sql.lit(-1))["value"].cast("string")


def header_number(name: str) -> Column:
    """ASCII digits as a number, null if they are none."""
    return header_text(name).try_cast("bigint")
