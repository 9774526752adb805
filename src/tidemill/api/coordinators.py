"""FindCoordinator v0-6: with one broker, it is this one."""

from __future__ import annotations

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

BATCHED_SINCE = 4
KEY_TYPES = (0, 1, 2)
"""Group, transaction, share."""


class CoordinatorApi:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if request.key_type not in KEY_TYPES:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {request.key_type}")
        node_id = self._services.node_id
        broker = self._services.metadata.image.brokers[node_id]
        host, port = broker.listeners[0].host, broker.listeners[0].port
        if context.version < BATCHED_SINCE:
            return FindCoordinatorResponse(node_id=node_id, host=host, port=port)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=node_id, host=host, port=port, error_message=None)
                for key in request.coordinator_keys
            ]
        )
