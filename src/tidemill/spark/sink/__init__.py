"""The sink: rows of Spark into topics, exactly once.

    settings        options and columns, checked            partitioning, routing   which row goes where
    encoding        Arrow columns into records              batching                records into batches
    publisher       batches to their leaders                transaction             the transaction's requests
    staging         from task to driver                     decisions               was this batch published?
    publication     the protocol of the driver              tasks, writers          what Spark calls
    asking          the same question, without writing

docs/decisions/0021-exactly-once-sink.md says why it is done this way, docs/guides/spark-sink.md how to use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(schema: StructType, options: dict[str, str], overwrite: bool) -> DataSourceWriter:
    """The writer of `df.write.format("tidemill")`."""
    from tidemill.spark.sink.settings import read_settings
    from tidemill.spark.sink.writers import BatchWriter

    return BatchWriter(read_settings(schema, options, overwrite, is_stream=False))


def stream_writer(schema: StructType, options: dict[str, str], overwrite: bool) -> DataSourceStreamWriter:
    """The writer of `df.writeStream.format("tidemill")`."""
    from tidemill.spark.sink.settings import read_settings
    from tidemill.spark.sink.writers import StreamWriter

    return StreamWriter(read_settings(schema, options, overwrite, is_stream=True))
