"""Each job from topics to tables and back, through a real broker, in one session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster_under_test import Cluster
from pipelines import configuration, consume, run_pipeline, send, table_rows

from tidemill.spark.jobs.values import BadMessages
from tidemill.spark.pipeline.commands import clean, upkeep
from tidemill.spark.pipeline.config import check_config
from tidemill.spark.pipeline.runner import PipelineFailed, wait_for_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIDNIGHT_MS = 1_794_960_000_000


def order(number: int) -> dict[str, Any]:
    return {
        "key": f"k{number}",
        "value": {"id": number, "item": f"tea {number}"},
        "timestamp": MIDNIGHT_MS + number,
    }


def archive(cluster: Cluster, topic: str, **sections: dict[str, Any]) -> dict[str, Any]:
    value = {"format": "json", "columns": {"id": "bigint", "item": "string"}}
    defaults: dict[str, Any] = {
        "value": value,
        "table": {"path": "lake/orders"},
        "dead_letters": {"path": "lake/bad"},
    }
    return configuration("archive", cluster.bootstrap, [topic], **(defaults | sections))


def test_archive_goes_on_from_its_checkpoint_and_sets_bad_messages_aside(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.topic(partitions=2)
    send(cluster.bootstrap, topic, [order(number) for number in range(30)] + [{"value": b"noise"}])
    javas = {"kafka.max.poll.records": 500, "kafka.sasl.jaas.config": "org.x.PlainLoginModule required;"}
    given = archive(cluster, topic, source={"max_messages_per_batch": 12, "options": javas})
    first = run_pipeline(spark, tmp_path, given).read()
    assert first is not None
    facts = first["queries"]["archive"]
    assert (facts["messages"], facts["rows"], facts["bad_rows"], facts["behind"]) == (31, 30, 1, 0)
    assert facts["batches"] >= 3
    send(cluster.bootstrap, topic, [order(number) for number in range(30, 40)])
    second = run_pipeline(spark, tmp_path, given).read()
    assert second is not None
    assert second["queries"]["archive"]["messages"] == 10
    assert sorted(row[0] for row in table_rows(tmp_path / "lake/orders", "id")) == list(range(40))
    assert table_rows(tmp_path / "lake/bad", "topic", "value", "reason") == [(topic, b"noise", "not-json")]
    config = check_config(given, tmp_path)
    assert upkeep(config, 1 << 27)[str(tmp_path / "lake/orders")].files_after == 1
    assert clean(config, 0, dry_run=False)[str(tmp_path / "lake/orders")].files_deleted > 1
    assert len(table_rows(tmp_path / "lake/orders", "id")) == 40


def test_archive_infers_columns_and_keeps_raw_values(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.topic()
    send(cluster.bootstrap, topic, [order(0)])
    inferred = archive(cluster, topic, value={"format": "json", "columns": "infer"})
    run_pipeline(spark, tmp_path, inferred)
    send(cluster.bootstrap, topic, [{"value": {"id": 1, "item": "jam", "price": 2.5}}])
    run_pipeline(spark, tmp_path, inferred)
    assert table_rows(tmp_path / "lake/orders", "id", "item", "price") == [
        (0, "tea 0", None),
        (1, "jam", 2.5),
    ]
    table = {"path": "lake/raw", "format": "parquet", "partition_by": ["_day"]}
    raw = archive(cluster, topic, value={"format": "raw"}, table=table) | {"checkpoint": "another"}
    run_pipeline(spark, tmp_path, raw)
    assert (tmp_path / "lake/raw/_day=2026-11-18").is_dir()


def test_without_a_dead_letter_table_a_bad_message_stops_the_job_and_says_which(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    send(cluster.bootstrap, topic, [order(0), {"value": b"noise"}])
    with pytest.raises(PipelineFailed, match=f"{topic}-0 at offset 1: not-json"):
        run_pipeline(spark, tmp_path, archive(cluster, topic, dead_letters={}))


def test_activity_writes_sessions_windows_top_pages_and_the_funnel(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    def event(user: str, page: str, minute: int) -> dict[str, Any]:
        return {
            "value": {
                "user": user,
                "page": page,
                "time": f"2026-11-18T{10 + minute // 60}:{minute % 60:02}:00Z",
            }
        }

    visits = [("ann", "home", 0), ("ann", "cart", 2), ("bob", "home", 3), ("ann", "pay", 4)]
    send(cluster.bootstrap, topic, [event(*visit) for visit in visits] + [{"value": b"noise"}])
    send(cluster.bootstrap, topic, [event("eve", "home", 600)])
    given = configuration(
        "activity",
        cluster.bootstrap,
        [topic],
        activity={"funnel": ["home", "cart", "pay"], "top": 1, "slide": "5 minutes"},
        tables={"path": "lake"},
        dead_letters={"path": "bad"},
    )
    run_pipeline(spark, tmp_path, given)
    assert table_rows(tmp_path / "lake/sessions", "user", "page_views", "last_page", "funnel_depth") == [
        ("ann", 3, "pay", 3),
        ("bob", 1, "home", 1),
    ]
    assert table_rows(tmp_path / "lake/top_pages", "page", "views") == [("home", 2)]
    assert len(table_rows(tmp_path / "lake/page_counts", "page")) == 3
    assert len(table_rows(tmp_path / "lake/page_counts_sliding", "page")) == 3
    assert table_rows(tmp_path / "lake/funnel", "step", "page", "reached") == [
        (1, "home", 2),
        (2, "cart", 1),
        (3, "pay", 1),
    ]
    assert table_rows(tmp_path / "bad", "reason") == [("not-json",)]


def test_logs_are_counted_and_too_many_errors_become_one_alert(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    alerts = cluster.topic()
    lines = [f"2026-11-18 10:00:0{n},000 ERROR shop - no tea left" for n in range(3)]
    lines += ["2026-11-18 10:00:09,000 INFO mail - sent", "2026-11-18 20:00:00,000 INFO mail - sent"]
    send(cluster.bootstrap, topic, [{"value": line.encode()} for line in lines])
    given = configuration(
        "logs",
        cluster.bootstrap,
        [topic],
        logs={"form": "plain", "alert_topic": alerts, "alert_threshold": 3},
        services={"teams": {"shop": "orders"}},
        tables={"path": "lake"},
    )
    run_pipeline(spark, tmp_path, given)
    assert len(table_rows(tmp_path / "lake/lines", "message")) == 5
    assert table_rows(tmp_path / "lake/level_counts", "service", "level", "lines") == [
        ("mail", "INFO", 1),
        ("shop", "ERROR", 3),
    ]
    (alert,) = consume(cluster.bootstrap, alerts, 1)
    body = json.loads(alert.value())
    assert (alert.key(), body["team"], body["errors"]) == (b"shop", "orders", 3)


def change(operation: str, number: int, name: str | None = None) -> dict[str, Any]:
    row = {"id": number, "name": name}
    value = {"op": operation, "before": row, "after": None if operation == "d" else row}
    return {"key": str(number), "value": value}


def test_sync_makes_the_table_equal_to_its_source(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.topic(partitions=2)
    send(cluster.bootstrap, topic, [change("c", number, f"n{number}") for number in range(20)])
    given = configuration(
        "sync",
        cluster.bootstrap,
        [topic],
        source={"max_messages_per_batch": 7},
        sync={"key": ["id"], "columns": {"id": "bigint", "name": "string"}, "buckets": 3},
        table={"path": "lake/people"},
        dead_letters={"path": "lake/bad"},
    )
    run_pipeline(spark, tmp_path, given)
    later = [change("u", 3, "x"), change("d", 4), change("u", 3, "y"), change("d", 5), change("c", 5, "back")]
    send(cluster.bootstrap, topic, [*later, {"key": "4", "value": None}, {"key": "0", "value": {"op": "t"}}])
    run_pipeline(spark, tmp_path, given)
    expected = {number: f"n{number}" for number in range(20)} | {3: "y", 5: "back"}
    del expected[4]
    assert dict(table_rows(tmp_path / "lake/people", "id", "name")) == expected
    assert table_rows(tmp_path / "lake/bad", "reason") == [("truncate",)]


def test_dead_letters_and_audit_reports(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    topic, letters, records = cluster.topic(), cluster.topic(), cluster.topic()
    headers = [("tidemill-reason", b"rejected"), ("tidemill-origin-topic", topic.encode())]
    send(cluster.bootstrap, letters, [{"value": b"v", "headers": headers}] * 3)
    analysis = configuration("deadletters", cluster.bootstrap, [letters], table={"path": "letters"})
    run_pipeline(spark, tmp_path, analysis)
    assert table_rows(tmp_path / "letters", "reason", "origin_topic") == [("rejected", topic)] * 3
    minute = MIDNIGHT_MS - MIDNIGHT_MS % 60_000
    stored = [
        {"value": b"v", "timestamp": minute + 1, "headers": [("tidemill-id", name)]} for name in (b"a", b"a")
    ]
    send(cluster.bootstrap, topic, stored)
    record = {"version": 1, "topic": topic, "window_start_ms": minute, "window_ms": 60_000}
    produced = record | {"kind": "produced", "who": "p", "count": 1, "ids": ["a"]}
    consumed = record | {"kind": "consumed", "who": "g", "count": 1, "ids": ["a"]}
    send(cluster.bootstrap, records, [{"value": produced}, {"value": b"noise"}, {"value": consumed}])
    audit = configuration(
        "audit",
        cluster.bootstrap,
        [topic],
        audit={"audit_topic": records, "settled_seconds": 0},
        tables={"path": "audit"},
    )
    with pytest.raises(BadMessages, match=rf"{records}-0 at offset 1: not-json"):
        run_pipeline(spark, tmp_path, audit)
    assert not (tmp_path / "audit").exists()
    audit = audit | {"dead_letters": {"path": "audit-bad"}}
    run_pipeline(spark, tmp_path, audit)
    assert table_rows(tmp_path / "audit/windows", "produced", "stored", "consumed", "group") == [
        (1, 2, 1, "g")
    ]
    assert table_rows(tmp_path / "audit/differences", "difference", "messages", "ids", "group") == [
        ("doubled", 1, ["a"], None),
        ("unread", 1, ["a"], "g"),
    ]
    run_pipeline(spark, tmp_path, audit)
    assert table_rows(tmp_path / "audit-bad", "offset", "value") == [(1, b"noise")]
    assert len(table_rows(tmp_path / "audit/windows", "looked")) == 2


def test_replay_sends_the_chosen_rows_as_the_messages_they_were(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The table was begun without headers; those of later messages come back."""
    again = cluster.topic()
    send(cluster.bootstrap, topic, [order(number) for number in range(6)])
    run_pipeline(spark, tmp_path, archive(cluster, topic, archive={"headers": False}))
    assert "_headers" not in column_names(tmp_path / "lake/orders")
    headers = [("trace", b"\x00\xff"), ("trace", None)]
    send(cluster.bootstrap, topic, [order(number) | {"headers": headers} for number in range(6, 10)])
    run_pipeline(spark, tmp_path, archive(cluster, topic))
    given = configuration(
        "replay",
        cluster.bootstrap,
        [],
        table={"path": "lake/orders"},
        replay={
            "topic": again,
            "since": "2026-11-17T00:00:00",
            "filter": "id % 2 = 0",
            "keep_timestamp": True,
            "once": again,
        },
    )
    statuses = [run_pipeline(spark, tmp_path, given).read() for _ in range(2)]
    assert [status["queries"]["replay"]["rows"] for status in statuses if status is not None] == [5, 0]
    found = consume(cluster.bootstrap, again, 5)
    assert [(message.key(), message.timestamp()[1]) for message in found] == [
        (f"k{number}".encode(), MIDNIGHT_MS + number) for number in range(0, 10, 2)
    ]
    assert json.loads(found[1].value()) == {"id": 2, "item": "tea 2"}
    assert [message.headers() for message in found] == [None, None, None, headers, headers]


def column_names(path: Path) -> list[str]:
    from deltalake import DeltaTable

    return [field.name for field in DeltaTable(str(path)).schema().fields]


class Starting:
    """A query as far as `wait_for_source` looks at it."""

    isActive = True  # noqa: N815 (Spark's name)

    def __init__(self, *messages: str) -> None:
        self.messages = iter(messages)

    @property
    def status(self) -> dict[str, str]:
        return {"message": next(self.messages)}


def test_a_second_source_waits_until_the_first_has_answered() -> None:
    query = Starting(
        "Initializing sources", "Getting offsets from orders", "Processing new data", "not asked"
    )
    wait_for_source(query)  # type: ignore[arg-type]
    assert next(query.messages) == "not asked"
