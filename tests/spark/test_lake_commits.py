"""Commits of lake tables at their edges, without Spark: files are written by the executors' writer in this process."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from command_line import run_program
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidemill.spark.lake import steps
from tidemill.spark.lake.columns import arrow_schema
from tidemill.spark.lake.files import WrittenFile
from tidemill.spark.lake.parquet import ParquetTable
from tidemill.spark.lake.reading import Between, FileReader
from tidemill.spark.lake.table import Change, LakeError, LakeTable, open_table

FORMATS = ("delta", "parquet", "iceberg")
ORDERS = StructType([StructField("id", LongType()), StructField("day", StringType())])
TARGET_BYTES = 1 << 27
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


def staged(table: LakeTable, *ids: int, day: str = "monday") -> list[WrittenFile]:
    """Files of a batch that is not committed."""
    schema = table.ensure(ORDERS)
    rows = [{"id": each, "day": day} for each in ids]
    return list(table.writer(schema).write(iter([pa.RecordBatch.from_pylist(rows, arrow_schema(schema))])))


def append(table: LakeTable, batch_id: int, *ids: int, day: str = "monday") -> bool:
    if table.is_committed("query", batch_id):
        return False
    return table.commit(Change("query", batch_id, staged(table, *ids, day=day)))


def stored_ids(table: LakeTable) -> list[int]:
    """As any other tool reads a folder."""
    found: list[int] = (
        ds.dataset(table.path, format="parquet").to_table(columns=["id"]).column("id").to_pylist()
    )
    return sorted(found)


def read_ids(table: LakeTable, between: Between | None = None) -> list[int]:
    """As our own jobs read any table."""
    schema = table.schema()
    assert schema is not None
    reader = FileReader(table.root(), arrow_schema(schema), between)
    batches = [batch for file in table.files() for batch in reader.read(file.path, file.partition)]
    return sorted(number for batch in batches for number in batch.column("id").to_pylist())


def crash_at(monkeypatch: pytest.MonkeyPatch, wanted: str, work: Callable[[], Any]) -> None:
    def crash(step: str) -> None:
        if step == wanted:
            raise Crash

    monkeypatch.setattr(steps, "hook", crash)
    with pytest.raises(Crash):
        work()
    monkeypatch.setattr(steps, "hook", None)


@pytest.mark.parametrize("step", ["manifest-written", "one-file-moved"])
@pytest.mark.parametrize("next_work", ["compact", "vacuum", "append"])
def test_a_compaction_that_died_is_finished_by_whoever_comes_next(
    make: Make, monkeypatch: pytest.MonkeyPatch, step: str, next_work: str
) -> None:
    table = make("parquet")
    append(table, 0, 0, 1)
    append(table, 1, 2, 3)
    crash_at(monkeypatch, step, lambda: table.compact(TARGET_BYTES))
    later: dict[str, Callable[[], Any]] = {
        "compact": lambda: table.compact(TARGET_BYTES),
        "vacuum": lambda: table.vacuum(1, dry_run=False),
        "append": lambda: table.ensure(ORDERS),
    }
    later[next_work]()
    table.compact(TARGET_BYTES)
    assert stored_ids(table) == [0, 1, 2, 3]


def test_a_batch_that_died_half_moved_is_whole_before_its_files_are_joined(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make("parquet")
    append(table, 0, 0, 1)
    crash_at(monkeypatch, "manifest-written", lambda: append(table, 1, 2, 3))
    table.compact(TARGET_BYTES)
    assert stored_ids(table) == [0, 1, 2, 3]
    assert len(table.files()) == 1


def test_two_compactions_at_once_join_the_files_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = make("parquet"), make("parquet")
    append(table, 0, 0, 1)
    append(table, 1, 2, 3)
    join = ParquetTable._join

    def after_the_other(self: ParquetTable, *facts: Any) -> None:
        monkeypatch.setattr(ParquetTable, "_join", join)
        crash_at(monkeypatch, "manifest-written", lambda: other.compact(TARGET_BYTES))
        join(self, *facts)

    monkeypatch.setattr(ParquetTable, "_join", after_the_other)
    with pytest.raises(LakeError, match="compact again"):
        table.compact(TARGET_BYTES)
    table.compact(TARGET_BYTES)
    assert stored_ids(table) == [0, 1, 2, 3]


def test_a_change_that_replaces_a_file_which_is_gone_is_refused(make: Make) -> None:
    table = make("parquet")
    append(table, 0, 0, 1)
    replaced = table.files()
    table.commit(Change("compaction", 1, staged(table, 0, 1), replaced))
    with pytest.raises(LakeError, match="compact again"):
        table.commit(Change("compaction", 2, staged(table, 0, 1), replaced))
    assert stored_ids(table) == [0, 1]


def test_a_batch_whose_files_were_vacuumed_is_refused_and_can_be_written_again(make: Make) -> None:
    table = make("parquet")
    files = staged(table, 0, 1)
    table.vacuum(0, dry_run=False)
    with pytest.raises(LakeError, match="is gone before its commit; vacuum with a retention"):
        table.commit(Change("query", 0, files))
    assert append(table, 0, 0, 1)
    assert stored_ids(table) == [0, 1]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_half_an_hour_of_retention_keeps_the_files_of_the_running_batch(make: Make, format: str) -> None:
    table = make(format)
    files = staged(table, 0, 1)
    assert table.vacuum(0.5, dry_run=False).files_deleted == 0
    assert table.commit(Change("query", 0, files))
    assert read_ids(table) == [0, 1]


@pytest.mark.parametrize("format", FORMATS)
def test_only_the_newest_batch_is_repeated_and_an_older_one_stops_the_query(make: Make, format: str) -> None:
    table = make(format)
    files = staged(table, 8, 9)
    assert append(table, 4, 0, 1)
    assert append(table, 6, 2, 3)
    assert not append(table, 6, 2, 3)
    for batch_id in (4, 5):
        with pytest.raises(LakeError, match=f"holds batch 6 of query query, and batch {batch_id} comes now"):
            table.is_committed("query", batch_id)
        with pytest.raises(LakeError, match="checkpoint was set back, or another driver"):
            table.commit(Change("query", batch_id, files))
    assert read_ids(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", ["delta", "parquet"])
@pytest.mark.parametrize("day", ["mon day", "12:30", "früh", "50% off", "a/b", "a=b"])
def test_any_partition_value_can_be_read_after_compaction(make: Make, format: str, day: str) -> None:
    table = make(format, ("day",))
    append(table, 0, 0, 1, day=day)
    append(table, 1, 2, 3, day=day)
    assert table.compact(TARGET_BYTES).files_after == 1
    assert read_ids(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", FORMATS)
def test_partitions_cannot_change(make: Make, format: str) -> None:
    append(make(format), 0, 0, 1)
    with pytest.raises(LakeError, match="partitions cannot change"):
        make(format, ("day",)).ensure(ORDERS)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_older_than_a_column_are_outside_every_range_of_it(make: Make, format: str) -> None:
    table = make(format, ("day",))
    append(table, 0, 0, 1)
    wider = table.ensure(StructType([*ORDERS.fields, StructField("seen", TimestampType())]))
    moment = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
    row = {"id": 2, "day": "monday", "seen": moment}
    batch = pa.RecordBatch.from_pylist([row], arrow_schema(wider))
    table.commit(Change("query", 1, list(table.writer(wider).write(iter([batch])))))
    assert read_ids(table) == [0, 1, 2]
    assert read_ids(table, Between("seen", since=moment)) == [2]


UPKEEP = """
job = "archive"
name = "orders"
checkpoint = "checkpoint"
[source]
bootstrap = "127.0.0.1:1"
topics = ["orders"]
[table]
{table}
[dead_letters]
format = "parquet"
path = "never-written"
"""


def table_section(table: LakeTable, folder: Path) -> str:
    if table.format != "iceberg":
        return f'format = "{table.format}"\npath = "{table.path}"'
    options = f'type = "sql", uri = "sqlite:///{folder}/catalog.db", warehouse = "file://{folder}/warehouse"'
    return f'format = "iceberg"\npath = "{table.path}"\noptions = {{ {options} }}'


@pytest.mark.parametrize("format", FORMATS)
def test_compact_and_vacuum_by_the_command_line(make: Make, tmp_path: Path, format: str) -> None:
    """Three batches, one that was never committed: joined, and what nothing names is deleted when that is asked for."""
    table = make(format)
    for batch_id in range(3):
        append(table, batch_id, batch_id)
    staged(table, 99)
    config = tmp_path / "orders.toml"
    config.write_text(UPKEEP.format(table=table_section(table, tmp_path)))

    def facts(command: str, *options: str) -> dict[str, Any]:
        (found,) = json.loads(run_program("pipeline", command, "-c", str(config), "--json", *options).stdout)
        assert found.pop("table") == table.path
        return found  # type: ignore[no-any-return]

    assert facts("compact") == {"files_before": 3, "files_after": 1, "files_deleted": 0}
    litter = 1 if format == "parquet" else 4
    deleted = {"files_before": 1, "files_after": 1, "files_deleted": litter}
    before = files_below(tmp_path)
    assert facts("vacuum", "--older-than-hours", "0") == deleted
    assert facts("vacuum", "--execute")["files_deleted"] == 0, "all of them are younger than a week"
    assert files_below(tmp_path) == before
    assert facts("vacuum", "--older-than-hours", "0", "--execute") == deleted
    assert len(files_below(tmp_path)) == len(before) - litter == 1
    assert append(table, 2, 2) is False
    append(table, 3, 3)
    assert sorted(ids_by_our_reader(table)) == [0, 1, 2, 3]


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*.parquet"))


def ids_by_our_reader(table: LakeTable) -> list[int]:
    schema = table.schema()
    assert schema is not None
    reader = FileReader(table.root(), arrow_schema(schema))
    batches = (batch for file in table.files() for batch in reader.read(file.path, file.partition))
    return [number for batch in batches for number in batch.column("id").to_pylist()]


def test_vacuum_of_iceberg_keeps_what_a_tag_is_at(make: Make, tmp_path: Path) -> None:
    table = make("iceberg")
    append(table, 0, 0)
    loaded = table.load()  # type: ignore[attr-defined]
    loaded.manage_snapshots().create_tag(loaded.current_snapshot().snapshot_id, "before").commit()
    append(table, 1, 1)
    table.compact(TARGET_BYTES)
    assert table.vacuum(0, dry_run=False).files_deleted == 1, "that of the second batch"
    loaded = table.load()  # type: ignore[attr-defined]
    tagged = loaded.scan(snapshot_id=loaded.snapshot_by_name("before").snapshot_id).to_arrow()
    assert tagged.column("id").to_pylist() == [0]
    assert sorted(loaded.scan().to_arrow().column("id").to_pylist()) == [0, 1]
