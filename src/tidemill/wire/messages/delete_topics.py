"""DeleteTopics (API 20)."""

from tidemill.wire.schema import STRING, Message, array, int16, int32, string, uuid


class DeleteTopicState(Message):
    name: str | None = string(default=None, since=6, nullable_since=6)
    topic_id: bytes = uuid(since=6)


class DeleteTopicsRequest(Message, versions=(1, 6), flexible=4):
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(STRING, until=5)
    timeout_ms: int = int32()


class DeletableTopicResult(Message):
    name: str | None = string(nullable_since=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(default=None, since=5, nullable_since=5)


class DeleteTopicsResponse(Message, versions=(1, 6), flexible=4):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
