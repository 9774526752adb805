"""The logs of a broker and the directories they lie in: who is here, who is lost, what goes offline with a disk.

    online     a log that can be used
    quarantined  its files are damaged: they are not touched, the partition answers KAFKA_STORAGE_ERROR
    offline    it lies in a directory whose disk failed, and answers the same until the next start

The manager is built in layers, each a module and a class of its own: what there is (here), the passes over all logs
(`log_passes`), and the whole (`manager`), which starts, creates, deletes, writes down and closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.files import Files
from tidemill.ports.randomness import Randomness
from tidemill.storage.compaction import Compaction
from tidemill.storage.config import LogConfig
from tidemill.storage.data_directory import DataDirectory
from tidemill.storage.log import Log
from tidemill.storage.log_state import PASSING_ERRORS
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.producer_state import DEFAULT_EXPIRATION_MS

OnFailure = Callable[[str, list[TopicPartition], OSError], None]
"""Told of a directory that went offline, with the partitions that went with it."""


class Quarantine(NamedTuple):
    """A partition whose log is damaged."""

    directory: str
    reason: str


class ManagedLogs:
    """State, and the way of a directory out of service."""

    def __init__(
        self, files: Files, randomness: Randomness, directories: Sequence[str], config_of: Callable[[str], LogConfig],
        *, open_files: OpenFiles | None = None, on_failure: OnFailure | None = None,
    ) -> None:  # fmt: skip
        assert directories and len(set(directories)) == len(directories)
        self._files = files
        self._randomness = randomness
        self._config_of = config_of
        self._open_files = open_files if open_files is not None else OpenFiles()
        self._on_failure = on_failure
        self.producer_expiration_ms = DEFAULT_EXPIRATION_MS
        """May be changed at any time, as may `compaction.offset_map_bytes`."""
        self.directories = [DataDirectory(files, path.rstrip("/")) for path in directories]
        self.cordoned: frozenset[str] = frozenset()
        """Paths of directories that take no new partitions."""
        self.logs: dict[TopicPartition, Log] = {}
        self.quarantined: dict[TopicPartition, Quarantine] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions that went with a failed directory, and which."""
        self.compaction = Compaction(files)
        self._doomed: list[tuple[int, str]] = []
        """Deleted partitions: (when their files may go, path)."""
        self._seen_flushed_ms: dict[TopicPartition, int] = {}

    # -- finding --------------------------------------------------------------------------------------

    def get(self, partition: TopicPartition) -> Log | None:
        return self.logs.get(partition)

    def require(self, partition: TopicPartition) -> Log:
        """The log, or the ApiError that says why there is none."""
        log = self.logs.get(partition)
        if log is not None:
            return log
        self._require_not_lost(partition)
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not on this broker")

    def note_lost(self, assigned: Mapping[TopicPartition, bytes]) -> None:
        """Of the partitions that were here before, those that are nowhere now: a directory that failed has them.

        `assigned` are the directories that the metadata names; one that is online has lost the log and gets it
        again, empty.
        """
        failed = [directory.path for directory in self.directories if not directory.is_online]
        online = {directory.directory_id for directory in self.directories if directory.is_online}
        for partition, directory_id in assigned.items():
            is_missing = partition not in self.logs and partition not in self.quarantined
            if failed and is_missing and directory_id not in online:
                self.offline[partition] = failed[0]

    def is_lost(self, partition: TopicPartition) -> bool:
        """Whether its files are here and cannot be used."""
        return partition in self.quarantined or partition in self.offline

    def _require_not_lost(self, partition: TopicPartition) -> None:
        if partition in self.quarantined:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.quarantined[partition].reason)
        if partition in self.offline:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is in {self.offline[partition]}: offline"
            )

    # -- failing directories --------------------------------------------------------------------------

    def fail_directory(self, path: str, error: OSError, *, is_certain: bool = False) -> None:
        """Take a directory offline with all its partitions. The broker decides what follows if none is left.

        A full disk or too many open files are no reason, unless a sync failed with it (`is_certain`).
        """
        directory = next((each for each in self.directories if each.path == path), None)
        if directory is None or not directory.is_online:
            return
        if error.errno in PASSING_ERRORS and not is_certain:
            return
        directory.failure = error
        lost = [partition for partition, log in self.logs.items() if parent_of(log.directory) == path]
        for partition in lost:
            self.logs.pop(partition).fail(error)
            self.compaction.forget(partition)
            self.offline[partition] = path
        self._doomed = [entry for entry in self._doomed if parent_of(entry[1]) != path]
        if self._on_failure is not None:
            self._on_failure(path, lost, error)

    @contextmanager
    def _guard(self, path: str) -> Iterator[None]:
        """Around work on files of this data directory: if the disk refuses, the directory goes offline."""
        try:
            yield
        except OSError as error:
            self.fail_directory(path, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} failed: {error}") from error


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]
