"""DescribeConfigs v1-4, AlterConfigs v0-2, IncrementalAlterConfigs v0-1: translation to `model.configs`."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.metadata.config_changes import (
    ConfigChange,
    ConfigOutcomes,
    ResourceChange,
    ResourceReplacement,
)
from tidemill.metadata.decisions import CLUSTER_DEFAULT, Decision, Outcome
from tidemill.metadata.image import ConfigResource, MetadataImage, ResourceType
from tidemill.metadata.topic_names import check_topic_name
from tidemill.model.configs import (
    ConfigEntry,
    broker_entries,
    topic_entries,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.group_configs import group_entries
from tidemill.wire.messages import alter_configs as legacy
from tidemill.wire.messages import incremental_alter_configs as incremental
from tidemill.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


class ConfigApi:
    def __init__(self, services: Services) -> None:
        self._services = services

    # -- describe -------------------------------------------------------------------------------------

    async def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[self._describe(resource, request) for resource in request.resources]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = self._entries(resource)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            return result
        wanted = resource.configuration_keys
        result.configs = [
            _described(entry, request.include_synonyms, request.include_documentation)
            for entry in entries
            if not wanted or entry.name in wanted
        ]
        return result

    def _entries(self, resource: DescribeConfigsResource) -> list[ConfigEntry]:
        image = self._services.metadata.image
        name = resource.resource_name
        layers = self._services.controller.settings.layers(image)
        match resource.resource_type:
            case ResourceType.TOPIC:
                check_topic_name(name)
                if name not in image.topics:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
                return topic_entries(image.config_of(ResourceType.TOPIC, name), layers)
            case ResourceType.GROUP:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
                return group_entries(image.config_of(ResourceType.GROUP, name), layers)
            case ResourceType.BROKER if name == CLUSTER_DEFAULT:
                return [entry for entry in broker_entries(layers) if entry.name in _cluster_defaults(image)]
            case ResourceType.BROKER:
                if name != str(self._services.node_id):
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"this is broker {self._services.node_id}: ask broker {name} for its own configuration",
                    )
                return broker_entries(layers)
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"resources of type {resource.resource_type} have no configuration here",
        )

    # -- alter ----------------------------------------------------------------------------------------

    async def alter_configs(
        self, context: RequestContext, request: legacy.AlterConfigsRequest
    ) -> legacy.AlterConfigsResponse:
        wanted = [
            ResourceReplacement(
                ConfigResource(resource.resource_type, resource.resource_name),
                tuple((config.name, config.value) for config in resource.configs),
            )
            for resource in request.resources
        ]
        outcomes = await self._outcomes(
            [each.resource for each in wanted],
            lambda image: self._services.controller.alter_configs(
                image, wanted, validate_only=request.validate_only
            ),
        )
        return legacy.AlterConfigsResponse(
            responses=[
                legacy.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.type,
                    resource_name=resource.name,
                )
                for resource, outcome in outcomes.items()
            ]
        )

    async def incremental_alter_configs(
        self, context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
    ) -> incremental.IncrementalAlterConfigsResponse:
        wanted = [
            ResourceChange(
                ConfigResource(resource.resource_type, resource.resource_name),
                tuple(
                    ConfigChange(config.name, config.config_operation, config.value)
                    for config in resource.configs
                ),
            )
            for resource in request.resources
        ]
        outcomes = await self._outcomes(
            [each.resource for each in wanted],
            lambda image: self._services.controller.incremental_alter_configs(
                image, wanted, validate_only=request.validate_only
            ),
        )
        return incremental.IncrementalAlterConfigsResponse(
            responses=[
                incremental.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.type,
                    resource_name=resource.name,
                )
                for resource, outcome in outcomes.items()
            ]
        )

    async def _outcomes(
        self, resources: list[ConfigResource], decide: Callable[[MetadataImage], Decision[ConfigOutcomes]]
    ) -> ConfigOutcomes:
        """One for each resource, also if the change as a whole fails: these answers have no place for one error."""
        try:
            return await self._services.metadata.change(decide)
        except ApiError as error:
            return {resource: Outcome.of(error) for resource in resources}


def _cluster_defaults(image: MetadataImage) -> set[str]:
    return set(image.config_of(ResourceType.BROKER, CLUSTER_DEFAULT))


def _described(
    entry: ConfigEntry, include_synonyms: bool, include_documentation: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if include_synonyms else ())
        ],
        config_type=entry.key.type,
        documentation=entry.key.documentation if include_documentation else None,
    )
