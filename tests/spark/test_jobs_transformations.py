"""The jobs' transformations on small frames: no broker, no files."""

from __future__ import annotations

import datetime
import io
import json
import struct
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql import functions as sql

from tidemill.spark.jobs import activity, audit, deadletters, logs, replay
from tidemill.spark.jobs.changes import bad_changes, changes, newest_per_key
from tidemill.spark.jobs.values import BadMessages
from tidemill.spark.lake.avro import AvroError, AvroFormat
from tidemill.spark.lake.columns import declared
from tidemill.spark.lake.parsing import ValueFormat, bad_rows, good_rows, inferred, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array<struct<key:string,value:binary>>"
PLACE = "topic string, partition int, offset bigint, timestamp timestamp"
MESSAGE = f"key binary, value binary, {PLACE}, headers {HEADERS}"
NOON = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)
HEADER = [("trace", b"\x00\xff"), ("trace", None)]


def at(minutes: float) -> datetime.datetime:
    return NOON + datetime.timedelta(minutes=minutes)


def messages(spark: SparkSession, *values: Any, topic: str = "orders") -> DataFrame:
    """Values as messages of partition 0, from offset 0, a second apart; what is no bytes becomes JSON."""
    rows = [
        (b"k", _bytes(value), topic, 0, offset, NOON + datetime.timedelta(seconds=offset), HEADER)
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, MESSAGE)


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def values(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select(*columns).collect()]


# -- values ---------------------------------------------------------------------------------------------------


def test_what_is_no_row_is_set_aside_with_its_reason(spark: SparkSession) -> None:
    found = parse(
        messages(
            spark,
            {"id": 1, "name": "tea"},
            {"id": "one"},
            b"{nope}",
            None,
            b"",
            b'\xff{"id":1}',
            b"[1]",
            {"name": "jam"},
            b'{"id":1} and more',
            {"id": 2, "name": "jam", "further": True},
        ),
        form := ValueFormat("json", declared({"id": "bigint", "name": "string"}), required=("id",)),
    )
    assert values(good_rows(found), "id", "name", "_offset") == [(1, "tea", 0), (2, "jam", 9)]
    bad = rows(bad_rows(found, form))
    assert {row["offset"]: row["reason"] for row in bad} == {
        1: "wrong-type",
        2: "not-json",
        3: "no-value",
        4: "no-value",
        5: "not-utf8",
        6: "not-json",
        7: "missing-field",
        8: "not-json",
    }
    details = {row["offset"]: row["detail"] for row in bad}
    assert details[1] == "field id: 'one' is no long"
    assert details[5] == "byte 0 is 0xff"
    assert details[6] == "a list where an object is expected"
    assert (bad[0]["topic"], bad[0]["partition"], bytes(bad[0]["value"])) == ("orders", 0, b'{"id": "one"}')


