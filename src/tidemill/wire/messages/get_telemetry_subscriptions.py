"""GetTelemetrySubscriptions (API 71)."""

from tidemill.wire.schema import INT8, STRING, Message, array, boolean, int16, int32, uuid


class GetTelemetrySubscriptionsRequest(Message, versions=(0, 0), flexible=0):
    client_instance_id: bytes = uuid()


class GetTelemetrySubscriptionsResponse(Message, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(INT8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(STRING)
