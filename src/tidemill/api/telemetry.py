"""GetTelemetrySubscriptions v0 and PushTelemetry v0 (KIP-714).

A client asks which of its metrics are wanted. Nobody here wants any, and that is a proper answer: an empty list
of metrics and a long interval, after which it asks again. A push under another subscription than this is told so.
"""

from __future__ import annotations

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidemill.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

SUBSCRIPTION_ID = 0
PUSH_INTERVAL_MS = 300_000
TELEMETRY_MAX_BYTES = 1_048_576
ACCEPTED_COMPRESSIONS = [4, 3, 1, 2, 0]


class TelemetryApi:
    def __init__(self, services: Services) -> None:
        self._randomness = services.randomness

    async def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        client_instance_id = request.client_instance_id
        if client_instance_id == ZERO_UUID:
            client_instance_id = self._randomness.uuid()
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=client_instance_id,
            subscription_id=SUBSCRIPTION_ID,
            accepted_compression_types=ACCEPTED_COMPRESSIONS,
            push_interval_ms=PUSH_INTERVAL_MS,
            telemetry_max_bytes=TELEMETRY_MAX_BYTES,
            delta_temporality=True,
            requested_metrics=[],
        )

    async def push(self, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
        if request.client_instance_id == ZERO_UUID:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
        if request.subscription_id != SUBSCRIPTION_ID:
            return PushTelemetryResponse(error_code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if request.compression_type not in ACCEPTED_COMPRESSIONS:
            return PushTelemetryResponse(error_code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(request.metrics) > TELEMETRY_MAX_BYTES:
            return PushTelemetryResponse(error_code=ErrorCode.TELEMETRY_TOO_LARGE)
        return PushTelemetryResponse()