def test_inferred_columns_keep_their_types_and_grow(spark: SparkSession) -> None:
    first = inferred(messages(spark, {"id": 1, "tags": ["a"]}, b"noise"), None)
    assert first.simpleString() == "struct<id:bigint,tags:array<string>>"
    grown = inferred(messages(spark, {"id": "text now", "city": "Bern"}), first)
    assert grown.simpleString() == "struct<id:bigint,tags:array<string>,city:string>"


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def _avro(record: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def test_avro_with_and_without_framing(spark: SparkSession) -> None:
    plain = AvroFormat(json.dumps(AVRO))
    datum = _avro({"id": 7, "note": "x", "at": NOON})
    found = parse(
        messages(spark, datum, datum + b"!", b"\x80"), ValueFormat("avro", plain.columns(), avro=plain)
    )
    assert values(good_rows(found), "id", "note") == [(7, "x")]
    assert {r["offset"]: r["reason"] for r in rows(bad_rows(found, ValueFormat("avro")))} == {
        1: "not-avro",
        2: "not-avro",
    }
    older: dict[str, Any] = AVRO | {"fields": [AVRO["fields"][0], AVRO["fields"][2]]}  # type: ignore[index]
    framed = AvroFormat(json.dumps(AVRO), "confluent", {3: json.dumps(older)})
    old = struct.pack(">bI", 0, 3) + _avro({"id": 8, "at": NOON}, older)
    unknown = struct.pack(">bI", 0, 4) + datum
    found = parse(messages(spark, old, unknown, datum), ValueFormat("avro", framed.columns(), avro=framed))
    assert values(found.orderBy("_offset"), "id", "note", "_reason") == [
        (8, None, None),
        (None, None, "unknown-schema"),
        (None, None, "not-avro"),
    ]


def test_headers_go_with_good_rows_and_with_bad_ones(spark: SparkSession) -> None:
    avro = AvroFormat(json.dumps(AVRO))
    good = {"raw": b"x", "json": {"id": 7}, "avro": _avro({"id": 7, "note": None, "at": NOON})}
    forms = {
        "raw": ValueFormat("raw"),
        "json": ValueFormat("json", declared({"id": "bigint"})),
        "avro": ValueFormat("avro", avro.columns(), avro=avro),
    }
    kept = [{"key": "trace", "value": bytearray(b"\x00\xff")}, {"key": "trace", "value": None}]
    for name, form in forms.items():
        found = parse(messages(spark, good[name], b"!"), form)
        assert rows(good_rows(found))[0]["_headers"] == kept, name
        assert [row["headers"] for row in rows(bad_rows(found, form))] == [kept] * (name != "raw"), name
    none = messages(spark, b"x").withColumn("headers", sql.lit(None).cast(HEADERS))
    assert rows(parse(none, forms["raw"]))[0]["_headers"] == []
    assert "_headers" not in parse(none.drop("headers"), forms["raw"]).columns


def test_an_avro_union_of_two_types_is_refused() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}
    with pytest.raises(AvroError, match="only a union of null and one type"):
        AvroFormat(json.dumps(schema)).columns()


# -- activity -------------------------------------------------------------------------------------------------


def visits(spark: SparkSession) -> DataFrame:
    seen = [
        ("ann", "home", 0), ("ann", "cart", 4), ("ann", "help", 5), ("ann", "pay", 6), ("ann", "home", 50),
        ("bob", "cart", 1), ("bob", "home", 2), ("bob", "cart", 3),
    ]  # fmt: skip
    rows = [(user, page, at(minutes)) for user, page, minutes in seen]
    return spark.createDataFrame(rows, "user string, page string, time timestamp")


FUNNEL = ["home", "cart", "pay"]


def test_a_pause_ends_a_session_and_the_funnel_counts_steps_in_order(spark: SparkSession) -> None:
    found = activity.sessions(visits(spark), "30 minutes", FUNNEL).orderBy("user", "started")
    assert values(found, "user", "page_views", "pages", "first_page", "last_page", "funnel_depth") == [
        ("ann", 4, 4, "home", "pay", 3),
        ("ann", 1, 1, "home", "home", 1),
        ("bob", 3, 2, "cart", "cart", 2),
    ]


def test_what_is_no_event_stops_a_job_that_has_no_table_for_it(spark: SparkSession) -> None:
    """The same wiring with a stream that is never started; its batches come from here."""

    class Wiring(dict[str, Any]):
        def messages(self) -> DataFrame:
            return messages(spark)

    settings = {"user": "user", "page": "page", "time": ""}
    inputs: Any = Wiring(activity=settings, dead_letters={"path": ""})
    (flow,) = activity._dead_letter_flow(inputs)
    assert flow.write is not None
    assert flow.write(messages(spark, {"user": "a", "page": "p"}), "query", 0).bad_rows == 0
    with pytest.raises(BadMessages, match="orders-0 at offset 1: not-json"):
        flow.write(messages(spark, {"user": "a", "page": "p"}, b"noise"), "query", 1)


def test_windows_tumble_and_slide(spark: SparkSession) -> None:
    tumbling = activity.page_counts(visits(spark), "5 minutes").where("page = 'cart'").orderBy("window_start")
    assert values(tumbling, "window_start", "views", "users") == [(_naive(at(0)), 3, 2)]
    sliding = activity.page_counts(visits(spark), "4 minutes", "2 minutes").where("page = 'pay'")
    starts = sorted(start for (start,) in values(sliding, "window_start"))
    assert starts == [_naive(at(4)), _naive(at(6))]


