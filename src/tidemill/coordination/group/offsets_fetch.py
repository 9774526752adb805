"""OffsetFetch (versions 1-10), for one group of a request.

From version 8 a request asks for several groups, which may live on different shards: the answer here is the part of
one group, in the shape of version 8, and the api layer joins the parts (and moves the only part to the top for older
versions). `topics` None asks for all. From version 10 topics come by id: whoever calls has put the names in.

A partition without a committed offset is -1 without an error, as is everything of a group that does not exist. With
`require_stable` a partition for which a transaction is open is UNSTABLE_OFFSET_COMMIT: the consumer asks again.
"""

from __future__ import annotations

from tidemill.coordination.group.contract import Group
from tidemill.coordination.group.offsets import CommittedOffset, Offsets, PartitionKey
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

NO_OFFSET = -1


def fetch_offsets(
    group: Group | None, offsets: Offsets, request: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    try:
        if group is not None:
            group.check_offset_fetch(request.member_id, request.member_epoch)
    except ApiError as failure:
        response.error_code = failure.code
        return response
    reader = _Reader(offsets, request.group_id, require_stable)
    response.topics = reader.all() if request.topics is None else reader.some(request)
    return response


class _Reader:
    def __init__(self, offsets: Offsets, group_id: str, require_stable: bool) -> None:
        self._offsets = offsets
        self._group_id = group_id
        self._require_stable = require_stable

    def some(self, request: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
        committed = self._offsets.of_group(self._group_id)
        return [
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    self._partition((topic.name, index), committed.get((topic.name, index)))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]

    def all(self) -> list[OffsetFetchResponseTopics]:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for key, committed in self._offsets.of_group(self._group_id).items():
            topic = topics.setdefault(key[0], OffsetFetchResponseTopics(name=key[0]))
            if committed.topic_id != ZERO_UUID:
                topic.topic_id = committed.topic_id
            topic.partitions.append(self._partition(key, committed))
        return list(topics.values())

    def _partition(
        self, key: PartitionKey, committed: CommittedOffset | None
    ) -> OffsetFetchResponsePartitions:
        if self._require_stable and self._offsets.is_pending(self._group_id, key):
            return _nothing(key, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if committed is None:
            return _nothing(key, ErrorCode.NONE)
        return OffsetFetchResponsePartitions(
            partition_index=key[1],
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )


def _nothing(key: PartitionKey, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=key[1], committed_offset=NO_OFFSET, metadata="", error_code=code
    )
