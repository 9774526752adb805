"""Produce: v3-13, as Apache Kafka 4.3.

The hot path of a write. A request is handled the moment its last byte arrives: decode in place, check each
batch, append the received memory, answer. It becomes a coroutine only where single records must be looked at
(`batch_check.needs_rewrite`), and waits in purgatory only where durability takes longer than the append.
The first batch of a transaction on a partition asks its coordinator first (KIP-890).

Gaps: `throttle_time_ms` is 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidemill.api.batch_check import BadRecords, check_batch, needs_rewrite, rewrite_batch
from tidemill.api.context import RequestContext, ResponseSlot
from tidemill.api.services import Services
from tidemill.coordination.transaction.state import ProducerIdentity
from tidemill.coordination.transaction.verification import PRODUCE
from tidemill.metadata.image import is_internal_topic
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.delayed import WaitingAppend
from tidemill.replication.partition import ACKS_ALL, Partition
from tidemill.wire.batch import HEADER_SIZE, TRANSACTIONAL_MASK, BatchHeader, read_header
from tidemill.wire.frames import frame_response
from tidemill.wire.produce_codec import (
    FLEXIBLE_SINCE,
    TOPIC_ID_SINCE,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    ProduceTopicResult,
    decode_produce_request,
    encode_produce_response,
)

ACKS_NONE = 0
ADMIN_CLIENT_ID = "__admin_client"
"""Who calls itself this may write to the coordinators' topics, as in Kafka."""
VALID_ACKS = (ACKS_ALL, ACKS_NONE, 1)

Finish = Callable[[list[ProduceTopicResult]], None]