def _naive(moment: datetime.datetime) -> datetime.datetime:
    """Spark hands out times in the session's zone, UTC, without saying so."""
    return moment.astimezone().replace(tzinfo=None)


def test_top_pages_rank_inside_each_window(spark: SparkSession) -> None:
    top = activity.top_pages(activity.page_counts(visits(spark), "1 hour"), 2).orderBy("rank")
    assert values(top, "page", "views", "rank") == [("cart", 3, 1), ("home", 3, 2)]


def test_the_funnel_has_one_row_per_step(spark: SparkSession) -> None:
    sessions = activity.sessions(visits(spark), "30 minutes", FUNNEL)
    steps = activity.funnel_steps(activity.funnel_counts(sessions, FUNNEL, "1 day"), FUNNEL)
    assert values(steps.orderBy("step"), "page", "sessions", "reached") == [
        ("home", 3, 3),
        ("cart", 3, 2),
        ("pay", 3, 1),
    ]


# -- logs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        ("json", '{"time":"2026-11-18T11:00:00Z","level":"warn","service":"shop","msg":"low"}',
         ("WARNING", "shop", "low", 11)),
        ("plain", "2026-11-18 11:00:00,123 ERROR shop - no tea left", ("ERROR", "shop", "no tea left", 11)),
        ("logfmt", 'time=2026-11-18T11:00:00Z level=crit service=shop msg="no tea left"',
         ("FATAL", "shop", "no tea left", 11)),
        ("combined", '203.0.113.7 - - [18/Nov/2026:11:00:00 +0000] "GET /tea HTTP/1.1" 503 12 "-" "curl"',
         ("ERROR", "weblogs", "GET /tea HTTP/1.1", 11)),
        ("plain", "garbage", ("UNKNOWN", "weblogs", "garbage", 12)),
    ],
)  # fmt: skip
def test_lines_of_every_form(spark: SparkSession, form: str, line: str, expected: tuple[Any, ...]) -> None:
    found = logs.parsed_lines(logs.lines(messages(spark, line.encode(), topic="weblogs")), form)
    row = found.selectExpr("*", "hour(time) as hour").collect()[0]
    assert (row.level, row.service, row.message, row.hour) == expected
    assert row.parsed is (expected[0] != "UNKNOWN")


def test_a_form_of_ones_own(spark: SparkSession) -> None:
    pattern = r"(?<level>\w+)(?:\(\d\))? (x|y) (?<message>.*)"
    assert logs.group_names(pattern) == ["level", "", "message"]
    found = logs.parsed_lines(
        logs.lines(messages(spark, b"error(1) y too hot")), "pattern", pattern, "kettle"
    )
    assert values(found, "level", "service", "message") == [("ERROR", "kettle", "too hot")]


def test_alerts_name_the_loud_services(spark: SparkSession) -> None:
    texts = [f'{{"level":"error","service":"shop","message":"m{n}"}}'.encode() for n in range(3)]
    quiet = [
        b'{"level":"error","service":"mail","message":"m"}',
        b'{"level":"info","service":"mail","message":"m"}',
    ]
    read = logs.parsed_lines(logs.lines(messages(spark, *texts, *quiet)), "json")
    known = logs.enriched(read, {"shop": "orders"}, {})
    counts = logs.level_counts(known, "1 minute").orderBy("service", "level")
    assert values(counts, "service", "level", "lines") == [
        ("mail", "ERROR", 1),
        ("mail", "INFO", 1),
        ("shop", "ERROR", 3),
    ]
    (alert,) = rows(logs.alerts(logs.error_counts(known, "1 minute"), 3))
    body = json.loads(alert["value"])
    assert alert["key"] == "shop"
    assert (body["service"], body["team"], body["errors"], body["example"]) == ("shop", "orders", 3, "m0")


# -- changes --------------------------------------------------------------------------------------------------

PEOPLE = declared({"id": "bigint", "name": "string"})


