"""OffsetCommit v2-10, OffsetFetch v1-10, OffsetDelete v0: how far groups have read.

Topics travel by name, from v10 on by id; the coordinator knows names alone. What concerns a partition that does not
exist is answered here, and only the rest is asked of the coordinator. These responses have a place for errors with each
partition and mostly none for the whole, so a refused request answers the same code everywhere.
"""

from __future__ import annotations

from tidemill.api.context import RequestContext
from tidemill.api.groups import group_context
from tidemill.api.services import Services
from tidemill.metadata.image import MetadataImage
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
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TOPIC_ID_SINCE = 10
BATCHED_FETCH_SINCE = 8
GROUP_ERROR_SINCE = 2
NO_OFFSET = -1


class GroupOffsetApi:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = services.groups

    # -- OffsetCommit ---------------------------------------------------------------------------------

    async def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse:
        image = self._services.metadata.image
        answers = [_refuse_missing(topic, image, context.version) for topic in request.topics]
        accepted = [topic for topic in request.topics if topic.partitions]
        if accepted:
            committed = iter(await self._commit(context, request, accepted))
            for topic, answer in zip(request.topics, answers, strict=True):
                if topic.partitions:
                    answer.partitions += next(committed).partitions
        return OffsetCommitResponse(topics=[answer for answer in answers if answer.partitions])

    async def _commit(
        self, context: RequestContext, request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic]
    ) -> list[OffsetCommitResponseTopic]:
        """What became of these topics, in their order."""
        wanted = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=topics,
        )
        asked = group_context(context)
        try:
            response: OffsetCommitResponse = await self._groups.submit(
                request.group_id,
                lambda core, token, now_ms: core.commit_offsets(wanted, asked, token, now_ms),
            )
        except ApiError as error:
            return [_refused_commit(topic, topic.partitions, error.code) for topic in topics]
        return response.topics

    # -- OffsetFetch ----------------------------------------------------------------------------------

    async def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if context.version >= BATCHED_FETCH_SINCE:
            return OffsetFetchResponse(
                groups=[await self._fetch(context, group, request.require_stable) for group in request.groups]
            )
        topics = request.topics
        group = OffsetFetchRequestGroup(
            group_id=request.group_id,
            topics=None
            if topics is None
            else [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in topics
            ],
        )
        return _unbatched(await self._fetch(context, group, request.require_stable), group, context.version)

    async def _fetch(
        self, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        by_id = context.version >= TOPIC_ID_SINCE
        unknown = self._name_topics(group) if by_id else []
        try:
            response: OffsetFetchResponseGroup = await self._groups.submit(
                group.group_id,
                lambda core, token, now_ms: core.fetch_offsets(group, require_stable, token, now_ms),
            )
        except ApiError as error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        if by_id:
            response.topics = [*self._with_ids(response.topics), *unknown]
        return response

    def _name_topics(self, group: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
        """Give the topics of the request their names; those that have none are taken out and answered."""
        if group.topics is None:
            return []
        known, by_id = [], self._services.metadata.image.topics_by_id
        unknown = []
        for topic in group.topics:
            state = by_id.get(topic.topic_id)
            if state is not None:
                topic.name = state.name
                known.append(topic)
            else:
                unknown.append(_unknown_topic(topic))
        group.topics = known
        return unknown

    def _with_ids(self, topics: list[OffsetFetchResponseTopics]) -> list[OffsetFetchResponseTopics]:
        """Offsets of topics that are gone cannot be named in these versions and are left out."""
        image = self._services.metadata.image
        named = [topic for topic in topics if topic.name in image.topics]
        for topic in named:
            topic.topic_id = image.topics[topic.name].topic_id
        return named

    # -- OffsetDelete ---------------------------------------------------------------------------------

    async def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the name of the group is empty")
        image = self._services.metadata.image
        answers = [_refuse_missing_delete(topic, image) for topic in request.topics]
        wanted = OffsetDeleteRequest(
            group_id=request.group_id, topics=[topic for topic in request.topics if topic.partitions]
        )
        response: OffsetDeleteResponse = await self._groups.submit(
            request.group_id, lambda core, token, now_ms: core.delete_offsets(wanted, token, now_ms)
        )
        if response.error_code == 0:
            deleted = iter(response.topics)
            for topic, answer in zip(request.topics, answers, strict=True):
                if topic.partitions:
                    answer.partitions += next(deleted).partitions
            response.topics = [answer for answer in answers if answer.partitions]
        return response


def _refuse_missing(
    topic: OffsetCommitRequestTopic, image: MetadataImage, version: int
) -> OffsetCommitResponseTopic:
    """Take the partitions that do not exist out of the request, and answer them; the topic's name is then known."""
    is_by_id = version >= TOPIC_ID_SINCE
    state = image.topics_by_id.get(topic.topic_id) if is_by_id else image.topics.get(topic.name)
    if state is not None:
        topic.name, topic.topic_id = state.name, state.topic_id
    is_unknown_id = is_by_id and state is None
    code = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known = {} if state is None else state.partitions
    missing = [partition for partition in topic.partitions if partition.partition_index not in known]
    topic.partitions = [partition for partition in topic.partitions if partition.partition_index in known]
    return _refused_commit(topic, missing, code)


def _refused_commit(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition], code: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in partitions
        ],
    )


def _refuse_missing_delete(
    topic: OffsetDeleteRequestTopic, image: MetadataImage
) -> OffsetDeleteResponseTopic:
    """Take the partitions that do not exist out of the request, and answer them."""
    known = image.topics[topic.name].partitions if topic.name in image.topics else {}
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = [partition for partition in topic.partitions if partition.partition_index not in known]
    topic.partitions = [partition for partition in topic.partitions if partition.partition_index in known]
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in missing
        ],
    )


def _unknown_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[_no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes],
    )


def _no_offset(index: int, code: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
    )


def _unbatched(
    answer: OffsetFetchResponseGroup, group: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """The shape of v1-7: one group, whose error stands with each partition where there is no other place."""
    topics = answer.topics
    if answer.error_code and version < GROUP_ERROR_SINCE:
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[_no_offset(index, answer.error_code) for index in topic.partition_indexes],
            )
            for topic in group.topics or ()
        ]
    return OffsetFetchResponse(
        error_code=answer.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
