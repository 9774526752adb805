"""What executors do: write Parquet files and report them. Nothing here makes a file visible to a reader.

`FileWriter` goes to the executors inside `DataFrame.mapInArrow`. Each task writes files with fresh names and returns
one row for each (`FILE_COLUMNS`): name, size, rows, partition values and statistics. Spark hands the driver the rows
of exactly one attempt of each task, so the files of failed, repeated or speculative attempts are named nowhere; they
are litter, not data.

    rows = frame.mapInArrow(FileWriter(root="table", schema=..., partition_by=("day",)), FILE_COLUMNS).collect()
    written = [WrittenFile.of(row) for row in rows]

Rows are collected per partition value until `ROWS_PER_GROUP` are there and become one row group; a file is
closed when it has `target_bytes`. At most `OPEN_FILES` files are open: a task that meets more partition
values than that writes more, smaller files.

With `skip_column`, rows where that column is not null are counted and left out; the column itself is not written.

Limits: `root` is a path that every executor and the driver see under the same name (a disk, a mount), or a
URI that pyarrow knows (`s3://`, `gs://`, `hdfs://`). Files are not fsynced: a power cut may undo what a crash
cannot.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.spark.lake import steps

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, Row

FILE_COLUMNS = (
    "path string, size_bytes bigint, rows bigint, partition string, stats string, written_ms bigint"
)
ROWS_PER_GROUP = 131_072
OPEN_FILES = 64
TARGET_BYTES = 128 * 1024 * 1024
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class WrittenFile(NamedTuple):
    """One file, by its path below the table's root."""

    path: str
    size_bytes: int
    rows: int
    partition: dict[str, str | None]
    stats: str
    written_ms: int

    @classmethod
    def of(cls, row: Row | dict[str, Any]) -> WrittenFile:
        return cls(
            row["path"],
            row["size_bytes"],
            row["rows"],
            json.loads(row["partition"]),
            row["stats"],
            row["written_ms"],
        )


@dataclasses.dataclass(frozen=True)
class FileWriter:
    """Where and how one batch's files are written; small, because it travels to every task."""

    root: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    folder: str = ""
    directory_per_partition: bool = False
    keep_partition_columns: bool = False
    skip_column: str | None = None
    target_bytes: int = TARGET_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        written = [as_row(file) for file in self.write(batches)]
        if written:
            yield pa.RecordBatch.from_pylist(written, schema=REPORT())

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Write all rows; yields each file once it is closed."""
        import pyarrow as pa

        open_files: dict[tuple[str | None, ...], _OpenFile] = {}
        skipped = 0
        for batch in batches:
            kept = self._kept(pa.Table.from_batches([batch]))
            skipped += batch.num_rows - kept.num_rows
            table = conform(kept, self.schema)
            for values, rows in self._by_partition(table):
                file = open_files.get(values) or open_files.setdefault(values, _OpenFile(self, values))
                file.add(rows)
                if file.is_full:
                    yield open_files.pop(values).close()
            while len(open_files) > OPEN_FILES:
                yield open_files.pop(next(iter(open_files))).close()
        for file in open_files.values():
            yield file.close()
        if skipped:
            yield skipped_rows(skipped)

    def _kept(self, rows: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        return rows if self.skip_column is None else rows.filter(pc.is_null(rows.column(self.skip_column)))

    def _by_partition(self, table: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        if not table.num_rows:
            return
        if not self.partition_by:
            yield (), table
            return
        names = list(self.partition_by)
        for found in table.select(names).group_by(names).aggregate([]).to_pylist():
            rows = table.filter(_equal(table, found))
            yield tuple(partition_text(found[name]) for name in names), rows

    @property
    def file_schema(self) -> pa.Schema:
        """The columns inside the files: without those of the partition, which the table knows."""
        import pyarrow as pa

        if self.keep_partition_columns:
            return self.schema
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def path_of(self, values: tuple[str | None, ...]) -> str:
        folder = self.folder
        if self.directory_per_partition:
            folder += "".join(
                f"{name}={_directory_text(value)}/"
                for name, value in zip(self.partition_by, values, strict=True)
            )
        return f"{folder}part-{uuid.uuid4()}.parquet"


class _OpenFile:
    """A file that is being written, and the rows that wait for its next row group."""

    def __init__(self, writer: FileWriter, values: tuple[str | None, ...]) -> None:
        import pyarrow.parquet as pq

        self._writer = writer
        self._partition = dict(zip(writer.partition_by, values, strict=True))
        self._path = writer.path_of(values)
        self._waiting: list[pa.Table] = []
        self._rows = self._waiting_rows = 0
        self._footer: list[pq.FileMetaData] = []
        files, base = file_system(writer.root)
        target = f"{base}/{self._path}"
        files.create_dir(target.rpartition("/")[0], recursive=True)
        self._sink = files.open_output_stream(target)
        self._parquet = pq.ParquetWriter(
            self._sink, writer.file_schema, compression="zstd", metadata_collector=self._footer
        )
        steps.reached("file-opened")

    @property
    def is_full(self) -> bool:
        return bool(self._sink.tell() >= self._writer.target_bytes)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows.select(self._writer.file_schema.names))
        self._waiting_rows += rows.num_rows
        self._rows += rows.num_rows
        if self._waiting_rows >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._parquet.write_table(pa.concat_tables(self._waiting), row_group_size=ROWS_PER_GROUP)
        self._waiting, self._waiting_rows = [], 0

    def close(self) -> WrittenFile:
        if self._waiting:
            self._flush()
        self._parquet.close()
        size_bytes = self._sink.tell()
        self._sink.close()
        steps.reached("file-closed")
        stats = json.dumps(statistics(self._footer[0], self._writer.file_schema))
        now_ms = time.time_ns() // 1_000_000
        return WrittenFile(self._path, size_bytes, self._rows, self._partition, stats, now_ms)


def write_files(frame: DataFrame, writer: FileWriter) -> list[WrittenFile]:
    """Write the rows of `frame` on the executors; the driver receives the files' names only."""
    return [WrittenFile.of(row) for row in frame.mapInArrow(writer, FILE_COLUMNS).collect()]


