"""One data directory: whose it is, what lies in it, and the checkpoints about its partitions.

    meta.properties                    node, cluster and the id of this directory
    orders-0/  orders-1/               a partition each
    orders-2.4a5b...-delete/           deleted, the files go later
    orders-3.77f0...-stray/            set aside: no longer assigned to this broker; kept for people to look at
    orders-4.91c2...-future/           a copy on its way from another directory; Kafka's, left alone here
    *-offset-checkpoint                recovery points, log starts, high watermarks, cleaner positions
    .kafka_cleanshutdown               only while the broker is down after a clean shutdown

A directory belongs to one node of one cluster; another's is refused, because serving its data under a wrong
identity would do more harm than not starting. A directory whose disk fails is `offline` until the next start.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.model.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from tidemill.ports.files import Files
from tidemill.ports.randomness import Randomness
from tidemill.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    BadCheckpoint,
    MetaProperties,
    Offsets,
    read_meta,
    read_offsets,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta,
    write_offsets,
)

_LIVE = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)")
_MARKED = re.compile(r".+\.[0-9a-f]{32}-(?P<mark>delete|stray|future)")
_MAX_NAME = 255
CHECKPOINT_FILES = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)


class WrongDirectory(TidemillError):
    """A data directory of another node or cluster, or none at all; the text says what to do."""


class DirectoryListing(NamedTuple):
    partitions: list[tuple[TopicPartition, str]]
    doomed: list[str]
    """Names of deleted partitions whose files are still to be removed."""


def sort_names(names: Sequence[str]) -> DirectoryListing:
    """What the entries of a data directory are; those left out are nobody's business."""
    listing = DirectoryListing([], [])
    for name in sorted(names):
        marked = _MARKED.fullmatch(name)
        live = None if marked else _LIVE.fullmatch(name)
        if marked and marked["mark"] == "delete":
            listing.doomed.append(name)
        elif live and live["topic"] != CLUSTER_METADATA_TOPIC:
            listing.partitions.append((TopicPartition(live["topic"], int(live["partition"])), name))
    return listing


def marked_name(partition: TopicPartition, unique: bytes, mark: str) -> str:
    """The name of a partition's directory on its way out, as Kafka makes it: the topic is cut to fit."""
    tail = f"-{partition.partition}.{unique.hex()}-{mark}"
    return partition.topic[: _MAX_NAME - len(tail)] + tail


class Checkpoints(NamedTuple):
    """What was written down about the partitions of a directory."""

    recovery_points: Offsets
    log_start_offsets: Offsets
    high_watermarks: Offsets
    cleaner_offsets: Offsets


class CheckpointJob:
    """The checkpoints of one directory, to be written in any thread."""

    def __init__(self, directory: DataDirectory, checkpoints: Checkpoints) -> None:
        self.directory = directory
        self._checkpoints = checkpoints
        self._begun = directory.forgotten_count
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            self.directory.write_checkpoints(self._checkpoints, self._begun)
        except OSError as error:
            self.error = error


