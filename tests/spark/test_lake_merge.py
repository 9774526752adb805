"""Merging changes into a table: order per key, deletes, crashes, and a compaction in between."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pipelines import table_rows
from pyspark.sql import types

from tidemill.spark.lake import steps
from tidemill.spark.lake.delta import DeltaLakeTable
from tidemill.spark.lake.merge import BUCKET, merge_batch, merged, merged_table, with_bucket
from tidemill.spark.lake.table import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
PLACE = "_topic string, _partition int, _offset bigint, _timestamp timestamp"
CHANGES = f"id bigint, name string, {PLACE}, _deleted boolean"
Facts = tuple[int, str | None, str, int, int, int, bool]


class Crash(BaseException):
    """Stands for the end of the process."""


def at(seconds: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(seconds=seconds)


def changes(spark: SparkSession, *facts: tuple[int, str | None], offset: int) -> DataFrame:
    """(key, name) of one partition; a name that is None deletes."""
    rows = [
        (key, name, "people", 0, offset + n, at(offset + n), name is None)
        for n, (key, name) in enumerate(facts)
    ]
    return with_bucket(spark.createDataFrame(rows, CHANGES), ["id"], 2)


@pytest.fixture
def table(tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(str(tmp_path / "people"), (BUCKET,), {})


def people(table: DeltaLakeTable) -> dict[int, str]:
    return dict(table_rows(Path(table.path), "id", "name"))


def test_a_crash_at_every_step_leaves_the_table_equal_to_its_source(
    spark: SparkSession, table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: dict[int, str] = {}
    for batch_id, step in enumerate(("batch-begun", "table-ready", "files-written", "committed")):
        facts: list[tuple[int, str | None]] = [(batch_id, "new"), (batch_id + 1, f"in {batch_id}"), (0, None)]
        frame = changes(spark, *dict(facts).items(), offset=batch_id * 10)

        def crash(reached: str, wanted: str = step) -> None:
            if reached == wanted:
                raise Crash

        monkeypatch.setattr(steps, "hook", crash)
        with pytest.raises(Crash):
            merge_batch(table, frame, ["id"], "query", batch_id)
        monkeypatch.setattr(steps, "hook", None)
        merge_batch(table, frame, ["id"], "query", batch_id)
        expected |= {key: name for key, name in dict(facts).items() if name is not None}
        expected.pop(0, None)
        assert people(table) == expected


def test_a_compaction_during_a_merge_makes_it_compute_again(
    spark: SparkSession, table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_batch(table, changes(spark, (1, "a"), (2, "b"), (3, "c"), offset=0), ["id"], "query", 0)
    rewritten: list[str] = []

    def rewrite(step: str) -> None:
        if step == "files-written" and not rewritten:
            rewritten.append(step)
            table.load().update(updates={"name": "upper(name)"})

    monkeypatch.setattr(steps, "hook", rewrite)
    merge_batch(table, changes(spark, (2, "x"), (3, None), offset=10), ["id"], "query", 1)
    assert people(table) == {1: "A", 2: "x"}


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)


def rows(*facts: Facts) -> pa.Table:
    names = [*SCHEMA.names, "_deleted"]
    listed: list[dict[str, Any]] = [
        dict(zip(names, (key, name, topic, partition, offset, at(seconds), deleted), strict=True))
        for key, name, topic, partition, offset, seconds, deleted in facts
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMA.append(pa.field("_deleted", pa.bool_())))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ((1, "later offset", "a", 0, 6, 0, False), "later offset"),
        ((1, "the same again", "a", 0, 5, 5, False), "as it was"),
        ((1, "earlier offset", "a", 0, 4, 4, False), "as it was"),
        ((1, "topic made anew", "a", 0, 4, 9, False), "topic made anew"),
        ((1, "topic made anew, same offset", "a", 0, 5, 9, False), "topic made anew, same offset"),
        ((1, "another partition, later", "a", 1, 0, 9, False), "another partition, later"),
        ((1, "another partition, earlier", "a", 1, 99, 1, False), "as it was"),
        ((1, "another topic, later", "b", 0, 0, 9, False), "another topic, later"),
        ((1, "another topic, earlier, larger offset", "b", 0, 99, 1, False), "as it was"),
        ((1, None, "a", 0, 6, 9, True), None),
        ((1, None, "a", 0, 4, 4, True), "as it was"),
        ((1, None, "a", 0, 0, 9, True), None),
        ((1, None, "b", 0, 0, 9, True), None),
    ],
)
def test_a_change_is_applied_only_if_it_is_newer(change: Facts, name: str | None) -> None:
    current = rows((1, "as it was", "a", 0, 5, 5, False), (2, "other", "a", 0, 1, 1, False))
    found = merged(current.drop_columns(["_deleted"]), rows(change), ("id",), SCHEMA).to_pylist()
    expected = {2: "other"} | ({1: name} if name else {})
    assert {row["id"]: row["name"] for row in found} == expected


def test_a_delete_of_nothing_is_nothing() -> None:
    assert merged(SCHEMA.empty_table(), rows((1, None, "a", 0, 0, 0, True)), ("id",), SCHEMA).num_rows == 0


def test_the_number_of_buckets_cannot_change(tmp_path: Path) -> None:
    schema = types.StructType(
        [types.StructField("id", types.LongType()), types.StructField(BUCKET, types.IntegerType())]
    )
    path = str(tmp_path / "people")
    merged_table(path, {}, 8).ensure(schema)
    merged_table(path, {}, 8).ensure(schema)
    with pytest.raises(
        LakeError, match=r"has tidemill\.buckets 8, the configuration says 9: it cannot change"
    ):
        merged_table(path, {}, 9).ensure(schema)
