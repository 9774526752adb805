"""Fetch: v4-18, as Apache Kafka 4.3.

The hot path of a read: find the slices of the log, answer with their places in the files; the connection
sends them with `sendfile`. A fetch that finds too little waits in purgatory and reads again when it is woken.

Gaps: no preferred read replica and no tiered storage; `throttle_time_ms` is 0.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tidemill.api.context import RequestContext, ResponseSlot
from tidemill.api.fetch_sessions import (
    NO_SESSION,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    TopicKey,
    requested_partitions,
)
from tidemill.api.services import Services
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.delayed import FetchCriteria, Wanted
from tidemill.wire.fetch_codec import (
    FLEXIBLE_SINCE,
    TOPIC_ID_SINCE,
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopicResult,
    decode_fetch_request,
    encode_fetch_response,
)
from tidemill.wire.frames import frame_response

READ_COMMITTED = 1


class FetchApi:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.sessions = FetchSessionCache(services.settings.fetch_session_slots, services.randomness)

    def handle(
        self, context: RequestContext, frame: memoryview, position: int, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        request = decode_fetch_request(frame, position, context.version)
        now_ms = self._services.clock.monotonic_ms()
        try:
            session = self.sessions.open(request, now_ms)
        except ApiError as error:
            self._respond(context, slot, [], error.code, NO_SESSION)
            return None
        asked = list(session.partitions.items()) if session else requested_partitions(request)
        keys, wanted, failed = self._resolve(context, asked)
        criteria = FetchCriteria(
            request.replica_id,
            0 if failed else request.max_wait_ms,
            request.min_bytes,
            min(request.max_bytes, self._services.settings.fetch_max_bytes),
            request.isolation_level == READ_COMMITTED,
        )

        def respond(results: list[FetchResult]) -> None:
            answered = [*zip(keys, results, strict=True), *failed]
            self._answer(context, request, session, answered, slot)

        waiting = self._services.replicas.fetch(criteria, wanted, now_ms, respond)
        if waiting is not None:
            slot.on_abandoned = waiting.force_complete
        return None

    def _resolve(
        self, context: RequestContext, asked: list[tuple[PartitionKey, FetchPartition]]
    ) -> tuple[list[PartitionKey], Wanted, list[tuple[PartitionKey, FetchResult]]]:
        """Names for topic ids; what has none fails at once."""
        keys: list[PartitionKey] = []
        wanted: Wanted = []
        failed: list[tuple[PartitionKey, FetchResult]] = []
        last: TopicKey | None = None
        name: str | None = None
        for key, partition in asked:
            if key[0] is not last:
                last = key[0]
                name = self._topic_name(context, last)
            if name is None:
                failed.append((key, FetchResult(partition.partition, ErrorCode.UNKNOWN_TOPIC_ID)))
                continue
            keys.append(key)
            wanted.append((TopicPartition(name, partition.partition), partition))
        return keys, wanted, failed

    def _topic_name(self, context: RequestContext, key: TopicKey) -> str | None:
        if context.version < TOPIC_ID_SINCE:
            return key.name
        topic = self._services.metadata.image.topics_by_id.get(key.topic_id)
        return topic.name if topic else None

    def _answer(
        self,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
        answered: list[tuple[PartitionKey, FetchResult]],
        slot: ResponseSlot,
    ) -> None:
        if session is not None:
            answered = [(key, result) for key, result in answered if session.tell(key, result)]
            self._respond(context, slot, _by_topic(answered), ErrorCode.NONE, session.session_id)
            return
        created = self.sessions.maybe_create(request, self._services.clock.monotonic_ms())
        session_id = NO_SESSION
        if created is not None:
            session_id = created.session_id
            for key, result in answered:
                created.tell(key, result)
        self._respond(context, slot, _by_topic(answered), ErrorCode.NONE, session_id)

    def _respond(
        self,
        context: RequestContext,
        slot: ResponseSlot,
        topics: list[FetchTopicResult],
        error: ErrorCode,
        session_id: int,
    ) -> None:
        version = context.version
        body = encode_fetch_response(topics, version, error, session_id)
        slot.respond(frame_response(context.correlation_id, version >= FLEXIBLE_SINCE, body))


def _by_topic(answered: list[tuple[PartitionKey, FetchResult]]) -> list[FetchTopicResult]:
    """Neighbours of one topic share an entry, as in the request."""
    topics: list[FetchTopicResult] = []
    last = None
    for (topic, _), result in answered:
        if topic is not last and topic != last:
            topics.append(FetchTopicResult(topic.name, topic.topic_id, []))
            last = topic
        topics[-1].partitions.append(result)
    return topics
