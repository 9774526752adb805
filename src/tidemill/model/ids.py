"""Names of things: partitions, topic ids, producers. Frozen values without behaviour."""

from __future__ import annotations

import base64
from typing import NamedTuple

ZERO_UUID = bytes(16)
"""The id of nothing; a topic id is any other 16 bytes."""

NO_PRODUCER_ID = -1
NO_LEADER = -1
CLUSTER_METADATA_TOPIC = "__cluster_metadata"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def uuid_text(raw: bytes) -> str:
    """A topic or directory id as Kafka prints it: 22 characters of URL-safe base 64."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_from_text(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