def skipped_rows(count: int) -> WrittenFile:
    """Rows that were left out are reported as a file without a path."""
    return WrittenFile("", 0, count, {}, "", 0)


def as_row(file: WrittenFile) -> dict[str, Any]:
    return file._asdict() | {"partition": json.dumps(file.partition)}


def REPORT() -> pa.Schema:  # noqa: N802 - a constant, made on the executor
    """`FILE_COLUMNS` for Arrow."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = (text, number, number, text, text, number)
    return pa.schema(list(zip(WrittenFile._fields, kinds, strict=True)))


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its order and types; those the rows do not have are null."""
    import pyarrow as pa

    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def file_system(root: str) -> tuple[FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "://" not in root:
        return LocalFileSystem(), root.rstrip("/")
    files, base = FileSystem.from_uri(root)
    return files, base.rstrip("/")


def partition_text(value: object) -> str | None:
    """A partition value as Delta and Hive write it."""
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _directory_text(value: str | None) -> str:
    return NULL_PARTITION if value is None else urllib.parse.quote(value, safe=" ")


def _equal(table: pa.Table, values: dict[str, Any]) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    mask = None
    for name, value in values.items():
        column = table.column(name)
        same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        mask = same if mask is None else pc.and_(mask, same)
    return mask


def statistics(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Delta's statistics: the rows, and for whole numbers, dates and times the smallest, the largest and the nulls."""
    smallest, largest, nulls = {}, {}, {}
    for position in range(footer.num_columns):
        name = footer.schema.column(position).path
        if name not in schema.names or not _is_ordered(schema.field(name).type):
            continue
        found = [
            footer.row_group(group).column(position).statistics for group in range(footer.num_row_groups)
        ]
        if any(each is None or each.null_count is None for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        if bounds:
            smallest[name] = _bound(min(each.min for each in bounds), up=False)
            largest[name] = _bound(max(each.max for each in bounds), up=True)
    return {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}


def _is_ordered(kind: pa.DataType) -> bool:
    import pyarrow.types as is_

    return bool(is_.is_integer(kind) or is_.is_date(kind) or is_.is_timestamp(kind))


def _bound(value: Any, up: bool) -> Any:
    """Times have milliseconds in Delta's statistics: round outwards."""
    if isinstance(value, datetime.datetime):
        excess = datetime.timedelta(microseconds=value.microsecond % 1000)
        value = value - excess + datetime.timedelta(milliseconds=1) * (up and bool(excess))
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, datetime.date) else value
