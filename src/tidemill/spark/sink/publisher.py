"""Finished batches to their leaders, several requests under way at a time.

    publisher = Publisher(cluster, producer, Delivery(acks=-1, transactional_id=None, timeout_ms=120_000))
    publisher.send(batch)
    publisher.flush()                       # every batch is acknowledged, or an exception says which is not

Batches to different partitions of one leader share a request; a second batch to the same partition goes into the next
one. At most `REQUESTS_IN_FLIGHT` requests wait for their answers, which is also how many batches of a producer a broker
remembers. So a batch whose answer was lost may be sent again: the broker knows its sequence and answers with the place
it already has.

What passes by itself (a leader moves, a broker restarts) is tried again, in the order of sending, until
`delivery.timeout.ms` is over. Everything else raises `BrokerError` with the partition's name.
"""

from __future__ import annotations

import collections
import time
from typing import Any, NamedTuple

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import PASSING, BrokerError, Cluster, TopicPartition
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.sink.batching import Batch, Producer, stamp_producer
from tidemill.wire.batch import increment_sequence
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

REQUESTS_IN_FLIGHT = 5
REQUEST_BYTES = 1024 * 1024
PRODUCE_VERSION = 11
"""From version 12 on a broker adds partitions to a transaction by itself; here that is done before, by name."""
_PAUSE_SECONDS = 0.1

RETRIED = PASSING | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Delivery(NamedTuple):
    acks: int
    transactional_id: str | None
    timeout_ms: int


class _Request(NamedTuple):
    batches: dict[TopicPartition, Batch]
    size: int


class Publisher:
    def __init__(self, cluster: Cluster, producer: Producer, delivery: Delivery) -> None:
        self.offsets: list[int] = []
        """Where each batch was stored, in the order of the answers."""
        self._cluster = cluster
        self._producer = producer
        self._delivery = delivery
        self._sequences: dict[TopicPartition, int] = {}
        self._gathered: dict[str, dict[TopicPartition, Batch]] = {}
        self._sent: dict[str, collections.deque[_Request]] = {}

    def send(self, batch: Batch) -> None:
        """Stamp the batch with the producer and send it soon; may wait for answers to earlier ones."""
        sequence = self._sequences.get(batch.target, 0)
        stamp_producer(batch.data, self._producer, sequence)
        self._sequences[batch.target] = increment_sequence(sequence, batch.record_count)
        try:
            leader = self._cluster.leader(batch.target)
        except (BrokerUnavailable, BrokerError) as error:
            self._give_up_or_pass(error)
            self.flush()
            self._deliver_again([batch])
            return
        self._gather(leader, batch)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        for leader in list(self._gathered):
            self._send_gathered(leader)
        for leader in list(self._sent):
            while self._sent.get(leader):
                self._receive(leader)

    def _gather(self, leader: str, batch: Batch) -> None:
        waiting = self._gathered.setdefault(leader, {})
        size = sum(len(other.data) for other in waiting.values())
        if batch.target in waiting or (waiting and size + len(batch.data) > REQUEST_BYTES):
            self._send_gathered(leader)
            waiting = self._gathered.setdefault(leader, {})
        waiting[batch.target] = batch

    def _send_gathered(self, leader: str) -> None:
        batches = self._gathered.pop(leader, {})
        if not batches:
            return
        while len(self._sent.get(leader, ())) >= REQUESTS_IN_FLIGHT:
            self._receive(leader)
        request = _Request(batches, sum(len(batch.data) for batch in batches.values()))
        sent = self._sent.setdefault(leader, collections.deque())
        sent.append(request)
        try:
            self._send_request(leader, batches)
        except BrokerUnavailable:
            self._recover(leader)

    def _send_request(self, leader: str, batches: dict[TopicPartition, Batch]) -> None:
        connection = self._cluster.connection(leader)
        version = min(PRODUCE_VERSION, connection.version_of(ProduceRequest))
        connection.send(self._request(batches), version)

    def _request(self, batches: dict[TopicPartition, Batch]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for target, batch in batches.items():
            data = PartitionProduceData(index=target.partition, records=batch.data)  # type: ignore[arg-type]
            topics.setdefault(target.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._delivery.transactional_id,
            acks=self._delivery.acks,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()],
        )

    # -- answers ------------------------------------------------------------------------------------------

    def _receive(self, leader: str) -> None:
        """Take the oldest answer in; when something in it failed, deliver all that is not acknowledged again."""
        request = self._sent[leader][0]
        try:
            answer = self._answer(leader)
        except BrokerUnavailable:
            self._recover(leader)
            return
        self._sent[leader].popleft()
        failed = self._take(request.batches, answer)
        if failed:
            for later in list(self._sent[leader]):
                failed += self._take_later(leader, later)
            self._deliver_again(failed)

    def _answer(self, leader: str) -> Any:
        """The next answer; a connection that was made anew has none to give."""
        connection = self._cluster.connection(leader)
        if not connection.is_waiting:
            raise BrokerUnavailable(f"the connection to {leader} was lost")
        return connection.receive()

    def _take(self, batches: dict[TopicPartition, Batch], answer: Any) -> list[Batch]:
        """Note what was stored; the batches that must be sent again."""
        failed = []
        for topic in answer.responses:
            for part in topic.partition_responses:
                target = TopicPartition(topic.name, part.index)
                batch = batches[target]
                if part.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self.offsets.append(part.base_offset)
                elif part.error_code in RETRIED:
                    failed.append(batch)
                else:
                    note = f" ({part.error_message})" if part.error_message else ""
                    raise BrokerError(part.error_code, f"writing to {target}{note}")
        return failed

    def _take_later(self, leader: str, later: _Request) -> list[Batch]:
        """The answer to a request behind a failed one: its batches may be out of order only because of that."""
        self._sent[leader].popleft()
        try:
            answer = self._answer(leader)
        except BrokerUnavailable:
            return list(later.batches.values())
        for topic in answer.responses:
            for part in topic.partition_responses:
                if part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    part.error_code = ErrorCode.NETWORK_EXCEPTION
        return self._take(later.batches, answer)

    # -- trouble ------------------------------------------------------------------------------------------

    def _recover(self, leader: str) -> None:
        """The connection is gone: nobody knows what arrived, so everything without an answer goes out again."""
        requests = self._sent.pop(leader, collections.deque())
        self._deliver_again([batch for request in requests for batch in request.batches.values()])

    def _deliver_again(self, batches: list[Batch]) -> None:
        """One after the other, in order, until all are stored or time is up."""
        deadline = time.monotonic() + self._delivery.timeout_ms / 1000
        for batch in batches:
            while not self._is_delivered(batch, deadline):
                self._cluster.forget_leaders()
                time.sleep(_PAUSE_SECONDS)

    def _is_delivered(self, batch: Batch, deadline: float) -> bool:
        try:
            leader = self._cluster.leader(batch.target)
            while self._sent.get(leader):
                self._receive(leader)
            self._send_request(leader, {batch.target: batch})
            answer = self._answer(leader)
        except (BrokerUnavailable, BrokerError) as error:
            self._give_up_or_pass(error, deadline)
            return False
        failed = self._take({batch.target: batch}, answer)
        if failed and time.monotonic() > deadline:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"writing to {batch.target}")
        return not failed

    def _give_up_or_pass(
        self, error: BrokerUnavailable | BrokerError, deadline: float = float("inf")
    ) -> None:
        if isinstance(error, BrokerError) and error.code not in RETRIED:
            raise error
        if time.monotonic() > deadline:
            raise error
