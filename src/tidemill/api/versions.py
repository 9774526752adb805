"""ApiVersions: v0-4. What this broker speaks, and which features the cluster has finalised."""

from __future__ import annotations

import re

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.api.table import APIS, PRODUCE
from tidemill.metadata.features import SUPPORTED_FEATURES
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE_SINCE = 3
OPTIONAL_FEATURES_SINCE = 4
"""Java clients from 3.3 to 3.8 ask in an older version, and break off at a feature whose lowest level is 0."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

PRODUCE_ADVERTISED_MIN_VERSION = 0
"""Older librdkafka takes a broker without Produce v0 for one without zstd or lz4, so Kafka says 0 too."""


class VersionApi:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.version >= SOFTWARE_SINCE and not _is_well_named(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        image = self._services.metadata.image
        finalised = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if level > 0
        ]
        return ApiVersionsResponse(
            api_keys=_api_keys(),
            supported_features=_supported_features(context.version),
            finalized_features=finalised,
            finalized_features_epoch=image.offset,
        )

    def unsupported_version(self) -> ApiVersionsResponse:
        """The answer to a version from the future: the code, and what to ask instead."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys())


def _is_well_named(request: ApiVersionsRequest) -> bool:
    """Names and versions of client software go into metrics, so they must be plain."""
    names = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(name) for name in names)


def _supported_features(version: int) -> list[SupportedFeatureKey]:
    least = 0 if version >= OPTIONAL_FEATURES_SINCE else 1
    return [
        SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, low, high in SUPPORTED_FEATURES
        if low >= least
    ]


def _api_keys() -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=api.key,
            min_version=PRODUCE_ADVERTISED_MIN_VERSION if api.key == PRODUCE else api.min_version,
            max_version=api.max_version,
        )
        for api in APIS
    ]
