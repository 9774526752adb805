"""ShareAcknowledge: v1-2, as Apache Kafka 4.3. Says what became of records, without reading others.

Version 2 can renew locks; it is told so by `is_renew_ack`.
"""

from __future__ import annotations

import asyncio

from tidemill.api.context import RequestContext
from tidemill.api.share_members import ShareMembers, checked_session_key
from tidemill.api.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, SharedPartition
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

NO_LEADER = -1


class ShareAcknowledgeApi:
    def __init__(self, members: ShareMembers) -> None:
        self._members = members

    async def share_acknowledge(
        self, context: RequestContext, request: ShareAcknowledgeRequest
    ) -> ShareAcknowledgeResponse:
        key = checked_session_key(request.group_id, request.member_id)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a session begins with a fetch")
        session = self._members.sessions.proceed(key, request.share_session_epoch)
        asked = [
            (SharedPartition(topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
            for topic in request.topics
            for partition in topic.partitions
            if partition.acknowledgement_batches
        ]
        results = self._members.acknowledge(key, asked, request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH:
            self._members.leave(session)
        topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
        for where, result in results.items():  # shielded: a client that goes away stops no write
            topic = topics.setdefault(where.topic_id, ShareAcknowledgeTopicResponse(topic_id=where.topic_id))
            topic.partitions.append(_partition(where.partition, await asyncio.shield(result)))
        lock_ms = self._members.partitions.settings(key.group_id).limits.record_lock_duration_ms
        return ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms, responses=list(topics.values()))


def _partition(index: int, error: ApiError | None) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=(error.message or None) if error is not None else None,
        current_leader=LeaderIdAndEpoch(leader_id=NO_LEADER, leader_epoch=NO_LEADER),
    )
