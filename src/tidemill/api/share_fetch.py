"""ShareFetch: v1-2, as Apache Kafka 4.3. Acknowledges records, and acquires others.

Acknowledgements take effect first, but nobody waits for them: while they are written the fetch goes on, and the answer
leaves when both are done. A request that renews locks (v2) reads nothing, so that its answer comes in time.

Gaps: `throttle_time_ms` is 0; node endpoints are not listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tidemill.api.context import RequestContext, ResponseSlot
from tidemill.api.services import Services
from tidemill.api.share_delayed import Answer, DelayedShareFetch, ShareFetchCriteria, failed_result
from tidemill.api.share_members import Results, ShareMembers, checked_session_key
from tidemill.api.share_partitions import LedPartition
from tidemill.api.share_reading import led_partition
from tidemill.api.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    SharedPartition,
    ShareSession,
)
from tidemill.coordination.share.partition_contract import Wish
from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.wire.frames import frame_response
from tidemill.wire.messages.share_fetch import FetchPartition, ShareFetchRequest
from tidemill.wire.schema import decode
from tidemill.wire.share_fetch_codec import (
    ShareFetchResult,
    ShareFetchTopicResult,
    encode_share_fetch_response,
)

EXACT_RECORDS = 1
"""The acquire mode `record_limit` (KIP-1206)."""


LONGEST_REFUSAL_MS = 30_000


class ShareFetchApi:
    def __init__(self, services: Services, members: ShareMembers) -> None:
        self._services = services
        self._members = members

    def handle(
        self, context: RequestContext, frame: memoryview, position: int, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        request = decode(ShareFetchRequest, context.version, bytes(frame), position)
        exchange = Exchange(self._members, context, slot)
        try:
            key = checked_session_key(request.group_id, request.member_id)
            _check_renewal(request)
            session = self._session(key, request, slot)
        except ApiError as error:
            exchange.fail(error, request.max_wait_ms)
            return None
        exchange.key = key
        acknowledged = [each for each in _requested(request) if each[1].acknowledgement_batches]
        exchange.acknowledging(
            self._members.acknowledge(
                key,
                [(where, asked.acknowledgement_batches) for where, asked in acknowledged],
                request.is_renew_ack,
            )
        )
        if request.share_session_epoch == FINAL_EPOCH:
            self._members.leave(session)
            exchange.fetched({})
        elif request.is_renew_ack or request.max_records <= 0 or request.max_bytes <= 0:
            exchange.fetched({})
        else:
            self._fetch(session, request, slot, exchange)
        return None

    def _session(self, key: SessionKey, request: ShareFetchRequest, slot: ResponseSlot) -> ShareSession:
        sessions = self._members.sessions
        requested = _requested(request)
        if request.share_session_epoch != INITIAL_EPOCH:
            session = sessions.proceed(key, request.share_session_epoch)
            sessions.update(session, [where for where, _ in requested], _forgotten(request))
            return session
        if any(asked.acknowledgement_batches for _, asked in requested):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a new session holds nothing to acknowledge")
        session = sessions.open(key, [where for where, _ in requested])
        session.forget_connection = slot.when_connection_ends(key, lambda: self._members.leave(session))
        return session

    def _fetch(
        self, session: ShareSession, request: ShareFetchRequest, slot: ResponseSlot, exchange: Exchange
    ) -> None:
        failed: Answer = {}
        led = self._resolve(session, failed)
        services = self._services
        settings = self._members.partitions.settings(session.key.group_id)
        max_bytes = min(request.max_bytes, services.settings.fetch_max_bytes)
        is_exact = request.share_acquire_mode == EXACT_RECORDS
        wish = Wish(session.key.member_id, request.max_records, max(1, request.batch_size), is_exact)
        criteria = ShareFetchCriteria(wish, min(request.min_bytes, max_bytes), max_bytes, settings)
        operation = DelayedShareFetch(
            services.replicas, self._members.partitions, services.clock, criteria, led,
            lambda answer: exchange.fetched({**failed, **answer}),
        )  # fmt: skip
        if failed or not led or request.max_wait_ms <= 0:
            operation.force_complete()
            return
        due_ms = services.clock.monotonic_ms() + request.max_wait_ms
        if not services.replicas.fetch_purgatory.try_complete_else_watch(operation, operation.keys, due_ms):
            slot.on_abandoned = operation.abandon

    def _resolve(self, session: ShareSession, failed: Answer) -> list[LedPartition]:
        """The share partitions of a session, loaded or on their way; what is not here fails at once."""
        led = []
        topics = self._services.metadata.image.topics_by_id
        for where in session.rotated():
            topic = topics.get(where.topic_id)
            if topic is None:
                failed[where] = ShareFetchResult(where.partition, ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            key = SharePartitionKey(session.key.group_id, where.topic_id, where.partition)
            name = TopicPartition(topic.name, where.partition)
            try:
                partition = led_partition(self._services.replicas, name, where.topic_id)
            except ApiError as error:
                failed[where] = failed_result(self._services.replicas, name, error)
                continue
            led.append(self._members.partitions.find(key, name, partition.leader_epoch))
        return led


class Exchange:
    """One request and its answer, which waits for two things: the records, and the acknowledgements' writes."""

    def __init__(self, members: ShareMembers, context: RequestContext, slot: ResponseSlot) -> None:
        self._members = members
        self._context = context
        self._slot = slot
        self._answer: Answer | None = None
        self._acknowledgements: Results = {}
        self._writes: asyncio.Future[Any] | None = None
        self.key = SessionKey("", "")

    def acknowledging(self, results: Results) -> None:
        self._acknowledgements = results
        if results:
            self._writes = asyncio.gather(*results.values(), return_exceptions=True)
            self._writes.add_done_callback(lambda _: self._maybe_respond())

    def fetched(self, answer: Answer) -> None:
        self._answer = answer
        self._maybe_respond()

    def fail(self, error: ApiError, max_wait_ms: int) -> None:
        """Who finds no free session has to wait as if it had fetched, so that it does not ask at once again."""
        if error.code is not ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            self._respond([], error)
            return
        delay_s = min(max(0, max_wait_ms), LONGEST_REFUSAL_MS) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, lambda: self._respond([], error))
        self._slot.on_abandoned = timer.cancel

    def _maybe_respond(self) -> None:
        """Once: the records may come between the end of the writes and the call that tells of it."""
        answer = self._answer
        if answer is None or (self._writes is not None and not self._writes.done()):
            return
        self._answer = None
        for where, result in self._acknowledgements.items():
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) if result.exception() else result.result()
            known = answer.get(where, ShareFetchResult(where.partition))
            if error is not None:
                known = known._replace(
                    acknowledge_error=error.code, acknowledge_message=error.message or None
                )
            answer[where] = known
        self._respond(_by_topic(answer), None)

    def _respond(self, topics: list[ShareFetchTopicResult], error: ApiError | None) -> None:
        lock_ms = 0
        if error is None:
            lock_ms = self._members.partitions.settings(self.key.group_id).limits.record_lock_duration_ms
        body = encode_share_fetch_response(
            topics,
            lock_ms,
            error.code if error is not None else ErrorCode.NONE,
            (error.message or None) if error is not None else None,
        )
        self._slot.respond(frame_response(self._context.correlation_id, True, body))


def _requested(request: ShareFetchRequest) -> list[tuple[SharedPartition, FetchPartition]]:
    return [
        (SharedPartition(topic.topic_id, partition.partition_index), partition)
        for topic in request.topics
        for partition in topic.partitions
    ]


def _forgotten(request: ShareFetchRequest) -> list[SharedPartition]:
    return [
        SharedPartition(topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def _check_renewal(request: ShareFetchRequest) -> None:
    limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(limits):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a request that renews locks fetches nothing")


def _by_topic(answer: Answer) -> list[ShareFetchTopicResult]:
    topics: dict[bytes, ShareFetchTopicResult] = {}
    for where, result in answer.items():
        topic = topics.setdefault(where.topic_id, ShareFetchTopicResult(where.topic_id, []))
        topic.partitions.append(result)
    return list(topics.values())
