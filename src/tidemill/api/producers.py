"""InitProducerId v0-5 and DescribeProducers v0: identities for idempotent producers.

Ids come in blocks of a thousand from the metadata log, so that no two brokers, and no two lives of one broker,
ever give out the same one; what is left of a block at a restart is never used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.api.context import RequestContext
from tidemill.api.producer_ids import ProducerIdSupply
from tidemill.api.services import Services
from tidemill.coordination.transaction.state import NO_EPOCH
from tidemill.metadata.topic_names import check_topic_name
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import NO_PRODUCER_ID, TopicPartition
from tidemill.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidemill.api.transactions import TransactionApi

FIRST_EPOCH = 0


class ProducerApi:
    def __init__(self, services: Services, transactions: Callable[[], TransactionApi]) -> None:
        self._services = services
        self._transactions = transactions
        self._producer_ids = ProducerIdSupply(services)

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        try:
            if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
                raise ApiError(ErrorCode.INVALID_REQUEST, "a producer id goes with an epoch")
            if request.transactional_id is not None:
                return await self._transactions().init_producer_id(context, request)
            producer_id = await self._producer_ids.take()
        except ApiError as error:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_EPOCH)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)

    async def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[self._describe(topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    def _describe(self, topic: str, index: int) -> PartitionResponse:
        try:
            check_topic_name(topic)
            partition = self._services.replicas.partitions.get(TopicPartition(topic, index))
            if partition is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            states = partition.leader_log().producers()
        except ApiError as error:
            return PartitionResponse(partition_index=index, error_code=error.code)
        return PartitionResponse(
            partition_index=index,
            active_producers=[
                ProducerState(
                    producer_id=state.producer_id,
                    producer_epoch=state.epoch,
                    last_sequence=state.last_sequence,
                    last_timestamp=state.last_timestamp,
                    coordinator_epoch=state.coordinator_epoch,
                    current_txn_start_offset=state.transaction_first_offset,
                )
                for state in states
            ],
        )
