"""Committed offsets in single protocol messages, for tests that look at them while brokers die."""

from __future__ import annotations

from tidemill.testing import WireClient
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

BY_NAME_VERSION = 9
"""The last one that names topics; later ones carry topic ids."""


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int] | None:
    """By partition, without those that have none; None when the broker is away or still loads."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(partitions)))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    try:
        with WireClient(bootstrap, timeout_seconds=5) as connection:
            (answer,) = connection.call(request, BY_NAME_VERSION).groups
    except OSError:
        return None
    if answer.error_code:
        return None
    found = [partition for each in answer.topics for partition in each.partitions]
    return {each.partition_index: each.committed_offset for each in found if each.committed_offset >= 0}