def test_debezium_with_and_without_the_schema_part(spark: SparkSession) -> None:
    found = changes(
        messages(
            spark,
            {"op": "c", "before": None, "after": {"id": 1, "name": "a"}},
            {"schema": {}, "payload": {"op": "u", "before": {"id": 1}, "after": {"id": 1, "name": "b"}}},
            {"op": "d", "before": {"id": 2, "name": "x"}, "after": None},
            None,
            {"op": "t"},
            {"op": "c", "after": {"name": "no key"}},
            {"op": "c", "after": {"id": "x"}},
            b"noise",
        ),
        "debezium",
        PEOPLE,
        ["id"],
    ).persist()
    good = found.where("_reason is null")
    assert values(good, "id", "name", "_deleted", "_offset") == [
        (1, "a", False, 0),
        (1, "b", False, 1),
        (2, "x", True, 2),
    ]
    assert values(bad_changes(found), "offset", "reason") == [
        (4, "truncate"),
        (5, "key-is-null"),
        (6, "wrong-type"),
        (7, "not-a-change"),
    ]


@pytest.mark.parametrize(("unit", "factor"), [("millis", 1000), ("micros", 1_000_000)])
def test_times_of_debezium_are_numbers_of_the_unit_that_is_configured(
    spark: SparkSession, unit: str, factor: int
) -> None:
    seconds = int(at(7).timestamp())
    schema = declared({"id": "bigint", "seen": "timestamp"})
    found = changes(
        messages(
            spark,
            {"op": "c", "after": {"id": 1, "seen": seconds * factor}},
            {"op": "c", "after": {"id": 2, "seen": at(7).isoformat()}},
            {"op": "c", "after": {"id": 3, "seen": None}},
            {"op": "c", "after": {"id": 4, "seen": "yesterday"}},
            {"op": "c", "after": {"id": 5, "seen": 12.5}},
        ),
        "debezium",
        schema,
        ["id"],
        unit,
    ).persist()
    epochs = found.where("_reason is null").selectExpr("id", "unix_seconds(seen) as seen")
    assert values(epochs, "id", "seen") == [(1, seconds), (2, seconds), (3, None)]
    assert values(bad_changes(found), "offset", "reason") == [(3, "wrong-type"), (4, "wrong-type")]


def test_canal_rows_in_order_and_a_key_that_changes(spark: SparkSession) -> None:
    found = changes(
        messages(
            spark,
            {"type": "INSERT", "data": [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}], "isDdl": False},
            {"type": "UPDATE", "data": [{"id": "9", "name": "a"}], "old": [{"id": "1"}]},
            {"type": "DELETE", "data": [{"id": "2", "name": "b"}]},
            {"type": "ALTER", "isDdl": True, "data": None},
            {"type": "INSERT", "data": [{"id": "x", "name": "a"}]},
        ),
        "canal",
        PEOPLE,
        ["id"],
    ).persist()
    good = found.where("_reason is null").orderBy("_offset", "_step")
    assert values(good, "id", "name", "_deleted") == [
        (1, "a", False),
        (2, "b", False),
        (1, "a", True),
        (9, "a", False),
        (2, "b", True),
    ]
    assert values(bad_changes(found), "offset", "reason") == [(3, "alter"), (4, "wrong-type")]


def test_the_last_change_of_a_key_counts(spark: SparkSession) -> None:
    place = "id bigint, name string, _topic string, _partition int, _offset bigint, _step int, _timestamp timestamp"
    frame = spark.createDataFrame(
        [
            (1, "old clock, later offset", "a", 0, 9, 0, at(0)),
            (1, "new clock, earlier offset", "a", 0, 8, 0, at(5)),
            (2, "before the topic grew", "a", 0, 99, 0, at(0)),
            (2, "after", "a", 1, 3, 0, at(1)),
            (3, "first row of a message", "a", 0, 5, 0, at(0)),
            (3, "second row", "a", 0, 5, 1, at(0)),
            (4, "the old topic", "a", 0, 99, 0, at(0)),
            (4, "the new topic", "b", 0, 1, 0, at(1)),
        ],
        place,
    )
    assert dict(values(newest_per_key(frame, ["id"]), "id", "name")) == {
        1: "old clock, later offset",
        2: "after",
        3: "second row",
        4: "the new topic",
    }


# -- dead letters and audit -----------------------------------------------------------------------------------