class ProduceApi:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._partitions = services.replicas.partitions
        self._clock = services.clock

    def handle(
        self, context: RequestContext, frame: memoryview, position: int, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        request = decode_produce_request(frame, position, context.version)
        if self._must_look_at_records(request) or self._must_ask_coordinator(request):
            owned = memoryview(bytearray(frame))  # the connection reuses its buffer while the thread works
            return self._handle_slowly(
                context, decode_produce_request(owned, position, context.version), slot
            )
        finish = self._finisher(context, request, slot)
        now_ms = self._clock.wall_ms()
        waiting: list[WaitingAppend] = []
        topics = [
            ProduceTopicResult(
                topic.name,
                topic.topic_id,
                [self._append(context, request, topic, entry, now_ms, waiting) for entry in topic.partitions],
            )
            for topic in request.topics
        ]
        self._answer(request, topics, waiting, finish)
        return None

    # -- one partition --------------------------------------------------------------------------------

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topic: ProduceTopic,
        entry: ProducePartition,
        now_ms: int,
        waiting: list[WaitingAppend],
    ) -> ProduceResult:
        try:
            partition = self._partition(context, request, topic, entry.partition)
            log = partition.leader_log()
            header = check_batch(entry.records, context.version, log.config, now_ms)
            assert entry.records is not None
            if header.attributes & TRANSACTIONAL_MASK:
                _check_names_transaction(request)
                if not self._is_open(partition, header):
                    raise ApiError(
                        ErrorCode.INVALID_TXN_STATE, "no transaction of this producer is open here"
                    )
            return self._write(request, partition, entry.records, header, now_ms, waiting)
        except ApiError as error:
            return _refused(entry, error)

    def _write(
        self,
        request: ProduceRequest,
        partition: Partition,
        records: memoryview,
        header: BatchHeader,
        now_ms: int,
        waiting: list[WaitingAppend],
    ) -> ProduceResult:
        log = partition.leader_log()
        try:
            info = partition.append(records, header, request.acks, now_ms)
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk refused the write: {error}") from error
        result = ProduceResult(
            partition.topic_partition.partition,
            0,
            info.first_offset,
            info.append_time_ms,
            log.log_start_offset,
        )
        end_offset = info.last_offset + 1
        must_wait = request.acks == ACKS_ALL or log.config.acknowledges_after_sync
        if must_wait and request.acks != ACKS_NONE and not partition.is_durable(end_offset):
            waiting.append(WaitingAppend(partition, end_offset, result))
        return result

    def _partition(
        self, context: RequestContext, request: ProduceRequest, topic: ProduceTopic, index: int
    ) -> Partition:
        if request.acks not in VALID_ACKS:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
        name = topic.name
        if context.version >= TOPIC_ID_SINCE:
            state = self._services.metadata.image.topics_by_id.get(topic.topic_id)
            if state is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = state.name
        if is_internal_topic(name) and context.client_id != ADMIN_CLIENT_ID:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
        partition = self._partitions.get(TopicPartition(name, index))
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    # -- the answer -----------------------------------------------------------------------------------

    def _answer(
        self,
        request: ProduceRequest,
        topics: list[ProduceTopicResult],
        waiting: list[WaitingAppend],
        finish: Finish,
    ) -> None:
        if not waiting:
            finish(topics)
            return

        def replace_and_finish(outcomes: list[ProduceResult]) -> None:
            replacements = {
                id(entry.result): outcome for entry, outcome in zip(waiting, outcomes, strict=True)
            }
            for topic in topics:
                topic.partitions[:] = [replacements.get(id(each), each) for each in topic.partitions]
            finish(topics)

        due_ms = self._clock.monotonic_ms() + request.timeout_ms
        self._services.replicas.wait_until_durable(waiting, due_ms, replace_and_finish)

    def _finisher(self, context: RequestContext, request: ProduceRequest, slot: ResponseSlot) -> Finish:
        version, correlation_id = context.version, context.correlation_id

        def finish(topics: list[ProduceTopicResult]) -> None:
            if request.acks == ACKS_NONE:
                slot.respond([])
                if any(result.error for topic in topics for result in topic.partitions):
                    slot.close_connection()  # the only way to tell a producer that wants no answers
                return
            body = encode_produce_response(topics, version)
            slot.respond(frame_response(correlation_id, version >= FLEXIBLE_SINCE, [body]))

        return finish

    # -- batches whose records must be looked at ------------------------------------------------------

    def _must_look_at_records(self, request: ProduceRequest) -> bool:
        return any(self._is_rewriting(topic, entry) for topic in request.topics for entry in topic.partitions)

    def _known_partition(self, topic: ProduceTopic, entry: ProducePartition) -> Partition | None:
        name = topic.name
        if not name:
            state = self._services.metadata.image.topics_by_id.get(topic.topic_id)
            name = state.name if state else ""
        return self._partitions.get(TopicPartition(name, entry.partition))

    def _is_rewriting(self, topic: ProduceTopic, entry: ProducePartition) -> bool:
        partition = self._known_partition(topic, entry)
        if partition is None or partition.log is None:
            return False
        config = partition.log.config
        return config.compression_type != "producer" or config.is_compacted

    async def _handle_slowly(
        self, context: RequestContext, request: ProduceRequest, slot: ResponseSlot
    ) -> None:
        finish = self._finisher(context, request, slot)
        now_ms = self._clock.wall_ms()
        waiting: list[WaitingAppend] = []
        until_ms = self._services.coordinators.gate.wait_until_ms() if request.transactional_id else 0
        topics = []
        for topic in request.topics:
            results = [
                await self._append_slowly(context, request, topic, entry, now_ms, waiting, until_ms)
                for entry in topic.partitions
            ]
            topics.append(ProduceTopicResult(topic.name, topic.topic_id, results))
        self._answer(request, topics, waiting, finish)

    async def _append_slowly(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topic: ProduceTopic,
        entry: ProducePartition,
        now_ms: int,
        waiting: list[WaitingAppend],
        until_ms: int,
    ) -> ProduceResult:
        try:
            partition = self._partition(context, request, topic, entry.partition)
            config = partition.leader_log().config
            header = check_batch(entry.records, context.version, config, now_ms)
            records = entry.records
            assert records is not None
            if needs_rewrite(header, config):
                records = await asyncio.to_thread(rewrite_batch, records, header, config)
                header = check_batch(records, context.version, config, now_ms)
            if header.attributes & TRANSACTIONAL_MASK:
                await self._enter_transaction(context, request, partition, header, until_ms)
            return self._write(request, partition, records, header, now_ms, waiting)
        except ApiError as error:
            return _refused(entry, error)

    def _must_ask_coordinator(self, request: ProduceRequest) -> bool:
        """Whether some batch is the first of its transaction on its partition."""
        if request.transactional_id is None:
            return False
        for topic in request.topics:
            for entry in topic.partitions:
                partition = self._known_partition(topic, entry)
                if partition is None or not entry.records or len(entry.records) < HEADER_SIZE:
                    continue
                if partition.log is not None and not self._is_open(partition, read_header(entry.records)):
                    return True
        return False

    def _is_open(self, partition: Partition, header: BatchHeader) -> bool:
        return self._services.coordinators.gate.is_open(partition, header.producer_id, header.producer_epoch)

    async def _enter_transaction(
        self,
        context: RequestContext,
        request: ProduceRequest,
        partition: Partition,
        header: BatchHeader,
        until_ms: int,
    ) -> None:
        """Nothing enters a transaction that is not open here; see `transaction_gate`."""
        _check_names_transaction(request)
        gate = self._services.coordinators.gate
        if self._is_open(partition, header):
            return
        partition.leader_log().check_epoch(header.producer_id, header.producer_epoch)
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a transactional batch without a transactional id")
        name = partition.topic_partition
        is_verifying = self._services.settings.verifies_transactions
        guard = await gate.admit(
            name,
            request.transactional_id,
            identity,
            context.version,
            is_verifying=is_verifying,
            until_ms=until_ms,
        )
        gate.pass_through(name, identity.producer_id, guard)
        if context.version >= PRODUCE.adds_since:
            partition.leader_log().check_begins_at_zero(header)


def _check_names_transaction(request: ProduceRequest) -> None:
    """Who may write in a transaction is a question of its id: without one the answer is no, as in Kafka."""
    if request.transactional_id is None:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch in a request without a transactional id",
        )


def _refused(entry: ProducePartition, error: ApiError) -> ProduceResult:
    bad_records = error.places if isinstance(error, BadRecords) else ()
    return ProduceResult(entry.partition, error.code, message=error.message or None, bad_records=bad_records)
