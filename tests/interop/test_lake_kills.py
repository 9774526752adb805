"""The chain of killed drivers of `tests/spark/test_pipeline_kills.py` for the other formats of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from cluster_under_test import Cluster
from lake_kills import (
    BAD_VALUES,
    CONFIGURATION,
    GOOD_IDS,
    MANIFEST_STEPS,
    STEPS,
    kill_at_every_step,
    send_good_and_bad,
)


def written(folder: Path, **facts: str) -> Path:
    path = folder / "job.toml"
    path.write_text(CONFIGURATION.format(**facts))
    return path


def test_parquet_tables_survive(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=2)
    send_good_and_bad(cluster.bootstrap, topic)
    sections = {
        name: f'format = "parquet"\npath = "{path}"'
        for name, path in (("table", "rows"), ("dead_letters", "bad"))
    }
    config = written(tmp_path, bootstrap=cluster.bootstrap, topic=topic, **sections)
    kill_at_every_step(config, (*STEPS, *MANIFEST_STEPS))
    assert sorted(_column(tmp_path / "rows", "id")) == GOOD_IDS
    assert sorted(_column(tmp_path / "bad", "value")) == BAD_VALUES


def _column(folder: Path, name: str) -> list[Any]:
    values: list[Any] = ds.dataset(folder).to_table(columns=[name]).column(name).to_pylist()
    return values


def test_iceberg_tables_survive(cluster: Cluster, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    topic = cluster.topic(partitions=2)
    send_good_and_bad(cluster.bootstrap, topic)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    options = ", ".join(f'{name} = "{value}"' for name, value in catalog.items())
    sections = {
        section: f'format = "iceberg"\npath = "shop.{name}"\noptions = {{ {options} }}'
        for section, name in (("table", "rows"), ("dead_letters", "bad"))
    }
    kill_at_every_step(written(tmp_path, bootstrap=cluster.bootstrap, topic=topic, **sections), STEPS)
    tables = load_catalog("tidemill", **catalog)
    rows = tables.load_table("shop.rows").scan().to_arrow()
    bad = tables.load_table("shop.bad").scan().to_arrow()
    assert sorted(rows.column("id").to_pylist()) == GOOD_IDS
    assert sorted(bad.column("value").to_pylist()) == BAD_VALUES
