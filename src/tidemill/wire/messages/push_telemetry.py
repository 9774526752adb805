"""PushTelemetry (API 72)."""

from tidemill.wire.schema import Message, blob, boolean, int8, int16, int32, uuid


class PushTelemetryRequest(Message, versions=(0, 0), flexible=0):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = blob()


class PushTelemetryResponse(Message, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
