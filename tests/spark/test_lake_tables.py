"""Lake tables of every format: each batch once, columns that are added, files that are joined and removed."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.spark.lake import steps
from tidemill.spark.lake.append import append_batch
from tidemill.spark.lake.columns import ColumnError, declared
from tidemill.spark.lake.files import FileWriter, write_files
from tidemill.spark.lake.reading import read_table
from tidemill.spark.lake.table import Change, LakeError, LakeTable, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("delta", "parquet", "iceberg")
HEADERS = "array<struct<key:string,value:binary>>"
Make = Callable[..., LakeTable]


class Crash(BaseException):
    """Stands for the end of the process: no handler of ours catches it."""


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def table(format: str, partition_by: tuple[str, ...] = ()) -> LakeTable:
        if format != "iceberg":
            return open_table(format, str(tmp_path / format), partition_by)
        uri = f"sqlite:///{tmp_path}/catalog.db"
        options = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}
        return open_table("iceberg", "shop.orders", partition_by, options)

    return table


def orders(spark: SparkSession, first: int, count: int) -> DataFrame:
    rows = [(number, f"day {number % 3}", number * 1.5) for number in range(first, first + count)]
    return spark.createDataFrame(rows, "id bigint, day string, price double").repartition(2)


def rows_of(table: LakeTable) -> list[dict[str, Any]]:
    """What another tool reads: not through our code."""
    if table.format == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(table.path).to_pyarrow_table()
    elif table.format == "parquet":
        import pyarrow.dataset as ds

        files = ds.dataset(table.path, partitioning="hive", schema=_dataset_schema(table))
        found = files.to_table()
    else:
        found = table.load().scan().to_arrow()  # type: ignore[attr-defined]
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def _dataset_schema(table: LakeTable) -> pa.Schema:
    from tidemill.spark.lake.columns import arrow_schema

    schema = table.schema()
    assert schema is not None
    return arrow_schema(schema)


def ids(table: LakeTable) -> list[int]:
    return [row["id"] for row in rows_of(table)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_that_is_repeated_is_in_the_table_once(spark: SparkSession, make: Make, format: str) -> None:
    table = make(format, ("day",))
    first = append_batch(table, orders(spark, 0, 10), "query", 0)
    again = append_batch(table, orders(spark, 0, 10), "query", 0)
    append_batch(table, orders(spark, 10, 10), "query", 1)
    append_batch(table, orders(spark, 20, 5), "another query", 0)
    assert (first.rows, first.was_committed) == (10, False)
    assert (again.rows, again.was_committed) == (0, True)
    assert ids(table) == list(range(25))
    assert rows_of(table)[4] == {"id": 4, "day": "day 1", "price": 6.0}


@pytest.mark.parametrize("format", FORMATS)
def test_a_crash_at_every_step_neither_loses_nor_doubles(
    spark: SparkSession, make: Make, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(format)
    seen: list[str] = []
    monkeypatch.setattr(steps, "hook", seen.append)
    append_batch(table, orders(spark, 0, 4), "query", 0)
    passed = list(dict.fromkeys(seen))
    assert passed[:3] == ["batch-begun", "table-ready", "files-written"]
    for batch_id, step in enumerate(passed, 1):

        def crash(reached: str, wanted: str = step) -> None:
            if reached == wanted:
                raise Crash

        monkeypatch.setattr(steps, "hook", crash)
        with pytest.raises(Crash):
            append_batch(table, orders(spark, batch_id * 4, 4), "query", batch_id)
        monkeypatch.setattr(steps, "hook", None)
        append_batch(table, orders(spark, batch_id * 4, 4), "query", batch_id)
    assert ids(table) == list(range(4 * len(passed) + 4))


@pytest.mark.parametrize("format", FORMATS)
def test_two_drivers_with_one_checkpoint_commit_a_batch_once(
    spark: SparkSession, make: Make, format: str
) -> None:
    """Both have written their files, neither has committed: the second commit finds the first."""
    table, zombie = make(format), make(format)
    frame = orders(spark, 0, 6)
    schema = table.ensure(frame.schema)
    mine, theirs = (write_files(frame, each.writer(schema)) for each in (table, zombie))
    assert zombie.commit(Change("query", 0, theirs)) is True
    assert table.commit(Change("query", 0, mine)) is False
    assert ids(table) == list(range(6))


def test_a_commit_of_delta_is_refused_when_the_table_moved_on_between_check_and_commit(
    spark: SparkSession, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, zombie = make("delta"), make("delta")
    frame = orders(spark, 0, 6)
    schema = table.ensure(frame.schema)
    mine, theirs = (write_files(frame, each.writer(schema)) for each in (table, zombie))
    original, loads = table.load, []  # type: ignore[attr-defined]

    def load_then_lose_the_race() -> Any:
        loaded = original()
        if not loads:
            zombie.commit(Change("query", 0, theirs))
        loads.append(loaded)
        return loaded

    monkeypatch.setattr(table, "load", load_then_lose_the_race)
    assert table.commit(Change("query", 0, mine)) is False
    assert len(loads) == 2
    assert ids(table) == list(range(6))


@pytest.mark.parametrize("format", FORMATS)
def test_columns_are_added_and_old_rows_have_null(spark: SparkSession, make: Make, format: str) -> None:
    """One of them has the type of headers; pyiceberg reads an empty list where that is null, and so compacts it."""
    table = make(format)
    append_batch(table, orders(spark, 0, 2), "query", 0)
    pairs = "array(struct('trace', X'00FF'), struct('none', cast(null as binary)))"
    wider = orders(spark, 2, 2).selectExpr(
        "*", "'EUR' as currency", f"cast({pairs} as {HEADERS}) as _headers"
    )
    append_batch(table, wider, "query", 1)
    append_batch(table, orders(spark, 4, 1), "query", 2)
    kept = [{"key": "trace", "value": b"\x00\xff"}, {"key": "none", "value": None}]
    for _ in range(2):
        assert [row["currency"] for row in rows_of(table)] == [None, None, "EUR", "EUR", None]
        assert [row["_headers"] or None for row in rows_of(table)] == [None, None, kept, kept, None]
        found = read_table(spark, table)
        assert found is not None
        shown = [row.asDict(recursive=True)["_headers"] for row in found.orderBy("id").collect()]
        assert [headers or None for headers in shown] == [None, None, kept, kept, None]
        table.compact(1 << 27)


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_changes_its_type_is_refused_by_name(
    spark: SparkSession, make: Make, format: str
) -> None:
    table = make(format)
    append_batch(table, orders(spark, 0, 2), "query", 0)
    changed = orders(spark, 2, 2).selectExpr("id", "day", "cast(price as string) as price")
    with pytest.raises(ColumnError, match="column price is double in the table and string now"):
        append_batch(table, changed, "query", 1)
    assert ids(table) == [0, 1]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_partitions_cannot_change(spark: SparkSession, make: Make, format: str) -> None:
    append_batch(make(format), orders(spark, 0, 2), "query", 0)
    with pytest.raises(LakeError, match="partitions cannot change"):
        append_batch(make(format, ("day",)), orders(spark, 2, 2), "query", 1)


@pytest.mark.parametrize("format", FORMATS)
def test_compaction_joins_small_files_and_keeps_every_row(
    spark: SparkSession, make: Make, format: str
) -> None:
    table = make(format)
    for batch_id in range(3):
        append_batch(table, orders(spark, batch_id * 4, 4), "query", batch_id)
    done = table.compact(1 << 27)
    assert done.files_before > 3
    assert done.files_after == len(table.files()) == 1
    assert ids(table) == list(range(12))
    assert append_batch(table, orders(spark, 8, 4), "query", 2).was_committed


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_vacuum_removes_the_files_of_batches_that_were_never_committed(
    spark: SparkSession, make: Make, format: str, tmp_path: Path
) -> None:
    table = make(format)
    frame = orders(spark, 0, 6)
    append_batch(table, frame, "query", 0)
    litter = write_files(frame, table.writer(table.ensure(frame.schema)))
    assert table.vacuum(0, dry_run=True).files_deleted == len(litter)
    assert table.vacuum(0, dry_run=False).files_deleted == len(litter)
    assert not any((tmp_path / format / file.path).exists() for file in litter)
    assert ids(table) == list(range(6))


def test_vacuum_finishes_a_parquet_batch_that_a_crash_left_half_moved(
    spark: SparkSession, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(step: str) -> None:
        if step == "one-file-moved":
            raise Crash

    table = make("parquet", ("day",))
    monkeypatch.setattr(steps, "hook", crash)
    with pytest.raises(Crash):
        append_batch(table, orders(spark, 0, 9), "query", 0)
    monkeypatch.setattr(steps, "hook", None)
    assert len(ids(table)) < 9
    table.vacuum(1, dry_run=False)
    assert ids(table) == list(range(9))


def test_executors_roll_files_and_report_exact_statistics(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 11, 18, 1, 2, 3, 123_456, tzinfo=datetime.UTC)
    batch = pa.RecordBatch.from_pylist(
        [{"id": number, "at": moment, "note": "x" * 50} for number in range(1000)],
        schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("note", pa.string())]),
    )
    writer = FileWriter(str(tmp_path), batch.schema, target_bytes=1)
    files = list(writer.write(iter([batch, batch])))
    assert [file.rows for file in files] == [1000, 1000]
    assert sum(pq.ParquetFile(tmp_path / file.path).metadata.num_rows for file in files) == 2000
    assert '"minValues": {"id": 0, "at": "2026-11-18T01:02:03.123Z"}' in files[0].stats
    assert '"maxValues": {"id": 999, "at": "2026-11-18T01:02:03.124Z"}' in files[0].stats
    assert files[0].size_bytes == (tmp_path / files[0].path).stat().st_size


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"id": "number"}, "column id: 'number' is no type; allowed are string, boolean"),
        ({"_id": "bigint"}, "column '_id': names are not empty and do not begin with _"),
        ({"price": "decimal(40,2)"}, "column price: 'decimal\\(40,2\\)' is no type"),
        ({"tags": "array<words>"}, "column tags: 'words' is no type"),
    ],
)
def test_wrong_columns_are_refused_by_name(columns: dict[str, str], sentence: str) -> None:
    with pytest.raises(ColumnError, match=sentence):
        declared(columns)


def test_nested_types_are_read_without_a_session() -> None:
    schema = declared({"a": "map<string,array<int>>", "b": "struct<x:decimal(3,1),y:map<string,date>>"})
    assert (
        schema.simpleString()
        == "struct<a:map<string,array<int>>,b:struct<x:decimal(3,1),y:map<string,date>>>"
    )
