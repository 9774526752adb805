"""Iceberg tables by pyiceberg: any catalog it knows; the executors' files are added in one snapshot.

The path is `namespace.table`; the options go to `pyiceberg.catalog.load_catalog`:

    open_table("iceberg", "shop.orders", options={"type": "sql", "uri": "sqlite:///lake/catalog.db",
                                                  "warehouse": "file:///lake"})

The batch is remembered in the table property `tidemill.batch.<query id>`, set in the same transaction as the
snapshot: Iceberg commits a transaction by swapping one pointer in the catalog, and the catalog refuses the
swap when the table has changed since it was loaded. So check and commit are one, as in `delta`.

Limits: compaction rewrites whole tables in the driver, and as pyiceberg reads them: an array of structs that is null is
an empty one afterwards. Vacuum leaves the manifests of snapshots that are gone, which are small. `sync` does not write
Iceberg tables.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidemill.spark.lake.columns import arrow_schema, missing
from tidemill.spark.lake.files import FileWriter, WrittenFile, file_system
from tidemill.spark.lake.table import Change, LakeError, Upkeep, check_partitions, is_repetition

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType

PROPERTY = "tidemill.batch."
COMMIT_ATTEMPTS = 20


class IcebergTable:
    """One table of a catalog; only the driver talks to the catalog."""

    format = "iceberg"

    def __init__(self, path: str, partition_by: tuple[str, ...], options: dict[str, str]) -> None:
        if path.count(".") < 1 or "/" in path:
            raise LakeError(f"{path!r}: an Iceberg table is named namespace.table")
        if "warehouse" not in options:
            raise LakeError("an Iceberg table needs options: at least type, uri and warehouse of its catalog")
        self.path = path
        self.partition_by = partition_by
        self._options = options

    def catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog("tidemill", **self._options)

    def load(self) -> Table:
        return self.catalog().load_table(self.path)

    def exists(self) -> bool:
        return self.catalog().table_exists(self.path)

    def schema(self) -> StructType | None:
        if not self.exists():
            return None
        from pyspark.sql.pandas.types import from_arrow_schema

        found = from_arrow_schema(self._plain_arrow())
        assert found is not None
        return found

    def _plain_arrow(self) -> Any:
        import pyarrow as pa

        names = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
        fields = self.load().schema().as_arrow()
        return pa.schema([pa.field(field.name, names.get(field.type, field.type)) for field in fields])

    def ensure(self, schema: StructType) -> StructType:
        if not self.exists():
            self._create(schema)
        self._check_partitions()
        old = self.schema()
        assert old is not None
        added = missing(old, schema)
        if added:
            with self.load().update_schema() as update:
                update.union_by_name(arrow_schema(type(schema)(added)))
        found = self.schema()
        assert found is not None
        return found

    def _create(self, schema: StructType) -> None:
        from pyiceberg.transforms import IdentityTransform

        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(self.path.rpartition(".")[0])
        creating = catalog.create_table_transaction(self.path, arrow_schema(schema))
        with creating as transaction, transaction.update_spec() as spec:
            for name in self.partition_by:
                spec.add_field(name, IdentityTransform(), name)

    def _check_partitions(self) -> None:
        table = self.load()
        names = tuple(table.schema().find_field(field.source_id).name for field in table.spec().fields)
        check_partitions(self.path, names, self.partition_by)

    def is_committed(self, application: str, batch_id: int) -> bool:
        return self.exists() and self._holds(self.load(), application, batch_id)

    def _holds(self, table: Table, application: str, batch_id: int) -> bool:
        last = table.properties.get(PROPERTY + application)
        return is_repetition(None if last is None else int(last), batch_id, self.path, application)

    def writer(self, schema: StructType) -> FileWriter:
        """Iceberg takes partition values from the columns, so the files keep them."""
        return FileWriter(
            self.root(), arrow_schema(schema), self.partition_by, folder="data/", keep_partition_columns=True
        )

    def commit(self, change: Change) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        if change.removed:
            raise LakeError("an Iceberg table is only appended to")
        for _ in range(COMMIT_ATTEMPTS):
            table = self.load()
            if self._holds(table, change.application, change.batch_id):
                return False
            try:
                self._commit_on(table, change)
                return True
            except CommitFailedException:
                continue
        raise LakeError(f"table {self.path} changed {COMMIT_ATTEMPTS} times while a batch was committed")

    def _commit_on(self, table: Table, change: Change) -> None:
        root = table.location()
        with table.transaction() as transaction:
            transaction.set_properties({PROPERTY + change.application: str(change.batch_id)})
            paths = [f"{root}/{file.path}" for file in change.added]
            transaction.add_files(paths, check_duplicate_files=False)

    def root(self) -> str:
        return self.load().location().removeprefix("file://")

    def files(self) -> list[WrittenFile]:
        if not self.exists():
            return []
        location = f"{self.load().location()}/"
        found = [task.file for task in self.load().scan().plan_files()]
        return [
            WrittenFile(
                file.file_path.removeprefix(location), file.file_size_in_bytes, file.record_count, {}, "", 0
            )
            for file in found
        ]

    def compact(self, target_bytes: int) -> Upkeep:
        """The whole table is read and written again, by the driver: for tables that fit its memory."""
        table, before = self.load(), len(self.files())
        with table.transaction() as transaction:
            transaction.set_properties({"write.target-file-size-bytes": str(target_bytes)})
            transaction.overwrite(table.scan().to_arrow())
        return Upkeep(before, len(self.files()))

    def vacuum(self, older_than_hours: float, dry_run: bool) -> Upkeep:
        """Snapshots older than that are forgotten, then the files of that age that no other snapshot names go."""
        count, oldest = len(self.files()), time.time() - older_than_hours * 3600
        expired = _expired(self.load(), oldest)
        unnamed = self._unnamed(expired, oldest)
        if not dry_run:
            if expired:
                self.load().maintenance.expire_snapshots().by_ids(expired).commit()
            files, _ = file_system(self.root())
            for path in unnamed:
                files.delete_file(path)
        return Upkeep(count, count, len(unnamed))

    def _unnamed(self, expired: list[int], oldest: float) -> list[str]:
        """Data files in the table's folder; by name alone, since locations are written in more than one way."""
        from pyarrow.fs import FileSelector

        named = _named_files(self.load(), expired)
        files, base = file_system(self.root())
        found = files.get_file_info(FileSelector(f"{base}/data", allow_not_found=True, recursive=True))
        return [
            each.path
            for each in found
            if each.path.endswith(".parquet")
            and each.base_name not in named
            and each.mtime.timestamp() <= oldest
        ]


def _expired(table: Table, oldest: float) -> list[int]:
    """Snapshots of before; never one that a branch or a tag is at."""
    kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
    return [
        each.snapshot_id
        for each in table.snapshots()
        if each.timestamp_ms < oldest * 1000 and each.snapshot_id not in kept
    ]


def _named_files(table: Table, expired: list[int]) -> set[str]:
    """The names of all files, of rows and of deletes, that the snapshots which stay consist of."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.snapshots()
        if snapshot.snapshot_id not in expired
        for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path.rpartition("/")[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
