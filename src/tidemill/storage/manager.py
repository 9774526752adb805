"""All logs of a broker: found at the start, created, deleted, kept in bounds, written down, closed.

    manager = LogManager(Disk(), SystemRandomness(), ["/disk1", "/disk2"], config_of)
    manager.start(node_id=1, cluster_id="...", now_ms=...)
    log = manager.create(TopicPartition("orders", 0), topic_id, now_ms)

Nothing here waits or runs by itself: the server's loop calls the passes. What syncs files or takes long is
handed out as a job, run in a thread (or a process), and completed on the loop:

    on the loop                       elsewhere              on the loop
    begin_flushes(now_ms)             flush.run()            complete_flush(flush)
    begin_checkpoints()               job.run()              complete_checkpoint(job)
    begin_removals(now_ms)            removal.run()          complete_removal(removal)
    begin_cleaning(now_ms)            cleaner_process        complete_cleaning(cleaning, result, now_ms)
    retention_pass(now_ms)            -                      -

Two kinds of trouble stay local. A log that is damaged (CorruptLog) is quarantined: its files are not touched,
its partition answers KAFKA_STORAGE_ERROR, the others work. A directory whose disk fails (OSError) goes offline
with all its partitions, `on_failure` is called, the other directories work.

Example: of two directories with 3 and 2 partitions a new partition goes to the second.

Limits: not thread safe; moving a partition between directories is not supported, and half-moved copies of
Kafka's (`-future`) are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from tidemill.model.errors import ApiError, CorruptLog, ErrorCode
from tidemill.model.ids import ZERO_UUID, TopicPartition, uuid_text
from tidemill.ports.files import Files
from tidemill.storage.data_directory import CheckpointJob, Checkpoints, DataDirectory, marked_name, only_of
from tidemill.storage.log import Log
from tidemill.storage.log_passes import LogPasses
from tidemill.storage.managed_logs import Quarantine, parent_of
from tidemill.storage.partition_metadata import read_topic_id, write_topic_id

logger = logging.getLogger(__name__)

UNKNOWN_BYTES = -1
SYNC_TOGETHER_FROM = 100
"""Logs to close from which on one sync of the file system is quicker than one of each file."""
_RESERVED_ID = bytes(15)
"""Directory ids that begin so mean no directory: unassigned, lost, migrating."""


class WantedLog(NamedTuple):
    partition: TopicPartition
    topic_id: bytes
    directory_id: bytes = ZERO_UUID
    """The data directory that the metadata says it is in; zero if it says nothing."""


FindWanted = Callable[[TopicPartition], WantedLog | None]


class LoadReport(NamedTuple):
    """What the start found."""

    loaded: int
    recovered: int
    """Of them, those that had to be checked because the last shutdown was not clean."""
    quarantined: dict[TopicPartition, Quarantine]
    offline: dict[str, OSError]
    unreadable: list[str]
    """Checkpoints that could not be read and were done without."""
    missing_offsets: dict[TopicPartition, int]
    """Logs that end before what had been synced, and by how much."""


class Removal:
    """Directories of deleted partitions, to be removed in any thread."""

    def __init__(self, files: Files, paths: list[str]) -> None:
        self._files = files
        self.paths = paths
        self.failures: list[tuple[str, OSError]] = []

    def run(self) -> None:
        for path in self.paths:
            try:
                if self._files.exists(path):
                    self._files.remove_tree(path)
            except OSError as error:
                self.failures.append((path, error))


class PartitionDescription(NamedTuple):
    partition: TopicPartition
    size_bytes: int
    offset_lag: int


class DirectoryDescription(NamedTuple):
    path: str
    failure: OSError | None
    total_bytes: int
    usable_bytes: int
    partitions: list[PartitionDescription]
    is_cordoned: bool


class LogManager(LogPasses):
    """All logs of a broker."""

    # -- the start ------------------------------------------------------------------------------------

    def start(
        self, node_id: int, cluster_id: str, now_ms: int, *, wanted: FindWanted = lambda partition: None,
        unusable: Mapping[str, OSError] = MappingProxyType({}),
    ) -> LoadReport:  # fmt: skip
        """Load everything; raises WrongDirectory, and OSError if no directory can be used.

        `wanted` is what the metadata says of a partition, `unusable` are directories that failed already.
        """
        self._wanted = wanted
        recovered = 0
        for directory in self.directories:
            try:
                if directory.path in unusable:
                    raise unusable[directory.path]
                directory.claim(node_id, cluster_id, self._randomness)
                recovered += self._load_directory(directory, directory.take_over(), now_ms)
            except OSError as error:
                self.fail_directory(directory.path, error)
        offline = {each.path: each.failure for each in self.directories if each.failure is not None}
        if len(offline) == len(self.directories):
            raise next(iter(offline.values()))
        unreadable = [text for directory in self.directories for text in directory.unreadable]
        missing = {where: log.recovery_report.missing_offsets for where, log in self.logs.items()}
        shortened = {where: count for where, count in missing.items() if count}
        return LoadReport(len(self.logs), recovered, dict(self.quarantined), offline, unreadable, shortened)

    def _load_directory(self, directory: DataDirectory, checkpoints: Checkpoints, now_ms: int) -> int:
        listing = directory.list()
        self._doomed += [(now_ms, f"{directory.path}/{name}") for name in listing.doomed]
        for partition, name in listing.partitions:
            self._load(directory, partition, f"{directory.path}/{name}", checkpoints, now_ms)
        return 0 if directory.is_clean else len(listing.partitions)

    def _load(
        self,
        directory: DataDirectory,
        partition: TopicPartition,
        path: str,
        checkpoints: Checkpoints,
        now_ms: int,
    ) -> None:
        try:
            if not self._is_rightful(directory, partition, path):
                return
            log = Log.open(
                self._files, path, self._config_of(partition.topic), clean_shutdown=directory.is_clean,
                recovery_point=checkpoints.recovery_points.get(partition, 0),
                log_start_offset=checkpoints.log_start_offsets.get(partition, 0), now_ms=now_ms,
                topic_partition=partition, open_files=self._open_files, randomness=self._randomness,
                producer_expiration_ms=self.producer_expiration_ms,
            )  # fmt: skip
        except CorruptLog as error:
            self.quarantined[partition] = Quarantine(path, str(error))
            return
        log.update_high_watermark(checkpoints.high_watermarks.get(partition, 0))
        self.logs[partition] = log
        if partition in checkpoints.cleaner_offsets:
            self.compaction.clean_until[partition] = checkpoints.cleaner_offsets[partition]

    def _is_rightful(self, directory: DataDirectory, partition: TopicPartition, path: str) -> bool:
        """Whether to load this copy: not one of a deleted topic whose successor is elsewhere; of two the right one.

        A copy that lost is kept as a `-stray` directory.
        """
        wanted = self._wanted(partition)
        stored_id = read_topic_id(self._files, path) if wanted is not None else None
        other = self.logs.get(partition)
        is_elsewhere = wanted is not None and wanted.directory_id not in (ZERO_UUID, directory.directory_id)
        if is_elsewhere and wanted is not None and stored_id not in (None, wanted.topic_id):
            self._rename_away(partition, path, "stray")
        elif other is None:
            return True
        elif wanted is not None and wanted.directory_id == directory.directory_id:
            self.set_aside(partition)
            return True
        elif wanted is not None and wanted.directory_id == self.directory_id_of(partition):
            self._rename_away(partition, path, "stray")
        else:
            self._quarantine_twins(partition, path)
        return False

    def _rename_away(self, partition: TopicPartition, path: str, mark: str) -> str:
        new = f"{parent_of(path)}/{marked_name(partition, self._randomness.uuid(), mark)}"
        self._files.rename(path, new)
        logger.warning("%s is another %s than the one of the metadata: kept as %s", path, partition, new)
        return new

    def _quarantine_twins(self, partition: TopicPartition, path: str) -> None:
        """Two directories claim the same partition: which one is right, only a person can tell."""
        other = self.logs.pop(partition)
        reason = (
            f"{partition} is in {other.directory} and in {path}. Move the wrong one away and start again."
        )
        self.quarantined[partition] = Quarantine(path, reason)

    # -- finding, creating, deleting ------------------------------------------------------------------

    def create(
        self, partition: TopicPartition, topic_id: bytes, now_ms: int, directory_id: bytes = ZERO_UUID
    ) -> Log:
        return self.create_all([WantedLog(partition, topic_id, directory_id)], now_ms)[0]

    def create_all(self, wanted: Iterable[WantedLog], now_ms: int) -> list[Log]:
        """The logs of these partitions, made where they are missing; one sync of each directory for all.

        The first failure is raised after all others were tried.
        """
        logs: list[Log] = []
        failures: list[ApiError] = []
        touched: set[str] = set()
        counts = self._counts()
        for partition, topic_id, directory_id in wanted:
            try:
                log = self._existing(partition, topic_id)
                if log is None:
                    directory = self._assigned(partition, directory_id) or self._emptiest(counts)
                    log = self._create_in(directory, partition, topic_id, now_ms)
                    counts[directory.path] = counts.get(directory.path, 0) + 1
                    touched.add(directory.path)
                logs.append(log)
            except ApiError as error:
                failures.append(error)
        for path in touched:
            with self._guard(path):
                self._files.sync_directory(path)
        if failures:
            raise failures[0]
        return logs

    def _existing(self, partition: TopicPartition, topic_id: bytes) -> Log | None:
        self._require_not_lost(partition)
        log = self.logs.get(partition)
        if log is not None and log.topic_id == ZERO_UUID:
            with self._guard(parent_of(log.directory)):
                write_topic_id(self._files, log.directory, topic_id)
            log.topic_id = topic_id
        if log is not None and log.topic_id != topic_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{partition} in {log.directory} belongs to another topic of that name; set it aside or delete it",
            )
        return log

    def _assigned(self, partition: TopicPartition, directory_id: bytes) -> DataDirectory | None:
        """The directory that the metadata names; one that is not online may hold the data, so make no new log."""
        for directory in self.directories:
            if directory.is_online and directory.directory_id == directory_id:
                return directory
        if directory_id.startswith(_RESERVED_ID) or all(
            directory.is_online for directory in self.directories
        ):
            return None
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{partition} is assigned to the directory {uuid_text(directory_id)}, which is not online",
        )

    def directory_id_of(self, partition: TopicPartition) -> bytes | None:
        """Of the directory that the partition lies in; None if it is not here."""
        log = self.logs.get(partition)
        if log is None:
            return None
        parent = parent_of(log.directory)
        return next(each.directory_id for each in self.directories if each.path == parent)

    def _counts(self) -> dict[str, int]:
        """Partitions per usable directory; cordoned ones only when there are no others."""
        online = [directory.path for directory in self.directories if directory.is_online]
        counts = dict.fromkeys([path for path in online if path not in self.cordoned] or online, 0)
        for log in self.logs.values():
            path = parent_of(log.directory)
            if path in counts:
                counts[path] += 1
        return counts

    def _emptiest(self, counts: dict[str, int]) -> DataDirectory:
        usable = [each for each in self.directories if each.is_online and each.path in counts]
        if not usable:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no data directory is online")
        return min(usable, key=lambda directory: counts[directory.path])

    def _create_in(
        self, directory: DataDirectory, partition: TopicPartition, topic_id: bytes, now_ms: int
    ) -> Log:
        with self._guard(directory.path):
            directory.forget(partition)
            log = Log.open(
                self._files, f"{directory.path}/{partition}", self._config_of(partition.topic), clean_shutdown=True,
                now_ms=now_ms, topic_partition=partition, topic_id=topic_id, open_files=self._open_files,
                randomness=self._randomness, producer_expiration_ms=self.producer_expiration_ms,
            )  # fmt: skip
        self.logs[partition] = log
        return log

    def delete(self, partition: TopicPartition, now_ms: int) -> None:
        """Rename its directory; the files go `file.delete.delay.ms` later. No error if it is not here."""
        path = self._move_away(partition, "delete")
        if path is not None:
            self._doomed.append((now_ms + self._config_of(partition.topic).file_delete_delay_ms, path))

    def set_aside(self, partition: TopicPartition) -> str | None:
        """For a partition that the metadata does not know: keep its files under a `-stray` name."""
        return self._move_away(partition, "stray")

    def _move_away(self, partition: TopicPartition, mark: str) -> str | None:
        """Rename the partition's directory; where to, or None if there is none."""
        log, quarantine = self.logs.pop(partition, None), self.quarantined.pop(partition, None)
        self.compaction.forget(partition)
        self._seen_flushed_ms.pop(partition, None)
        if log is None and quarantine is None:
            self.offline.pop(partition, None)  # its files come back with their disk, as a stray
            return None
        old = log.directory if log is not None else quarantine.directory if quarantine is not None else ""
        new = f"{parent_of(old)}/{marked_name(partition, self._randomness.uuid(), mark)}"
        with self._guard(parent_of(old)):
            if log is not None:
                log.move_directory(new)
                log.fail(FileNotFoundError(2, "the log was deleted", old))
            else:
                self._files.rename(old, new)
        return new

    def begin_removals(self, now_ms: int) -> Removal | None:
        due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        return Removal(self._files, due) if due else None

    def complete_removal(self, removal: Removal) -> None:
        for path, error in removal.failures:
            self.fail_directory(parent_of(path), error)

    def reconfigure(self, topic: str, indexes: Iterable[int]) -> None:
        """The configuration of this topic changed: the logs of its partitions get the new one."""
        config = self._config_of(topic)
        for index in indexes:
            log = self.logs.get(TopicPartition(topic, index))
            if log is not None:
                log.config = config

    # -- writing down ---------------------------------------------------------------------------------

    def begin_checkpoints(self) -> list[CheckpointJob]:
        """Recovery points, log starts, high watermarks and cleaner positions of all directories online."""
        parts: dict[str, list[Log]] = {
            directory.path: [] for directory in self.directories if directory.is_online
        }
        for log in self.logs.values():
            parts[parent_of(log.directory)].append(log)
        return [
            CheckpointJob(directory, self._checkpoints(parts[directory.path]))
            for directory in self.directories
            if directory.is_online
        ]

    def _checkpoints(self, logs: list[Log]) -> Checkpoints:
        """A log start is written down only where the name of the first segment does not say it."""
        return Checkpoints(
            {log.topic_partition: log.recovery_point for log in logs},
            {
                log.topic_partition: log.log_start_offset
                for log in logs
                if log.log_start_offset > log.segments[0].base_offset
            },
            {log.topic_partition: log.high_watermark for log in logs},
            only_of(self.compaction.clean_until, {log.topic_partition for log in logs}),
        )

    def complete_checkpoint(self, job: CheckpointJob) -> None:
        if job.error is not None:
            self.fail_directory(job.directory.path, job.error)

    def describe(self) -> list[DirectoryDescription]:
        """For DescribeLogDirs."""
        parts: dict[str, list[PartitionDescription]] = {directory.path: [] for directory in self.directories}
        for partition, log in self.logs.items():
            lag = max(log.log_end_offset - log.high_watermark, 0)
            parts[parent_of(log.directory)].append(PartitionDescription(partition, log.size, lag))
        return [
            DirectoryDescription(
                directory.path,
                directory.failure,
                self._disk_bytes(directory, directory.total_bytes),
                self._disk_bytes(directory, directory.free_bytes),
                parts[directory.path],
                directory.path in self.cordoned,
            )
            for directory in self.directories
        ]

    def _disk_bytes(self, directory: DataDirectory, read: Callable[[], int]) -> int:
        try:
            return read() if directory.is_online else UNKNOWN_BYTES
        except OSError as error:
            self.fail_directory(directory.path, error)
            return UNKNOWN_BYTES

    def close(self, broker_epoch: int) -> None:
        """Close every log, write everything down, and mark the directories in which all of that worked."""
        together = len(self.logs) >= SYNC_TOGETHER_FROM
        for log in list(self.logs.values()):
            try:
                log.close(sync=not together)
            except (OSError, ApiError) as error:
                failure = error if isinstance(error, OSError) else OSError(5, str(error))
                self.fail_directory(parent_of(log.directory), failure)
        if together:
            self._sync_directories()
        for job in self.begin_checkpoints():
            job.run()
            self.complete_checkpoint(job)
            if job.error is None and not self._has_offline_log(job.directory):
                with suppress(OSError):
                    job.directory.mark_clean(broker_epoch)

    def _has_offline_log(self, directory: DataDirectory) -> bool:
        return any(
            log.is_offline and parent_of(log.directory) == directory.path for log in self.logs.values()
        )

    def _sync_directories(self) -> None:
        """One sync of each file system instead of several of each log."""
        for directory in self.directories:
            if not directory.is_online:
                continue
            try:
                self._files.sync_filesystem(directory.path)
            except OSError as error:
                self.fail_directory(directory.path, error)
        for log in self.logs.values():
            if not log.is_offline:
                log.confirm_synced()
