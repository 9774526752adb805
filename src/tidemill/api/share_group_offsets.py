"""DescribeShareGroupOffsets v0-1, AlterShareGroupOffsets v0 and DeleteShareGroupOffsets v0: where a share group stands.

A share group has no committed offsets. Where it begins in a partition, its start offset, is part of the state that the
share coordinator keeps; to set it means to begin that state anew, to delete it means to forget the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.api.share_groups import ShareGroupApi, require_name
from tidemill.coordination.group.share_heartbeat import Initialization
from tidemill.coordination.share.persister import (
    NO_EPOCH,
    UNCHANGED_START_OFFSET,
    SharePartitionKey,
    StateSummary,
)
from tidemill.metadata.image import TopicState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.wire.messages import alter_share_group_offsets as alter_messages
from tidemill.wire.messages import delete_share_group_offsets as delete_messages
from tidemill.wire.messages import describe_share_group_offsets as describe_messages

if TYPE_CHECKING:
    from tidemill.coordination.group.assignor import Assignment

UNKNOWN_LAG = -1
NO_TOPIC_ID = bytes(16)


class ShareGroupOffsetApi:
    def __init__(self, services: Services, groups: ShareGroupApi) -> None:
        self._services = services
        self._groups = groups
        self._persister = services.coordinators.share_persister

    # -- describe -------------------------------------------------------------------------------------

    async def describe(
        self, context: RequestContext, request: describe_messages.DescribeShareGroupOffsetsRequest
    ) -> describe_messages.DescribeShareGroupOffsetsResponse:
        return describe_messages.DescribeShareGroupOffsetsResponse(
            groups=[await self._describe_group(group) for group in request.groups]
        )

    async def _describe_group(
        self, asked: describe_messages.DescribeShareGroupOffsetsRequestGroup
    ) -> describe_messages.DescribeShareGroupOffsetsResponseGroup:
        group_id = asked.group_id
        answer = describe_messages.DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        try:
            initialized: Assignment = await self._groups.submit(
                group_id, lambda share, token, step: share.initialized(group_id, token, step)
            )
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message or None
            return answer
        if asked.topics is None:
            wanted = [(self._name_of(topic_id), sorted(initialized[topic_id])) for topic_id in initialized]
        else:
            wanted = [(topic.topic_name, topic.partitions) for topic in asked.topics]
        answer.topics = [
            await self._describe_topic(group_id, name, indexes) for name, indexes in wanted if name
        ]
        return answer

    async def _describe_topic(
        self, group_id: str, name: str, indexes: list[int]
    ) -> describe_messages.DescribeShareGroupOffsetsResponseTopic:
        topic = self._topic(name)
        topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        return describe_messages.DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=topic_id,
            partitions=[
                await self._describe_partition(SharePartitionKey(group_id, topic_id, index), name)
                for index in indexes
            ],
        )

    async def _describe_partition(
        self, key: SharePartitionKey, topic: str
    ) -> describe_messages.DescribeShareGroupOffsetsResponsePartition:
        answer = describe_messages.DescribeShareGroupOffsetsResponsePartition(
            partition_index=key.partition, start_offset=UNCHANGED_START_OFFSET
        )
        if key.topic_id == NO_TOPIC_ID:
            return answer
        try:
            summary = await self._persister.summary(key)
        except ApiError as error:
            answer.leader_epoch = NO_EPOCH
            answer.error_code, answer.error_message = error.code, error.message or None
            return answer
        answer.start_offset, answer.leader_epoch = summary.start_offset, summary.leader_epoch
        answer.lag = self._lag(TopicPartition(topic, key.partition), summary)
        return answer

    def _lag(self, where: TopicPartition, summary: StateSummary) -> int:
        """What is not finished yet, up to the high watermark."""
        partition = self._services.replicas.partitions.get(where)
        if partition is None or summary.start_offset < 0 or summary.delivery_complete_count < 0:
            return UNKNOWN_LAG
        return max(0, partition.high_watermark - summary.start_offset - summary.delivery_complete_count)

    # -- alter ----------------------------------------------------------------------------------------

    async def alter(
        self, context: RequestContext, request: alter_messages.AlterShareGroupOffsetsRequest
    ) -> alter_messages.AlterShareGroupOffsetsResponse:
        require_name(request.group_id)
        offsets: dict[tuple[str, int], int] = {}
        failures: dict[tuple[str, int], ApiError] = {}
        for asked in request.topics:
            for partition in asked.partitions:
                where = (asked.topic_name, partition.partition_index)
                try:
                    self._check_start(TopicPartition(*where), partition.start_offset)
                    offsets[where] = partition.start_offset
                except ApiError as error:
                    failures[where] = error
        if request.topics:
            failures |= await self._alter(request.group_id, offsets)
        return alter_messages.AlterShareGroupOffsetsResponse(
            responses=[self._altered(topic, failures) for topic in request.topics]
        )

    def _check_start(self, where: TopicPartition, offset: int) -> None:
        """A group that begins beyond the end would wait there for ever."""
        partition = self._services.replicas.partitions.get(where)
        if partition is None or self._topic(where.topic) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
        end = partition.high_watermark
        if not 0 <= offset <= end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{where} ends at {end}, and begins at 0 or later")

    async def _alter(
        self, group_id: str, offsets: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], ApiError]:
        """What failed, and why."""
        topics = self._services.metadata.image.topics
        wanted = {(topics[name].topic_id, index): offset for (name, index), offset in offsets.items()}
        partitions: dict[bytes, frozenset[int]] = {}
        for topic_id, index in wanted:
            partitions[topic_id] = partitions.get(topic_id, frozenset()) | {index}
        initialization: Initialization = await self._groups.submit(
            group_id, lambda share, token, step: share.begin_alter(group_id, partitions, token, step)
        )
        failures = await self._groups.initialize(group_id, initialization, wanted)
        return {(self._name_of(topic_id), index): error for (topic_id, index), error in failures.items()}

    def _altered(
        self,
        asked: alter_messages.AlterShareGroupOffsetsRequestTopic,
        failures: dict[tuple[str, int], ApiError],
    ) -> alter_messages.AlterShareGroupOffsetsResponseTopic:
        topic = self._topic(asked.topic_name)
        answer = alter_messages.AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
        answer.topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        for partition in asked.partitions:
            index = partition.partition_index
            error = failures.get((asked.topic_name, index))
            answer.partitions.append(
                alter_messages.AlterShareGroupOffsetsResponsePartition(
                    partition_index=index,
                    error_code=ErrorCode.NONE if error is None else error.code,
                    error_message=None if error is None else error.message or None,
                )
            )
        return answer

    # -- delete ---------------------------------------------------------------------------------------

    async def delete(
        self, context: RequestContext, request: delete_messages.DeleteShareGroupOffsetsRequest
    ) -> delete_messages.DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        require_name(group_id)
        named = {asked.topic_name: self._topic(asked.topic_name) for asked in request.topics}
        topic_ids = [topic.topic_id for topic in named.values() if topic is not None]
        try:
            partitions: Assignment = await self._groups.submit(
                group_id, lambda share, token, step: share.begin_delete(group_id, topic_ids, token, step)
            )
        except ApiError as error:
            return delete_messages.DeleteShareGroupOffsetsResponse(
                error_code=error.code, error_message=error.message or None
            )
        failures = await self._groups.delete_state(group_id, partitions)
        deleted = [topic_id for topic_id in partitions if topic_id not in failures]
        await self._groups.submit(
            group_id, lambda share, token, step: share.state_deleted(group_id, deleted, token, step)
        )
        return delete_messages.DeleteShareGroupOffsetsResponse(
            responses=[_deleted(name, topic, partitions, failures) for name, topic in named.items()]
        )

    def _topic(self, name: str) -> TopicState | None:
        return self._services.metadata.image.topics.get(name)

    def _name_of(self, topic_id: bytes) -> str:
        topic = self._services.metadata.image.topics_by_id.get(topic_id)
        return "" if topic is None else topic.name


def _deleted(
    name: str, topic: TopicState | None, partitions: Assignment, failures: dict[bytes, ApiError]
) -> delete_messages.DeleteShareGroupOffsetsResponseTopic:
    answer = delete_messages.DeleteShareGroupOffsetsResponseTopic(topic_name=name)
    error: ApiError | None = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
    if topic is not None and topic.topic_id in partitions:
        answer.topic_id = topic.topic_id
        error = failures.get(topic.topic_id)
    elif topic is not None:
        error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")
    if error is not None:
        answer.error_code, answer.error_message = error.code, error.message or None
    return answer
