"""Plain Parquet: a folder of files that any tool reads, and still each batch once.

A folder has no log, so one is kept beside the data, under `_tidemill/`, which readers of Parquet folders skip:

    lake/clicks/
      day=2026-11-18/part-….parquet                     what readers see
      _tidemill/schema.json                             the columns
      _tidemill/staging/…/part-….parquet                files of batches that are not committed
      _tidemill/commits/<query id>/<batch id>.json      the manifest: which staged files go where

1. Executors write into `staging`.
2. The driver writes the manifest to a temporary name, syncs it, and links it to its own name, which fails if there is
   one. This is the commit: from here on the batch is in the table.
3. The driver renames each staged file to its place, and deletes the files that the manifest replaces.

A crash before 2 leaves litter in `staging`. A crash in 3 is finished by whoever comes next, Spark's repetition of the
batch, `compact` or `vacuum`: moving a file that has been moved is nothing. Nobody undoes a manifest. A compaction
is a change like any other, but nobody repeats it, so the next batch finishes it too.

Two compactions at once: each takes its number, finishes all manifests below it, and then looks whether the files it
read are still there. Either the number is taken or a file is gone; the second is refused and leaves litter.

Limits: a reader that lists the folder during step 3 sees a part of the batch (Delta readers never do).
Renames must be atomic: local disks and mounts, not object stores. Only the newest manifests of a query are
kept; Spark repeats no batch but the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.spark.lake import steps
from tidemill.spark.lake.columns import arrow_schema, grown
from tidemill.spark.lake.files import NULL_PARTITION, FileWriter, WrittenFile, as_row
from tidemill.spark.lake.table import Change, LakeError, Upkeep, check_partitions, is_repetition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STAGING = "_tidemill/staging/"
KEPT_MANIFESTS = 10
COMPACTION = "compaction"


class ParquetTable:
    """A folder of Parquet files with manifests."""

    format = "parquet"

    def __init__(self, path: str, partition_by: tuple[str, ...]) -> None:
        if "://" in path:
            raise LakeError(
                f"{path}: plain Parquet needs atomic renames, which object stores lack; use delta"
            )
        self.path = path.rstrip("/")
        self.partition_by = partition_by
        self._root = Path(path)
        self._commits = self._root / "_tidemill" / "commits"
        self._schema_file = self._root / "_tidemill" / "schema.json"

    def schema(self) -> StructType | None:
        from pyspark.sql.types import StructType

        if not self._schema_file.exists():
            return None
        return StructType.fromJson(json.loads(self._schema_file.read_text())["schema"])

    def ensure(self, schema: StructType) -> StructType:
        self._finish_all(COMPACTION)
        old = self.schema()
        self._check_partitions()
        wanted = schema if old is None else grown(old, schema)
        if old is None or len(wanted) != len(old):
            facts = {"partition_by": self.partition_by, "schema": wanted.jsonValue()}
            _write_durably(self._schema_file, json.dumps(facts))
        return wanted

    def _check_partitions(self) -> None:
        if self._schema_file.exists():
            actual = tuple(json.loads(self._schema_file.read_text())["partition_by"])
            check_partitions(self.path, actual, self.partition_by)

    def is_committed(self, application: str, batch_id: int) -> bool:
        """Also finishes a batch whose manifest was written but whose files have not all been moved."""
        if not is_repetition(self._newest(application), batch_id, self.path, application):
            return False
        self._finish(self._manifest(application, batch_id))
        return True

    def _newest(self, application: str) -> int | None:
        return max((int(path.stem) for path in (self._commits / application).glob("*.json")), default=None)

    def writer(self, schema: StructType) -> FileWriter:
        folder = f"{STAGING}{uuid.uuid4()}/"
        return FileWriter(
            self.path, arrow_schema(schema), self.partition_by, folder=folder, directory_per_partition=True
        )

    def commit(self, change: Change) -> bool:
        manifest = self._manifest(change.application, change.batch_id)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        if self.is_committed(change.application, change.batch_id):
            return False
        self._check_files(change)
        facts = {
            "added": [as_row(file) | {"target": _target(file.path)} for file in change.added],
            "removed": [file.path for file in change.removed],
        }
        if not _write_durably(manifest, json.dumps(facts), replace=False):
            return False
        steps.reached("manifest-written")
        self._finish(manifest)
        self._forget_old_manifests(manifest.parent)
        return True

    def _check_files(self, change: Change) -> None:
        """A file that is gone would count as moved, and one that is replaced twice would be in the table twice."""
        for file in change.added:
            if not (self._root / file.path).exists():
                raise LakeError(
                    f"table {self.path}: {file.path} of batch {change.batch_id} is gone before its commit; "
                    "vacuum with a retention that is longer than a batch"
                )
        for file in change.removed:
            if not (self._root / file.path).exists():
                raise LakeError(
                    f"table {self.path}: {file.path} was replaced by somebody else; compact again"
                )

    def _manifest(self, application: str, batch_id: int) -> Path:
        return self._commits / application / f"{batch_id:020d}.json"

    def _finish_all(self, application: str = "*") -> None:
        for manifest in sorted(self._commits.glob(f"{application}/*.json")):
            with contextlib.suppress(FileNotFoundError):
                self._finish(manifest)

    def _finish(self, manifest: Path) -> None:
        facts = json.loads(manifest.read_text())
        for file in facts["added"]:
            self._move(file)
        for path in facts["removed"]:
            (self._root / path).unlink(missing_ok=True)

    def _move(self, file: dict[str, Any]) -> None:
        staged, target = self._root / file["path"], self._root / file["target"]
        if not staged.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(staged, target)
        steps.reached("one-file-moved")

    def _forget_old_manifests(self, folder: Path) -> None:
        for old in sorted(folder.glob("*.json"))[:-KEPT_MANIFESTS]:
            old.unlink(missing_ok=True)

    def root(self) -> str:
        return self.path

    def files(self) -> list[WrittenFile]:
        found = sorted(path.relative_to(self._root) for path in self._root.rglob("part-*.parquet"))
        return [self._file(path) for path in found if path.parts[0] != "_tidemill"]

    def _file(self, path: Path) -> WrittenFile:
        facts = (self._root / path).stat()
        partition = dict(map(_partition_value, path.parent.parts))
        return WrittenFile(str(path), facts.st_size, 0, partition, "", int(facts.st_mtime * 1000))

    def compact(self, target_bytes: int) -> Upkeep:
        """Files below half the target are joined, folder by folder, through a manifest like any other change."""
        self._finish_all()
        before, schema = self.files(), self.schema()
        small: dict[str, list[WrittenFile]] = {}
        for file in before:
            if file.size_bytes < target_bytes // 2:
                small.setdefault(file.path.rpartition("/")[0], []).append(file)
        for folder, files in small.items():
            if len(files) > 1 and schema is not None:
                self._join(folder, files, schema, target_bytes)
        return Upkeep(len(before), len(self.files()))

    def _join(self, folder: str, files: list[WrittenFile], schema: StructType, target_bytes: int) -> None:
        import pyarrow.parquet as pq

        place = f"{folder}/" if folder else ""
        columns = [field for field in arrow_schema(schema) if field.name not in self.partition_by]
        writer = FileWriter(
            self.path,
            _schema_of(columns),
            folder=f"{STAGING}{uuid.uuid4()}/{place}",
            target_bytes=target_bytes,
        )
        opened = (pq.ParquetFile(self._root / file.path) for file in files)
        try:
            added = list(writer.write(batch for file in opened for batch in file.iter_batches()))
        except FileNotFoundError as error:
            raise LakeError(f"table {self.path} changed meanwhile; compact again") from error
        number = 1 + (self._newest(COMPACTION) or 0)
        self._finish_all(COMPACTION)
        if not self.commit(Change(COMPACTION, number, added, files)):
            raise LakeError(f"table {self.path} is compacted by somebody else; compact again")

    def vacuum(self, older_than_hours: float, dry_run: bool) -> Upkeep:
        """Finishes what a crash left half done, then removes staged files that no manifest names."""
        self._finish_all()
        oldest = time.time() - older_than_hours * 3600
        staged = (self._root / STAGING).rglob("*.parquet")
        litter = [path for path in staged if path.stat().st_mtime <= oldest]
        for path in litter if not dry_run else []:
            path.unlink(missing_ok=True)
        count = len(self.files())
        return Upkeep(count, count, len(litter))


def _target(staged: str) -> str:
    """`_tidemill/staging/<id>/day=1/part-x.parquet` to `day=1/part-x.parquet`."""
    return staged.removeprefix(STAGING).partition("/")[2]


def _partition_value(folder: str) -> tuple[str, str | None]:
    name, _, text = folder.partition("=")
    return name, None if text == NULL_PARTITION else urllib.parse.unquote(text)


def _schema_of(fields: list[Any]) -> Any:
    import pyarrow as pa

    return pa.schema(fields)


def _write_durably(path: Path, text: str, replace: bool = True) -> bool:
    """A file that is there whole or not at all; without `replace`, False if it was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if replace:
        os.replace(temporary, path)
        return True
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
