"""OffsetCommit (versions 2-10), TxnOffsetCommit (versions 0-5) and OffsetDelete (version 0), for one group.

Whether the member may commit at all the group decides (`Group.check_commit`); a refusal is the error of every
partition. After that each partition succeeds or fails by itself: metadata longer than `offset.metadata.max.bytes` is
OFFSET_METADATA_TOO_LARGE.

A commit with generation -1 to a group that does not exist makes one: a *simple* group, which has offsets and never
had members. The group appears when the record is replayed.

Version notes: OffsetCommit 2-4 may say for how long the offset is kept. From 9 an unknown group is GROUP_ID_NOT_FOUND,
before it is ILLEGAL_GENERATION. From 10 topics come by id: whoever calls has put the names in, ids are handed through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group.contract import Group, RequestContext, Step
from tidemill.coordination.group.offsets import (
    NO_TIMESTAMP,
    OFFSET_COMMIT_VERSION,
    OFFSET_COMMIT_VERSION_WITH_EXPIRY,
    Offsets,
    offset_record,
    offset_tombstone,
)
from tidemill.coordination.records.group_records import OffsetCommitValue
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9
DEFAULT_RETENTION = -1

# -- OffsetCommit -----------------------------------------------------------------------------------------


def commit_offsets(
    group: Group | None, request: OffsetCommitRequest, context: RequestContext, max_metadata: int, step: Step
) -> OffsetCommitResponse:
    """The whole response; refusals of the group are in all of its partitions."""
    try:
        _check_commit(group, request, context)
    except ApiError as failure:
        return refused_commit(request, failure.code)
    if group is not None:
        group.keep_session(request.member_id, step)
    expire_ms = _expire_timestamp_ms(request.retention_time_ms, step.now_ms)

    def commit(
        topic: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition
    ) -> OffsetCommitResponsePartition:
        code = _metadata_error(partition.committed_metadata, max_metadata)
        if code is ErrorCode.NONE:
            value = _value(partition, step.now_ms, topic.topic_id)
            value.expire_timestamp = expire_ms
            step.append(_record(request.group_id, topic.name, partition.partition_index, value))
        return OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)

    return _commit_response(request, commit)


def refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return _commit_response(
        request,
        lambda _, partition: OffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=code
        ),
    )


def _check_commit(group: Group | None, request: OffsetCommitRequest, context: RequestContext) -> None:
    generation = request.generation_id_or_member_epoch
    if group is not None:
        group.check_commit(
            request.member_id,
            request.group_instance_id,
            generation,
            is_transactional=False,
            api_version=context.api_version,
            partitions=_partitions(request),
        )
    elif generation >= 0:
        is_new = context.api_version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)


def _commit_response(
    request: OffsetCommitRequest,
    answer: Callable[[OffsetCommitRequestTopic, OffsetCommitRequestPartition], OffsetCommitResponsePartition],
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[answer(topic, partition) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


# -- TxnOffsetCommit --------------------------------------------------------------------------------------


def commit_transactional_offsets(
    group: Group | None, request: TxnOffsetCommitRequest, max_metadata: int, step: Step
) -> TxnOffsetCommitResponse:
    """The whole response. The records are to be appended in a transactional batch of the request's producer."""
    try:
        _check_transactional_commit(group, request)
    except ApiError as failure:
        return refused_transactional_commit(request, failure.code)

    def commit(
        topic: TxnOffsetCommitRequestTopic, partition: TxnOffsetCommitRequestPartition
    ) -> TxnOffsetCommitResponsePartition:
        code = _metadata_error(partition.committed_metadata, max_metadata)
        if code is ErrorCode.NONE:
            value = _value(partition, step.now_ms)
            step.append(_record(request.group_id, topic.name, partition.partition_index, value))
        return TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)

    return _transactional_response(request, commit)


def refused_transactional_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return _transactional_response(
        request,
        lambda _, partition: TxnOffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=code
        ),
    )


def _check_transactional_commit(group: Group | None, request: TxnOffsetCommitRequest) -> None:
    if group is not None:
        group.check_commit(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            is_transactional=True,
            api_version=0,
            partitions=_partitions(request),
        )
    elif request.generation_id >= 0:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)


def _transactional_response(
    request: TxnOffsetCommitRequest,
    answer: Callable[
        [TxnOffsetCommitRequestTopic, TxnOffsetCommitRequestPartition], TxnOffsetCommitResponsePartition
    ],
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name, partitions=[answer(topic, partition) for partition in topic.partitions]
            )
            for topic in request.topics
        ]
    )


# -- what both write --------------------------------------------------------------------------------------


def _partitions(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterator[tuple[str, int]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index


def _metadata_error(metadata: str | None, max_metadata: int) -> ErrorCode:
    """The limit is one of bytes by its name; Kafka counts units of UTF-16."""
    is_too_large = metadata is not None and len(metadata.encode("utf-16-le")) > 2 * max_metadata
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_large else ErrorCode.NONE


def _value(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: int,
    topic_id: bytes = bytes(16),
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        topic_id=topic_id,
    )


def _record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    has_expiry = value.expire_timestamp != NO_TIMESTAMP
    version = OFFSET_COMMIT_VERSION_WITH_EXPIRY if has_expiry else OFFSET_COMMIT_VERSION
    return offset_record(group_id, (topic, partition), value, version)


LAST_TIMESTAMP = 0x7FFF_FFFF_FFFF_FFFF


def _expire_timestamp_ms(retention_time_ms: int, now_ms: int) -> int:
    """Never before now, and never beyond what 64 bits can say."""
    if retention_time_ms == DEFAULT_RETENTION:
        return NO_TIMESTAMP
    return min(now_ms + max(retention_time_ms, 0), LAST_TIMESTAMP)


# -- OffsetDelete -----------------------------------------------------------------------------------------


def delete_offsets(
    group: Group | None, offsets: Offsets, request: OffsetDeleteRequest, step: Step
) -> OffsetDeleteResponse:
    """The whole response. Topics that the group reads keep their offsets (GROUP_SUBSCRIBED_TO_TOPIC)."""
    if group is None:
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    try:
        group.check_offset_delete()
    except ApiError as failure:
        return OffsetDeleteResponse(error_code=failure.code)
    topics = [_delete_topic(group, offsets, topic, step) for topic in request.topics]
    return OffsetDeleteResponse(topics=topics)


def _delete_topic(
    group: Group, offsets: Offsets, topic: OffsetDeleteRequestTopic, step: Step
) -> OffsetDeleteResponseTopic:
    is_subscribed = group.is_subscribed_to(topic.name)
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
    response = OffsetDeleteResponseTopic(name=topic.name)
    for partition in topic.partitions:
        key = (topic.name, partition.partition_index)
        exists = key in offsets.of_group(group.group_id) or offsets.is_pending(group.group_id, key)
        if exists and not is_subscribed:
            step.append(offset_tombstone(group.group_id, key))
        response.partitions.append(
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
        )
    return response
