"""The kills of `tests/spark/test_pipeline_kills.py` for the other formats of tables, and for `sync`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from lake_kills import BAD_VALUES, GOOD_IDS, PARQUET_STEPS, STEPS, Archives
from pipelines import send, table_rows

from tidemill.testing import SubprocessBroker

OwnBroker = Callable[..., SubprocessBroker]
SECTIONS = {"table": "rows", "dead_letters": "bad"}


def parquet(_: Path) -> dict[str, str]:
    return {section: f'format = "parquet"\npath = "{name}"' for section, name in SECTIONS.items()}


def test_parquet_tables_survive(own_broker: OwnBroker, tmp_path: Path) -> None:
    archives = Archives(own_broker(), tmp_path, PARQUET_STEPS, parquet)
    archives.kill_everybody_at_every_step()
    for folder in archives.folders:
        assert sorted(_column(folder / "rows", "id")) == GOOD_IDS
        assert sorted(_column(folder / "bad", "value")) == BAD_VALUES


def _column(folder: Path, name: str) -> list[Any]:
    values: list[Any] = ds.dataset(folder).to_table(columns=[name]).column(name).to_pylist()
    return values


def catalog(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def iceberg(folder: Path) -> dict[str, str]:
    options = ", ".join(f'{name} = "{value}"' for name, value in catalog(folder).items())
    return {
        section: f'format = "iceberg"\npath = "shop.{name}"\noptions = {{ {options} }}'
        for section, name in SECTIONS.items()
    }


def test_iceberg_tables_survive(own_broker: OwnBroker, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    archives = Archives(own_broker(), tmp_path, STEPS, iceberg)
    archives.kill_everybody_at_every_step()
    for folder in archives.folders:
        tables = load_catalog("tidemill", **catalog(folder))
        rows = tables.load_table("shop.rows").scan().to_arrow()
        bad = tables.load_table("shop.bad").scan().to_arrow()
        assert sorted(rows.column("id").to_pylist()) == GOOD_IDS
        assert sorted(bad.column("value").to_pylist()) == BAD_VALUES


SYNC = """
job = "sync"
name = "{name}"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_messages_per_batch = 10
[sync]
key = ["id"]
columns = {{ id = "bigint", name = "string" }}
buckets = 3
[table]
path = "rows"
[progress]
report = false
"""
PEOPLE = 12


def history() -> list[tuple[str, int, str]]:
    """Everybody is born; then some are renamed, some die, and some of the dead come back."""
    born = [("c", number, f"born {number}") for number in range(PEOPLE)]
    later = [("d" if step % 4 == 3 else "u", step * 5 % PEOPLE, f"step {step}") for step in range(30)]
    return born + later


def model() -> dict[int, str]:
    people: dict[int, str] = {}
    for operation, number, name in history():
        if operation == "d":
            people.pop(number, None)
        else:
            people[number] = name
    return people


def send_changes(bootstrap: str, topic: str) -> None:
    messages = []
    for operation, number, name in history():
        row = {"id": number, "name": name}
        value = {"op": operation, "before": row, "after": None if operation == "d" else row}
        messages.append({"partition": number % 2, "key": str(number), "value": value})
    send(bootstrap, topic, messages)


def test_a_synced_table_is_equal_to_its_source_whoever_dies(own_broker: OwnBroker, tmp_path: Path) -> None:
    assert 0 < len(model()) < PEOPLE
    syncs = Archives(own_broker(), tmp_path, STEPS, lambda _: {}, SYNC, send_changes)
    syncs.kill_everybody_at_every_step()
    for folder in syncs.folders:
        found = table_rows(folder / "rows", "id", "name")
        assert len(found) == len(model()), folder
        assert dict(found) == model(), folder
