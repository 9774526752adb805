"""FindCoordinator v0-6: the leader of the partition of an internal topic that a key belongs to.

Whoever asks first makes the topic. Kafka answers COORDINATOR_NOT_AVAILABLE meanwhile and lets the client ask again;
here the answer waits for the creation, and the first rebalance of a fresh broker is a retry faster.
"""

from __future__ import annotations

import re

from tidemill.api.context import RequestContext
from tidemill.api.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from tidemill.api.services import Services
from tidemill.coordination.partitioning import partition_for
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:-?[0-9]{1,10}", re.DOTALL)
"""A group, which may contain colons, a topic id and a partition."""
BATCHED_SINCE = 4
SHARE_SINCE = 6
GROUP, TRANSACTION, SHARE = 0, 1, 2
TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC, SHARE: SHARE_STATE_TOPIC}


class CoordinatorApi:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        is_batched = context.version >= BATCHED_SINCE
        keys = request.coordinator_keys if is_batched else [request.key]
        try:
            topic = _topic_of(request.key_type, context.version)
            await self._services.coordinators.internal_topics.make_sure_of(topic)
            coordinators = [self._find(topic, request.key_type, key) for key in keys]
        except ApiError as error:
            coordinators = [_nowhere(key, error.code, error.message) for key in keys]
        if not is_batched:
            (found,) = coordinators
            return FindCoordinatorResponse(
                error_code=found.error_code,
                error_message=found.error_message,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
            )
        return FindCoordinatorResponse(coordinators=coordinators)

    def _find(self, topic: str, key_type: int, key: str) -> Coordinator:
        if key_type == SHARE and not SHARE_KEY.fullmatch(key):
            return _nowhere(
                key, ErrorCode.INVALID_REQUEST, "a share key is a group, a topic id and a partition"
            )
        image = self._services.metadata.image
        state = image.topics.get(topic)
        if state is None:
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} does not exist yet")
        partition = state.partitions.get(partition_for(key, len(state.partitions)))
        leader = image.brokers.get(partition.leader) if partition is not None else None
        if leader is None or not leader.listeners:
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} has no leader for this key")
        listener = leader.listeners[0]
        return Coordinator(
            key=key, node_id=leader.broker_id, host=listener.host, port=listener.port, error_message=None
        )


def _topic_of(key_type: int, version: int) -> str:
    topic = TOPICS.get(key_type)
    if topic is None or (key_type == SHARE and version < SHARE_SINCE):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
    return topic


def _nowhere(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
