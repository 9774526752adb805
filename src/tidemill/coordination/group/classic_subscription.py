"""What the members of a classic group of consumers subscribe to, read from the metadata that they send.

The broker hands the metadata of members through as it is. Only to know which topics are in use (may their offsets
be deleted?) it reads the beginning, which is the same in all versions of the consumer protocol:

    i16 version | i32 count | count x (i16 length, name) | ...
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tidemill.model.errors import MalformedMessage
from tidemill.wire.schema import STRING, Message, array, decode

_VERSION = struct.Struct(">h")


class _SubscriptionPrefix(Message, versions=(0, 0)):
    topics: list[str] = array(STRING)


def subscribed_topics(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None if the metadata of one is not that of a consumer."""
    topics: set[str] = set()
    try:
        for metadata in metadata_of_members:
            topics.update(decode(_SubscriptionPrefix, 0, metadata, _VERSION.size).topics)
    except MalformedMessage:
        return None
    return frozenset(topics)
