"""Metadata v0-13, DescribeCluster v0-2, DescribeTopicPartitions v0: where everything is."""

from __future__ import annotations

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.api.topics import TopicApi
from tidemill.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicState
from tidemill.metadata.topic_names import check_topic_name
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidemill.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

EMPTY_LIST_MEANS_ALL_UNTIL = 0
BROKER_ENDPOINTS = 1
ALL_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: without access control, all."""
ALL_CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


class MetadataApi:
    def __init__(self, services: Services, topics: TopicApi) -> None:
        self._services = services
        self._topics = topics

    # -- Metadata -------------------------------------------------------------------------------------

    async def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        await self._maybe_create_topics(request)
        image = self._services.metadata.image
        wants_all = request.topics is None or (
            context.version <= EMPTY_LIST_MEANS_ALL_UNTIL and not request.topics
        )
        if wants_all:
            topics = [_topic(topic, image) for topic in image.topics.values()]
        else:
            topics = [_asked_topic(asked, image) for asked in request.topics or ()]
        if request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = ALL_TOPIC_OPERATIONS
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)
                for broker, host, port in _active_brokers(image)
            ],
            cluster_id=self._services.cluster_id,
            controller_id=self._services.node_id,
            topics=topics,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = ALL_CLUSTER_OPERATIONS
        return response

    async def _maybe_create_topics(self, request: MetadataRequest) -> None:
        """Asking for a topic creates it, where both sides allow it."""
        if not request.allow_auto_topic_creation or not self._services.settings.auto_create_topics:
            return
        known = self._services.metadata.image.topics
        missing = {
            topic.name
            for topic in request.topics or ()
            if topic.name is not None and topic.topic_id == ZERO_UUID and topic.name not in known
        }
        if missing:
            await self._topics.auto_create(sorted(missing))

    # -- DescribeCluster ------------------------------------------------------------------------------

    async def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != BROKER_ENDPOINTS:
            raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this endpoint lists brokers, not controllers")
        image = self._services.metadata.image
        response = DescribeClusterResponse(
            cluster_id=self._services.cluster_id,
            controller_id=self._services.node_id,
            brokers=[
                DescribeClusterBroker(broker_id=broker.broker_id, host=host, port=port, rack=broker.rack)
                for broker, host, port in _active_brokers(image)
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = ALL_CLUSTER_OPERATIONS
        return response

    # -- DescribeTopicPartitions ----------------------------------------------------------------------

    async def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        image = self._services.metadata.image
        names = sorted({topic.name for topic in request.topics}) or sorted(image.topics)
        first = request.cursor
        if first is not None:
            if first.partition_index < 0:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
            names = [name for name in names if name >= first.topic_name]
        response = DescribeTopicPartitionsResponse()
        room = min(max(1, request.response_partition_limit), self._services.settings.max_partitions_described)
        for name in names:
            start = first.partition_index if first is not None and first.topic_name == name else 0
            if room <= 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=start)
                break
            topic, following = _described_topic(image, name, start, room)
            response.topics.append(topic)
            room -= len(topic.partitions)
            if following is not None:
                response.next_cursor = Cursor(topic_name=name, partition_index=following)
                break
        return response


def _active_brokers(image: MetadataImage) -> list[tuple[BrokerRegistration, str, int]]:
    """Every broker that clients may talk to, with the host and port that it advertises."""
    return [
        (broker, broker.listeners[0].host, broker.listeners[0].port)
        for broker in image.brokers.values()
        if not broker.fenced and broker.listeners
    ]


def _asked_topic(asked: MetadataRequestTopic, image: MetadataImage) -> MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        topic = image.topics_by_id.get(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=asked.name, topic_id=asked.topic_id
            )
        return _topic(topic, image)
    topic = image.topics.get(asked.name or "")
    if topic is None:
        return MetadataResponseTopic(error_code=_why_missing(asked.name), name=asked.name or "")
    return _topic(topic, image)


def _why_missing(name: str | None) -> ErrorCode:
    try:
        check_topic_name(name or "")
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(topic: TopicState, image: MetadataImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=_partition_error(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=_offline_replicas(partition, image),
            )
            for index, partition in topic.partitions.items()
        ],
    )


def _partition_error(partition: PartitionState) -> ErrorCode:
    return ErrorCode.NONE if partition.has_leader else ErrorCode.LEADER_NOT_AVAILABLE


def _offline_replicas(partition: PartitionState, image: MetadataImage) -> list[int]:
    return [replica for replica in partition.replicas if not image.is_online(replica, partition)]


def _described_topic(
    image: MetadataImage, name: str, start: int, room: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """One topic from partition `start` on, and where to go on if there was no room for all of it."""
    topic = image.topics.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(error_code=_why_missing(name), name=name), None
    described = DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
        partitions=[
            _described_partition(index, topic.partitions[index], image)
            for index in range(start, min(start + room, len(topic.partitions)))
        ],
    )
    following = start + room
    return described, following if following < len(topic.partitions) else None


def _described_partition(
    index: int, partition: PartitionState, image: MetadataImage
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=_partition_error(partition),
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_eligible),
        offline_replicas=_offline_replicas(partition, image),
    )
