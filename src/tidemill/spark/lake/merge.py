"""Changes into a Delta table that is equal to its source: copy on write, bucket by bucket, on the executors.

The table is partitioned by `_bucket`, a hash of the key. A batch of changes (one per key, see `jobs.changes`)
touches some buckets. For each of them one task reads the bucket's files, applies the changes in memory, and
writes one new file. The driver commits "new files in, old files out" with (query, batch) in one version of
the table, as `delta` explains.

    bucket 3   old file: keys 1, 4, 9    changes: 4 -> gone, 7 -> new    new file: keys 1, 7, 9

A change is applied only if it is newer than the row that is there: in the same partition of the same topic by
offset, anywhere else by timestamp, since offsets of two logs say nothing of each other. A smaller offset with a
later timestamp is newer too: so it looks when a topic was deleted and made anew under its name.

    row: orders-0 offset 90, 10:00      change: orders-0 offset 91, 09:59       applied, the offset decides
                                        change: orders-0 offset 3, 09:00        old, it came again
                                        change: orders-0 offset 3, 11:00        applied, the topic is a new one
                                        change: orders-copy-0 offset 3, 11:00   applied, the time decides

So old changes that come again, from a topic that was copied or read anew, do no harm to rows that live; a row
that was deleted leaves no trace and may come back from a re-read until its delete comes again. Timestamps that run
backwards inside a partition may bring back an older row during a re-read, until it reaches the newer change.

Limits: a bucket must fit the memory of one task; choose more buckets for larger tables. Their number is the table's
property `tidemill.buckets` and cannot change later: another one would look for a key in the wrong bucket. When
somebody else replaces a file meanwhile (a compaction), the batch is computed again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql
from pyspark.sql import types

from tidemill.spark.lake import steps
from tidemill.spark.lake.append import Appended
from tidemill.spark.lake.delta import DeltaLakeTable, FilesChanged
from tidemill.spark.lake.files import FILE_COLUMNS, REPORT, FileWriter, WrittenFile, as_row, conform
from tidemill.spark.lake.reading import FileReader
from tidemill.spark.lake.table import Change, LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BUCKET = "_bucket"
BUCKETS_PROPERTY = "tidemill.buckets"
POSITION = ("_topic", "_partition", "_offset", "_timestamp")
MERGE_ATTEMPTS = 5


def merged_table(path: str, options: dict[str, str], buckets: int) -> DeltaLakeTable:
    """A table that is merged into; one that was made with another number of buckets is refused by `ensure`."""
    return DeltaLakeTable(path, (BUCKET,), options, {BUCKETS_PROPERTY: str(buckets)})


def with_bucket(changes: DataFrame, key: list[str], buckets: int) -> DataFrame:
    """Adds the bucket, a function of the key alone."""
    return changes.withColumn(BUCKET, sql.pmod(sql.xxhash64(*key), sql.lit(buckets)).cast("int"))


def merge_batch(
    table: DeltaLakeTable, changes: DataFrame, key: list[str], application: str, batch_id: int
) -> Appended:
    """Apply one change per key; the frame has the declared columns, POSITION, `_bucket` and `_deleted`."""
    steps.reached("batch-begun")
    if table.is_committed(application, batch_id):
        return Appended(0, 0, was_committed=True)
    columns = [field for field in changes.schema.fields if field.name != "_deleted"]
    schema = table.ensure(types.StructType(columns))
    steps.reached("table-ready")
    for _ in range(MERGE_ATTEMPTS):
        try:
            return _merge_once(table, changes, key, schema, Change(application, batch_id, []))
        except FilesChanged:
            continue
    raise LakeError(f"table {table.path} changed {MERGE_ATTEMPTS} times while a batch was merged")


def _merge_once(
    table: DeltaLakeTable, changes: DataFrame, key: list[str], schema: types.StructType, change: Change
) -> Appended:
    current: dict[int, list[WrittenFile]] = {}
    for file in table.files():
        current.setdefault(int(file.partition[BUCKET] or 0), []).append(file)
    merger = BucketMerger(
        table.writer(schema),
        tuple(key),
        {bucket: [file.path for file in files] for bucket, files in current.items()},
    )

    def merge_bucket(group: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return merger.merge(int(group[0].as_py()), rows)

    rows = changes.groupBy(BUCKET).applyInArrow(merge_bucket, FILE_COLUMNS).collect()
    reported = [WrittenFile.of(row) for row in rows]
    steps.reached("files-written")
    touched = {int(file.partition[BUCKET] or 0) for file in reported}
    removed = [file for bucket in touched for file in current.get(bucket, [])]
    added = [file for file in reported if file.path]
    full = dataclasses.replace(change, added=added, removed=removed)
    if (added or removed) and not table.commit(full):
        return Appended(0, 0, was_committed=True)
    steps.reached("committed")
    return Appended(sum(file.rows for file in added), len(added), was_committed=False)


@dataclasses.dataclass(frozen=True)
class BucketMerger:
    """Travels to the executors: the changes of one bucket in, the bucket's new file out (an empty path: none left)."""

    writer: FileWriter
    key: tuple[str, ...]
    files: dict[int, list[str]]

    def merge(self, bucket: int, changes: pa.Table) -> pa.Table:
        import pyarrow as pa

        new = merged(self._current(bucket), changes, self.key, self.writer.schema)
        files = list(self.writer.write(iter(new.combine_chunks().to_batches())))
        empty = WrittenFile("", 0, 0, {BUCKET: str(bucket)}, "", 0)
        return pa.Table.from_pylist([as_row(file) for file in files or [empty]], schema=REPORT())

    def _current(self, bucket: int) -> pa.Table:
        import pyarrow as pa

        reader = FileReader(self.writer.root, self.writer.schema)
        batches = [
            batch for path in self.files.get(bucket, []) for batch in reader.read(path, {BUCKET: str(bucket)})
        ]
        return pa.Table.from_batches(batches, schema=self.writer.schema)


def merged(current: pa.Table, changes: pa.Table, key: tuple[str, ...], schema: pa.Schema) -> pa.Table:
    """The bucket after the changes: rows that no change touches, and the newest of those that one does."""
    import pyarrow as pa

    places = {row_key: place for place, row_key in enumerate(_keys(current, key))}
    stored, arriving = _positions(current), _positions(changes)
    fresh, replaced = [], set()
    for number, row_key in enumerate(_keys(changes, key)):
        place = places.get(row_key)
        if place is None:
            fresh.append(number)
        elif _is_newer(arriving[number], stored[place]):
            fresh.append(number)
            replaced.add(place)
    kept = [place for place in range(current.num_rows) if place not in replaced]
    deleted = changes.column("_deleted").to_pylist()
    living = [number for number in fresh if not deleted[number]]
    rows = conform(changes.drop_columns(["_deleted"]), schema).take(pa.array(living, pa.int64()))
    return pa.concat_tables([current.take(pa.array(kept, pa.int64())), rows])


def _keys(table: pa.Table, key: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*[table.column(name).to_pylist() for name in key], strict=True))


def _positions(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*[table.column(name).to_pylist() for name in POSITION], strict=True))


def _is_newer(change: tuple[Any, ...], row: tuple[Any, ...]) -> bool:
    *log, offset, timestamp = change
    *row_log, row_offset, row_timestamp = row
    if log == row_log:
        return bool(offset > row_offset or timestamp > row_timestamp)
    return bool(timestamp >= row_timestamp)
