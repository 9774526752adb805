"""CreateTopics v2-7, DeleteTopics v1-6, CreatePartitions v0-3: translation to the controller's decisions."""

from __future__ import annotations

import logging

from tidemill.api.context import RequestContext
from tidemill.api.internal_topics import blueprint
from tidemill.api.services import Services
from tidemill.metadata.decisions import Outcome
from tidemill.metadata.topics import NewTopic, TopicDeletion, TopicGrowth, TopicOutcome
from tidemill.model.errors import ApiError
from tidemill.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tidemill.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidemill.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

BY_ID_SINCE = 6


logger = logging.getLogger(__name__)


class TopicApi:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        new = [_new_topic(topic) for topic in request.topics]
        try:
            outcomes = await self._services.metadata.change(
                lambda image: self._services.controller.create_topics(
                    image, new, validate_only=request.validate_only
                )
            )
        except ApiError as error:
            outcomes = [TopicOutcome(error.code, error.message or None, name=topic.name) for topic in new]
        return CreateTopicsResponse(topics=[_created(outcome) for outcome in outcomes])

    async def auto_create(self, names: list[str]) -> None:
        """Create topics with the broker's defaults, internal ones with theirs; what cannot be stays unknown."""
        layers = self._services.settings.layers
        try:
            await self._services.metadata.change(
                lambda image: self._services.controller.create_topics(
                    image, [blueprint(name, image, layers) for name in names]
                )
            )
        except ApiError as error:
            logger.error("cannot create %s: %s", ", ".join(names), error)

    async def delete_topics(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        if context.version >= BY_ID_SINCE:
            wanted = [TopicDeletion(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [TopicDeletion(name) for name in request.topic_names]
        try:
            outcomes = await self._services.metadata.change(
                lambda image: self._services.controller.delete_topics(image, wanted)
            )
        except ApiError as error:
            return DeleteTopicsResponse(
                responses=[
                    DeletableTopicResult(
                        name=each.name,
                        topic_id=each.topic_id,
                        error_code=error.code,
                        error_message=error.message,
                    )
                    for each in wanted
                ]
            )
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=outcome.name,
                    topic_id=outcome.topic_id,
                    error_code=outcome.error,
                    error_message=outcome.message,
                )
                for outcome in outcomes
            ]
        )

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        growing = [_growth(topic) for topic in request.topics]
        try:
            outcomes = await self._services.metadata.change(
                lambda image: self._services.controller.create_partitions(
                    image, growing, validate_only=request.validate_only
                )
            )
        except ApiError as error:
            outcomes = {topic.name: Outcome.of(error) for topic in growing}
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=name, error_code=outcome.error, error_message=outcome.message
                )
                for name, outcome in outcomes.items()
            ]
        )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _created(outcome: TopicOutcome) -> CreatableTopicResult:
    result = CreatableTopicResult(
        name=outcome.name, error_code=outcome.error, error_message=outcome.message, configs=None
    )
    if outcome.is_success:
        result.topic_id = outcome.topic_id
        result.num_partitions = outcome.partitions
        result.replication_factor = outcome.replication_factor
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in outcome.configs
        ]
    return result


def _growth(topic: CreatePartitionsTopic) -> TopicGrowth:
    assignments = topic.assignments
    return TopicGrowth(
        name=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(tuple(each.broker_ids) for each in assignments),
    )
