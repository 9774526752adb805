"""FindCoordinator (API 10)."""

from tidemill.wire.schema import STRING, Message, array, int8, int16, int32, string


class FindCoordinatorRequest(Message, versions=(0, 6), flexible=3):
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(STRING, since=4)


class Coordinator(Message):
    key: str = string(since=4)
    node_id: int = int32(since=4)
    host: str = string(since=4)
    port: int = int32(since=4)
    error_code: int = int16(since=4)
    error_message: str | None = string(since=4, nullable_since=4)


class FindCoordinatorResponse(Message, versions=(0, 6), flexible=3):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable_since=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)
