"""The door through which Spark finds Tidemill: `spark.read.format("tidemill")` needs nothing but this module.

Spark looks for installed modules whose names begin with `pyspark_` and takes the class `DefaultSource` of
each, so that no session has to register anything:

    spark.read.format("tidemill").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders")

This class only dispatches. What reads is in `tidemill.spark.source`, what writes in `tidemill.spark.sink`;
both are imported when they are asked for, because Spark imports this module for every session, also for
those that never touch a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `tidemill`: topics of a Kafka-compatible cluster, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return "tidemill"

    def schema(self) -> StructType:
        from tidemill.spark.source.schema import source_schema

        return source_schema(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidemill.spark.source.batch_reader import batch_reader

        return batch_reader(schema, dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        from tidemill.spark.source.stream_reader import stream_reader

        return stream_reader(schema, dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidemill.spark.sink import batch_writer

        return batch_writer(schema, dict(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from tidemill.spark.sink import stream_writer

        return stream_writer(schema, dict(self.options), overwrite)
