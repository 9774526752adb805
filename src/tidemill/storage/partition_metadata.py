"""`partition.metadata`: which topic, by id, a partition's directory belongs to.

    version: 0
    topic_id: 1f9LZ3ucTBOvaXpMOeWbNA

A directory named `orders-3` may be left over from a deleted topic `orders`; the id tells them apart. The last
line has no end, as in Kafka's files.

It is synced with the first flush of the log, not when it is written: a power loss before may leave it empty (or
full of zeros), which is the same as missing.
"""

from __future__ import annotations

from tidemill.model.errors import CorruptLog
from tidemill.model.ids import ZERO_UUID, uuid_from_text, uuid_text
from tidemill.ports.files import Files

FILE_NAME = "partition.metadata"
_VERSION = "0"


def read_topic_id(files: Files, directory: str) -> bytes | None:
    """The id in the file, or None if there is none; raises CorruptLog if the file is none of its kind."""
    path = f"{directory}/{FILE_NAME}"
    data = files.read_all(path).rstrip(b"\0") if files.exists(path) else b""
    if not data:
        return None
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
        topic_id = uuid_from_text(fields["topic_id"])
    except (ValueError, KeyError) as error:
        raise CorruptLog(f"{path} is damaged: {error}") from error
    if fields.get("version") != _VERSION or len(topic_id) != 16 or topic_id == ZERO_UUID:
        raise CorruptLog(f"{path} is damaged: {fields}")
    return topic_id


def write_topic_id(files: Files, directory: str, topic_id: bytes) -> None:
    text = f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}"
    files.write_atomic(f"{directory}/{FILE_NAME}", text.encode(), sync=False)