class DataDirectory:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.directory_id = b""
        self.failure: OSError | None = None
        self.is_clean = False
        """Whether the last shutdown left everything in order."""
        self.previous_broker_epoch: int | None = None
        self.unreadable: list[str] = []
        """Checkpoints that could not be read and are done without."""
        self._written: dict[str, Offsets] = {}
        self._writing = threading.Lock()
        self._forgotten: list[TopicPartition] = []

    @property
    def is_online(self) -> bool:
        return self.failure is None

    # -- identity -------------------------------------------------------------------------------------

    def claim(self, node_id: int, cluster_id: str, randomness: Randomness) -> None:
        """Make the directory ours, or make sure that it is; raises WrongDirectory."""
        self._files.make_directory(self.path)
        meta = _read_identity(self._files, self.path)
        if meta is None or meta.directory_id is None:
            meta = meta or MetaProperties(node_id, cluster_id)
            meta = meta._replace(directory_id=randomness.uuid())
            _check_identity(self.path, meta, node_id, cluster_id)
            write_meta(self._files, self.path, meta)
        _check_identity(self.path, meta, node_id, cluster_id)
        assert meta.directory_id is not None
        self.directory_id = meta.directory_id

    # -- checkpoints ----------------------------------------------------------------------------------

    def take_over(self) -> Checkpoints:
        """Read what the last run wrote down, and remove the mark of its clean end."""
        self.previous_broker_epoch = take_clean_shutdown(self._files, self.path)
        self.is_clean = self.previous_broker_epoch is not None
        checkpoints = Checkpoints(*(self._read(name) for name in CHECKPOINT_FILES))
        self._written = dict(zip(CHECKPOINT_FILES, checkpoints, strict=True))
        return checkpoints

    def _read(self, name: str) -> Offsets:
        try:
            return read_offsets(self._files, f"{self.path}/{name}")
        except BadCheckpoint as error:
            self.unreadable.append(str(error))
            return {}

    @property
    def forgotten_count(self) -> int:
        return len(self._forgotten)

    def write_checkpoints(self, checkpoints: Checkpoints, begun: int = 0) -> None:
        """Write those that changed, without what was forgotten since they were collected; in any thread."""
        with self._writing:
            forgotten = set(self._forgotten[begun:])
            for name, collected in zip(CHECKPOINT_FILES, checkpoints, strict=True):
                offsets = {key: offset for key, offset in collected.items() if key not in forgotten}
                if offsets != self._written.get(name):
                    write_offsets(self._files, f"{self.path}/{name}", offsets)
                    self._written[name] = offsets

    def forget(self, partition: TopicPartition) -> None:
        """A partition is made again under an old name: what was written down about the old one must go first."""
        with self._writing:
            for name in CHECKPOINT_FILES:
                offsets = self._written.get(name, {})
                if partition in offsets:
                    self._forgotten.append(partition)
                    self._written[name] = {key: offset for key, offset in offsets.items() if key != partition}
                    write_offsets(self._files, f"{self.path}/{name}", self._written[name])

    def mark_clean(self, broker_epoch: int) -> None:
        write_clean_shutdown(self._files, self.path, broker_epoch)

    def list(self) -> DirectoryListing:
        return sort_names(self._files.list(self.path))

    def free_bytes(self) -> int:
        return self._files.free_bytes(self.path)

    def total_bytes(self) -> int:
        return self._files.total_bytes(self.path)


def require_ours(files: Files, paths: Sequence[str], node_id: int, cluster_id: str) -> None:
    """Before anything is written: no formatted directory is another's; raises WrongDirectory.

    One that cannot be looked into is a failed disk, which its opening will find.
    """
    for path in paths:
        with suppress(OSError):
            meta = _read_identity(files, path)
            if meta is not None:
                _check_identity(path, meta, node_id, cluster_id)


def _read_identity(files: Files, path: str) -> MetaProperties | None:
    try:
        return read_meta(files, path)
    except BadCheckpoint as error:
        raise WrongDirectory(
            f"{error}; restore the file, or empty the directory if its data may go"
        ) from error


def _check_identity(path: str, meta: MetaProperties, node_id: int, cluster_id: str) -> None:
    if meta.cluster_id != cluster_id:
        raise WrongDirectory(
            f"{path} belongs to the cluster {meta.cluster_id}, this broker to {cluster_id}; "
            "start it with that cluster id, or with another data directory"
        )
    if meta.node_id != node_id:
        raise WrongDirectory(
            f"{path} belongs to node {meta.node_id}, this is node {node_id}; "
            f"start it with --set node.id={meta.node_id}, or with another data directory"
        )


def cluster_id_in(files: Files, paths: Sequence[str]) -> str | None:
    """The cluster that formatted directories belong to; None if none is formatted. The first one decides."""
    for path in paths:
        try:
            meta = read_meta(files, path)
        except (BadCheckpoint, OSError):
            continue
        if meta is not None:
            return meta.cluster_id
    return None


def only_of(offsets: Mapping[TopicPartition, int], partitions: set[TopicPartition]) -> Offsets:
    return {partition: offset for partition, offset in offsets.items() if partition in partitions}
