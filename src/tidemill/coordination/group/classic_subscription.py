"""What consumers of the classic protocol say to each other, as far as the broker reads it.

The broker hands subscriptions and assignments of a classic group through as they are. It reads them for two ends: to
know which topics are in use (may their offsets be deleted?), for which the beginning is enough, the same in all
versions; and to make members of a consumer group out of members of a classic one, and the other way round:

    i16 version | i32 count | count x (i16 length, name) | user data | from version 1: partitions owned | ...

A version that is newer than what we know is read as the newest that we know: later ones only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from tidemill.model.errors import MalformedMessage
from tidemill.wire.schema import INT32, STRING, Message, array, blob, decode, encode, int32, string

_VERSION = struct.Struct(">h")
NEWEST_VERSION = 3


class _SubscriptionPrefix(Message, versions=(0, 0)):
    topics: list[str] = array(STRING)


class TopicPartitions(Message):
    topic: str = string()
    partitions: list[int] = array(INT32)


class Subscription(Message, versions=(0, NEWEST_VERSION)):
    topics: list[str] = array(STRING)
    user_data: bytes | None = blob(default=None, nullable_since=0)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1)
    generation_id: int = int32(default=-1, since=2)
    rack_id: str | None = string(default=None, since=3, nullable_since=3)


class AssignedPartitions(Message, versions=(0, NEWEST_VERSION)):
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = blob(default=None, nullable_since=0)


def subscribed_topics(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None if the metadata of one is not that of a consumer."""
    topics: set[str] = set()
    try:
        for metadata in set(metadata_of_members):  # most say the same
            topics.update(decode(_SubscriptionPrefix, 0, metadata, _VERSION.size).topics)
    except MalformedMessage:
        return None
    return frozenset(topics)


def version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage("there is no version")
    (version,) = _VERSION.unpack_from(data)
    return max(0, min(int(version), NEWEST_VERSION))


def read_subscription(data: bytes) -> Subscription:
    return decode(Subscription, version_of(data), data, _VERSION.size)


def read_assignment(data: bytes) -> dict[str, frozenset[int]]:
    """Topic name to partitions; a member that was never assigned anything has no bytes at all."""
    if not data:
        return {}
    message = decode(AssignedPartitions, version_of(data), data, _VERSION.size)
    return {entry.topic: frozenset(entry.partitions) for entry in message.assigned_partitions}


def write_assignment(assignment: Mapping[str, Iterable[int]], version: int) -> bytes:
    message = AssignedPartitions(
        assigned_partitions=[
            TopicPartitions(topic=topic, partitions=sorted(indexes))
            for topic, indexes in sorted(assignment.items())
        ]
    )
    return _VERSION.pack(version) + encode(message, version)
