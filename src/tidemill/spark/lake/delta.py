"""Delta Lake tables by delta-rs, without a JVM: the log of the table is its truth.

A commit is a JSON file `_delta_log/<version>.json` that is created only if it does not exist. Ours adds the
files of one batch and the record `txn {appId: query id, version: batch id}`.

delta-rs does not refuse a `txn` that is in the log already, so the check is ours, and check and commit must
be one: the table is loaded at version v, the check looks at v, and the commit may become version v+1 and
nothing else (`max_commit_retries=0`). Whoever comes second, a compaction or a forgotten driver with the same
checkpoint, makes it fail; then it is loaded and checked again.

    version 7   txn (q, 11)
    driver A    loads 7, 12 is not in it, commits 8 with txn (q, 12)
    driver B    loads 7, 12 is not in it, fails to commit 8, loads 8: 12 is in it, leaves its files as litter

Limits: tables with deletion vectors or column mapping, which other engines may switch on, are refused by
delta-rs.
"""

from __future__ import annotations

import json
import math
import time
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.spark.lake.columns import arrow_schema, missing
from tidemill.spark.lake.files import FileWriter, WrittenFile
from tidemill.spark.lake.table import Change, LakeError, Upkeep, check_partitions, is_repetition

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS = 20


class DeltaLakeTable:
    """One table; every call looks at its newest version."""

    format = "delta"

    def __init__(
        self,
        path: str,
        partition_by: tuple[str, ...],
        options: dict[str, str],
        properties: dict[str, str] | None = None,
    ) -> None:
        """`properties` are written when the table is made, and cannot change afterwards."""
        self.path = path
        self.partition_by = partition_by
        self._options = options or None
        self._properties = properties or {}

    def load(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.path, storage_options=self._options)

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(self.path, self._options)

    def schema(self) -> StructType | None:
        return _spark_schema(self.load()) if self.exists() else None

    def ensure(self, schema: StructType) -> StructType:
        from deltalake import Schema

        if not self.exists():
            self._create(schema)
        table = self.load()
        check_partitions(self.path, tuple(table.metadata().partition_columns), self.partition_by)
        self._check_properties(table.metadata().configuration)
        added = missing(_spark_schema(table), schema)
        if added:
            fields = Schema.from_arrow(arrow_schema(type(schema)(added))).fields
            table.alter.add_columns(fields)
        return _spark_schema(self.load())

    def _create(self, schema: StructType) -> None:
        from deltalake import DeltaTable, Schema

        DeltaTable.create(
            self.path,
            Schema.from_arrow(arrow_schema(schema)),
            mode="ignore",
            partition_by=list(self.partition_by),
            configuration=self._properties,
            storage_options=self._options,
            raise_if_key_not_exists=False,
        )

    def _check_properties(self, actual: dict[str, str]) -> None:
        """A table that was made before a property existed does not have it."""
        for name, value in self._properties.items():
            if actual.get(name, value) != value:
                raise LakeError(
                    f"table {self.path} has {name} {actual[name]}, the configuration says {value}: "
                    "it cannot change, choose another table"
                )

    def is_committed(self, application: str, batch_id: int) -> bool:
        return self.exists() and self._holds(self.load(), application, batch_id)

    def _holds(self, table: DeltaTable, application: str, batch_id: int) -> bool:
        return is_repetition(table.transaction_version(application), batch_id, self.path, application)

    def writer(self, schema: StructType) -> FileWriter:
        return FileWriter(self.path, arrow_schema(schema), self.partition_by)

    def commit(self, change: Change) -> bool:
        from deltalake.exceptions import CommitFailedError

        for _ in range(COMMIT_ATTEMPTS):
            table = self.load()
            if self._holds(table, change.application, change.batch_id):
                return False
            self._check_removed(table, change)
            try:
                self._commit_next_version(table, change)
                return True
            except CommitFailedError:
                continue
        raise LakeError(f"table {self.path} changed {COMMIT_ATTEMPTS} times while a batch was committed")

    def _commit_next_version(self, table: DeltaTable, change: Change) -> None:
        from deltalake.transaction import CommitProperties, Transaction

        actions: list[AddAction | RemoveAction] = [
            *map(_add_action, change.added),
            *map(_remove_action, change.removed),
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(self.partition_by),
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=[Transaction(change.application, change.batch_id)],
            ),
        )

    def _check_removed(self, table: DeltaTable, change: Change) -> None:
        gone = {file.path for file in change.removed} - {file.path for file in active_files(table)}
        if gone:
            raise FilesChanged(f"table {self.path}: {sorted(gone)[0]} was replaced by somebody else")

    def root(self) -> str:
        return self.path

    def files(self) -> list[WrittenFile]:
        return active_files(self.load()) if self.exists() else []

    def compact(self, target_bytes: int) -> Upkeep:
        before = len(self.files())
        self._retrying(lambda table: table.optimize.compact(target_size=target_bytes))
        return Upkeep(before, len(self.files()))

    def vacuum(self, older_than_hours: float, dry_run: bool) -> Upkeep:
        """`full`: files of batches that were never committed count too, as soon as they are old enough.

        delta-rs knows whole hours only; a part of one counts as one, so that no file goes too early.
        """
        count = len(self.files())
        deleted = self.load().vacuum(
            math.ceil(older_than_hours), dry_run=dry_run, enforce_retention_duration=False, full=True
        )
        return Upkeep(count, count, len(deleted))

    def _retrying(self, work: Callable[[DeltaTable], Any]) -> Any:
        from deltalake.exceptions import CommitFailedError

        for _ in range(COMMIT_ATTEMPTS - 1):
            try:
                return work(self.load())
            except CommitFailedError:
                continue
        return work(self.load())


class FilesChanged(Exception):
    """A file that the change replaces is no longer in the table: the change must be computed again."""


def active_files(table: DeltaTable) -> list[WrittenFile]:
    import pyarrow as pa

    rows = pa.table(table.get_add_actions()).to_pylist()
    return [
        WrittenFile(
            urllib.parse.unquote(row["path"]),
            row["size_bytes"],
            row.get("num_records") or 0,
            {name: _text(value) for name, value in (row.get("partition") or {}).items()},
            "",
            row["modification_time"],
        )
        for row in rows
    ]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _add_action(file: WrittenFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size_bytes, file.partition, file.written_ms, True, file.stats)


def _remove_action(file: WrittenFile) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, True, time.time_ns() // 1_000_000, file.size_bytes, file.partition)


def _spark_schema(table: DeltaTable) -> StructType:
    """Delta writes schemas as Spark's own JSON."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))