def letter(spark: SparkSession, *facts: tuple[float, str | None, str]) -> DataFrame:
    rows = [
        (b"k", b"v", "billing.dlq", 0, number, at(minutes), _headers(reason, error, number))
        for number, (minutes, reason, error) in enumerate(facts)
    ]
    return spark.createDataFrame(rows, MESSAGE)


def _headers(reason: str | None, error: str, number: int) -> list[tuple[str, bytes]]:
    found = [
        ("tidemill-origin-topic", b"orders"),
        ("tidemill-origin-partition", b"3"),
        ("tidemill-origin-offset", str(40 + number).encode()),
        ("tidemill-attempts", b"not a number"),
        ("tidemill-attempts", b"16"),
        ("tidemill-error", error.encode()),
    ]
    return found + ([("tidemill-reason", reason.encode())] if reason else [])


def test_dead_letters_why_where_and_trend(spark: SparkSession) -> None:
    found = deadletters.letters(
        letter(spark, (0, "retries", "time-out 1"), (1, "retries", "time-out 2"), (61, "retries", "time-out 3"),
               (62, None, "?"), (240, "retries", "time-out 4"))
    ).persist()  # fmt: skip
    assert values(
        found.where("_offset = 0"), "group", "origin_topic", "origin_partition", "origin_offset", "attempts"
    ) == [("billing", "orders", 3, 40, 16)]
    assert values(deadletters.why(found, 8), "reason", "error", "letters") == [
        ("retries", "time-out", 4),
        ("unknown", "?", 1),
    ]
    assert values(deadletters.where(found), "origin_topic", "letters", "first_offset", "last_offset") == [
        ("orders", 5, 40, 44)
    ]
    trend = deadletters.trend(deadletters.frequency(found, "1 hour"), "1 hour")
    assert values(trend, "reason", "letters", "before", "trend") == [
        ("retries", 2, 0, "new"),
        ("retries", 1, 2, "falling"),
        ("unknown", 1, 0, "new"),
        ("retries", 1, 0, "new"),
    ]


def record(kind: str, who: str, minutes: float, count: int, *ids: str) -> dict[str, Any]:
    start_ms = int(at(minutes).timestamp() * 1000)
    found = {"version": 1, "kind": kind, "topic": "orders", "who": who, "window_start_ms": start_ms}
    return found | {"window_ms": 60_000, "count": count} | ({"ids": list(ids)} if ids else {})


def stored_message(number: int, minutes: float, message_id: str | None) -> tuple[Any, ...]:
    headers = [("tidemill-id", message_id.encode())] if message_id is not None else []
    return (b"k", b"v", "orders", 0, number, at(minutes), headers)


def audited(
    spark: SparkSession, reports: list[dict[str, Any]], log: list[tuple[float, str | None]]
) -> DataFrame:
    """Reports, and what is stored: (minutes, id)."""
    records = audit.audit_records(audit.parsed_records(messages(spark, *reports)))
    rows = [stored_message(number, minutes, name) for number, (minutes, name) in enumerate(log)]
    return audit.reconciled(
        audit.reported(records, "produced", "1 minute"),
        audit.stored(spark.createDataFrame(rows, MESSAGE), "1 minute"),
        audit.reported(records, "consumed", "1 minute"),
    )


def test_differences_that_cancel_out_are_found_by_their_ids(spark: SparkSession) -> None:
    windows = audited(
        spark,
        [record("produced", "p", 0, 2, "a", "b"), record("consumed", "g", 0, 2, "a", "x")],
        [(0.1, "a"), (0.2, "a")],
    )
    assert values(audit.differences(windows), "difference", "messages", "ids", "group") == [
        ("doubled", 1, ["a"], None),
        ("lost", 1, ["b"], None),
        ("reread", 1, ["x"], "g"),
        ("unread", 1, ["a"], "g"),
    ]


def test_messages_that_are_read_again_are_named(spark: SparkSession) -> None:
    windows = audited(
        spark,
        [
            record("produced", "p", 0, 2, "a", "b"),
            record("consumed", "g", 0, 4, "a", "b", "b", "b"),
            record("consumed", "h", 0, 2, "a", "b"),
        ],
        [(0.1, "a"), (0.2, "b")],
    )
    assert values(audit.differences(windows), "difference", "messages", "ids", "group") == [
        ("reread", 2, ["b"], "g")
    ]


