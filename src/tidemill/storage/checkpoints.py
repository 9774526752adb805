"""The small files of a data directory, byte for byte as Apache Kafka writes them.

Offset checkpoints (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`cleaner-offset-checkpoint`, `replication-offset-checkpoint`): a version, a count, one line per partition.

    0
    2
    orders 0 1200
    orders 1 900

`meta.properties` says whose directory this is; a broker refuses a directory of another node or cluster:

    version=1
    node.id=1
    cluster.id=Zk5PPmJcQqKxxxxxxxxxxx
    directory.id=sdwrnM9LR9qxxxxxxxxxxx

`.kafka_cleanshutdown` is there only between a clean shutdown and the next start:
`{"version":0,"brokerEpoch":5}`.

An offset checkpoint that cannot be read is no reason not to start: every offset in it can be found again,
at the price of a longer recovery. So `read_offsets` raises `BadCheckpoint` and its caller goes on
without. `meta.properties` cannot be found again, so there a bad file is an error for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.model.ids import TopicPartition, uuid_from_text, uuid_text
from tidemill.model.properties import BadProperties, format_properties, parse_properties
from tidemill.ports.files import Files

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
NO_BROKER_EPOCH = -1

Offsets = dict[TopicPartition, int]


class BadCheckpoint(TidemillError):
    """A checkpoint file that does not hold what it should; the text names the file and the line."""


# -- offsets -------------------------------------------------------------------------------------------


def read_offsets(files: Files, path: str) -> Offsets:
    """The offsets in this file; none if there is no file."""
    if not files.exists(path):
        return {}
    try:
        return parse_offsets(files.read_all(path).decode())
    except (BadCheckpoint, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    files.write_atomic(path, format_offsets(offsets).encode())


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}"


def parse_offsets(text: str) -> Offsets:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or not lines[1].isascii() or not lines[1].isdigit():
        raise BadCheckpoint("a version and a count should come first")
    if lines[0] != "0":
        raise BadCheckpoint(f"version {lines[0]!r} is not known, only 0 is")
    if len(lines) - 2 != int(lines[1]):
        raise BadCheckpoint(f"{lines[1]} entries are announced and {len(lines) - 2} are there")
    return dict(_parse_line(number, line) for number, line in enumerate(lines[2:], 3))


def _parse_line(number: int, line: str) -> tuple[TopicPartition, int]:
    try:
        topic, partition, offset = line.split()
        return TopicPartition(topic, int(partition)), int(offset)
    except ValueError:
        raise BadCheckpoint(f"line {number} is {line!r}, not a topic, a partition and an offset") from None


# -- meta.properties -----------------------------------------------------------------------------------


class MetaProperties(NamedTuple):
    node_id: int
    cluster_id: str
    directory_id: bytes | None = None
    """Sixteen bytes; None in a directory that an older version formatted."""


def read_meta(files: Files, directory: str) -> MetaProperties | None:
    """Whose directory this is; None if it has not been formatted yet."""
    path = f"{directory}/{META_PROPERTIES}"
    if not files.exists(path):
        return None
    try:
        return _parse_meta(parse_properties(files.read_all(path).decode()))
    except (BadCheckpoint, BadProperties, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def write_meta(files: Files, directory: str, meta: MetaProperties) -> None:
    properties = {"version": "1", "node.id": str(meta.node_id), "cluster.id": meta.cluster_id}
    if meta.directory_id is not None:
        properties["directory.id"] = uuid_text(meta.directory_id)
    files.write_atomic(f"{directory}/{META_PROPERTIES}", format_properties(properties).encode())


def _parse_meta(properties: Mapping[str, str]) -> MetaProperties:
    """Version 1 is today's; version 0, of brokers with ZooKeeper, called the node a broker."""
    version = properties.get("version", "0")
    if version not in ("0", "1"):
        raise BadCheckpoint(f"version {version} is not known, only 0 and 1 are")
    node_id = properties.get("node.id", properties.get("broker.id", ""))
    if not node_id.isascii() or not node_id.isdigit():
        raise BadCheckpoint("node.id is missing or no number")
    if "cluster.id" not in properties:
        raise BadCheckpoint("cluster.id is missing")
    return MetaProperties(
        int(node_id), properties["cluster.id"], _directory_id(properties.get("directory.id"))
    )


def _directory_id(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        raw = uuid_from_text(text)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise BadCheckpoint(f"directory.id is {text!r}, not 22 characters of base 64")
    return raw


# -- the mark of a clean shutdown ----------------------------------------------------------------------


def write_clean_shutdown(files: Files, directory: str, broker_epoch: int) -> None:
    mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    files.write_atomic(f"{directory}/{CLEAN_SHUTDOWN}", mark.encode())


def take_clean_shutdown(files: Files, directory: str) -> int | None:
    """Remove the mark and return its broker epoch; None if the last shutdown was not clean.

    The removal is synced: a crash right after the start must not find the mark again.
    """
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not files.exists(path):
        return None
    data = files.read_all(path)
    files.remove(path)
    files.sync_directory(directory)
    return _broker_epoch(data)


def _broker_epoch(mark: bytes) -> int:
    """Kafka before 4.0 left an empty file; what cannot be read still marks a clean shutdown."""
    try:
        return int(json.loads(mark)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return NO_BROKER_EPOCH
