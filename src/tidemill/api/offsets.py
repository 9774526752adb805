"""ListOffsets v1-11, OffsetForLeaderEpoch v2-4, DeleteRecords v0-2: questions about places in a log."""

from __future__ import annotations

import logging

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.api.timestamps import find_by_time, find_from_batch
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidemill.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version of ListOffsets that brought each special timestamp; older ones do not know it."""
UP_TO_HIGH_WATERMARK = -1
READ_COMMITTED = 1

Found = tuple[int, int, int]
"""Timestamp, offset, leader epoch."""
NOTHING: Found = (-1, -1, -1)

logger = logging.getLogger(__name__)


class OffsetApi:
    def __init__(self, services: Services) -> None:
        self._partitions = services.replicas.partitions

    def _partition(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get(TopicPartition(topic, index))
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    # -- ListOffsets ----------------------------------------------------------------------------------

    async def list_offsets(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        committed_only = request.isolation_level == READ_COMMITTED
        response = ListOffsetsResponse()
        for topic in request.topics:
            answers = [
                await self._list_one(context.version, topic.name, asked, committed_only, request.replica_id)
                for asked in topic.partitions
            ]
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return response

    async def _list_one(
        self, version: int, topic: str, asked: ListOffsetsPartition, committed_only: bool, replica_id: int
    ) -> ListOffsetsPartitionResponse:
        answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        try:
            _require_known_timestamp(asked.timestamp, version)
            partition = self._partition(topic, asked.partition_index)
            if asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP:
                found = await _find_by_time(partition, asked, committed_only, replica_id)
            else:
                found = _find(partition, asked, committed_only, replica_id)
            answer.timestamp, answer.offset, answer.leader_epoch = found
        except ApiError as error:
            answer.error_code = error.code
        except OSError as error:
            logger.error("cannot look for a timestamp in %s-%d: %s", topic, asked.partition_index, error)
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer

    # -- OffsetForLeaderEpoch -------------------------------------------------------------------------

    async def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._epoch_end(
                            topic.topic, asked.partition, asked.current_leader_epoch, asked.leader_epoch
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, index: int, current_epoch: int, epoch: int) -> EpochEndOffset:
        answer = EpochEndOffset(partition=index)
        try:
            log = self._partition(topic, index).leader_log(current_epoch)
            answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(epoch)
        except ApiError as error:
            answer.error_code = error.code
        return answer

    # -- DeleteRecords --------------------------------------------------------------------------------

    async def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete_before(topic.name, asked.partition_index, asked.offset)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _delete_before(self, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
        answer = DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
        try:
            partition = self._partition(topic, index)
            log = partition.leader_log()
            if not log.config.is_deleted:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION, "records of a topic without cleanup.policy=delete stay"
                )
            target = partition.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
            if not 0 <= target <= partition.high_watermark:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            log.increase_log_start_offset(target)
            answer.low_watermark = log.log_start_offset
        except ApiError as error:
            answer.error_code = error.code
        except OSError as error:
            logger.error("cannot delete records of %s-%d: %s", topic, index, error)
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer


def _require_known_timestamp(timestamp: int, version: int) -> None:
    since = 0 if timestamp >= 0 else SPECIAL_SINCE.get(timestamp)
    if since is None or version < since:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)


def _find(partition: Partition, asked: ListOffsetsPartition, committed_only: bool, replica_id: int) -> Found:
    log = partition.leader_log(asked.current_leader_epoch)
    end = partition.visible_end(committed_only, replica_id)
    match asked.timestamp:
        case time if time == LATEST:
            if replica_id < 0 and not partition.knows_end:
                raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader does not know the end yet")
            return -1, end, partition.leader_epoch
        case time if time in (EARLIEST, EARLIEST_LOCAL):
            return -1, log.log_start_offset, log.epoch_for_offset(log.log_start_offset)
        case _:
            assert asked.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
            return NOTHING


async def _find_by_time(
    partition: Partition, asked: ListOffsetsPartition, committed_only: bool, replica_id: int
) -> Found:
    log = partition.leader_log(asked.current_leader_epoch)
    if asked.timestamp == MAX_TIMESTAMP:
        batch = log.batch_of_max_timestamp()
        found = batch and await find_from_batch(log, batch.header.max_timestamp, batch)
    else:
        found = await find_by_time(log, asked.timestamp)
    return found if found and found[1] < partition.visible_end(committed_only, replica_id) else NOTHING