def test_without_an_id_for_every_message_counts_are_compared(spark: SparkSession) -> None:
    """One producer gives none, and one stored message has none."""
    windows = audited(
        spark,
        [
            record("produced", "p", 0, 2, "a", "b"), record("produced", "q", 0, 1),
            record("produced", "p", 1, 1, "c"), record("consumed", "g", 1, 3, "c", "c"),
            record("produced", "p", 2, 2, "d", "e"),
        ],
        [(0.1, "a"), (1.1, "c"), (1.2, None), (2.1, "d"), (2.2, None)],
    )  # fmt: skip
    assert values(audit.differences(windows), "difference", "messages", "ids", "group") == [
        ("lost", 2, ["b"], None),
        ("unread", 1, ["a"], "g"),
        ("doubled", 1, [], None),
        ("reread", 1, ["c"], "g"),
        ("unread", 2, ["d"], "g"),
    ]


def test_what_is_no_audit_record_has_a_reason(spark: SparkSession) -> None:
    good = record("produced", "p", 0, 1)
    bad = [
        b"noise",
        good | {"version": 2},
        good | {"kind": "guessed"},
        good | {"count": "many"},
        good | {"who": None},
    ]
    parsed = audit.parsed_records(messages(spark, good, *bad))
    reasons = ["not-json", "unknown-version", "unknown-kind", "wrong-type", "missing-field"]
    assert values(parsed, "_offset", "_reason") == list(enumerate([None, *reasons]))
    assert values(audit.audit_records(parsed), "kind", "count", "ids") == [("produced", 1, [])]


def test_every_difference_is_named(spark: SparkSession) -> None:
    windows = audited(
        spark,
        [
            record("produced", "p1", 0, 2, "a", "b"),
            record("produced", "p2", 0, 1, "c"),
            record("produced", "p1", 1, 1, "d"),
            record("consumed", "g", 0, 2, "a", "b"),
            record("consumed", "g", 1, 2, "d", "d"),
        ],
        [(0.1, "a"), (0.2, "b"), (1.1, "d"), (1.2, "d"), (2.5, "e")],
    ).persist()
    counts = values(windows.orderBy("window_start"), "produced", "stored", "consumed", "group")
    assert counts == [(3, 2, 2, "g"), (1, 2, 2, "g"), (None, 1, 0, "g")]
    assert values(audit.differences(windows), "difference", "messages", "ids", "group") == [
        ("lost", 1, ["c"], None),
        ("doubled", 1, ["d"], None),
        ("unclaimed", 1, [], None),
        ("unread", 1, ["e"], "g"),
    ]
    now_ms = int(at(2).timestamp() * 1000)
    assert audit.settled(windows, "1 minute", now_ms, 30).count() == 1


# -- replay ---------------------------------------------------------------------------------------------------


def test_rows_become_the_messages_they_were(spark: SparkSession) -> None:
    schema = "id bigint, item string, _topic string, _partition int, _offset bigint, _timestamp timestamp, _key binary"
    table = spark.createDataFrame(
        [(2, "jam", "orders", 0, 6, at(1), b"b"), (1, "tea", "orders", 0, 5, at(0), b"a")], schema
    )
    found = rows(replay.messages(replay.chosen(table, "id < 9"), keep_timestamp=True))
    assert [(bytes(row["key"]), json.loads(row["value"])) for row in found] == [
        (b"a", {"id": 1, "item": "tea"}),
        (b"b", {"id": 2, "item": "jam"}),
    ]
    assert set(found[0]) == {"key", "value", "timestamp"}
    schema = f"value binary, _key binary, _partition int, _headers {HEADERS}"
    raw = spark.createDataFrame([(b"\x00\xff", b"k", 3, HEADER)], schema)
    (row,) = rows(replay.messages(raw, keep_partition=True))
    assert (bytes(row["value"]), row["partition"]) == (b"\x00\xff", 3)
    assert [(header["key"], header["value"]) for header in row["headers"]] == HEADER
