"""A transaction, spoken at the level of the protocol, so that batches can be published as they are.

    transaction = Transaction(cluster, "tidemill-spark-5d6c…", timeout_ms=900_000, patience_ms=120_000)
    transaction.begin()            # shuts out every older owner of the id and ends what it left open
    transaction.add(partitions)
    …                              # Produce with transaction.producer
    transaction.commit()

`begin` returns only when no transaction of this id is under way any more: a commit that an older owner had begun is
complete, everything else is aborted. What is read after it is final.

Limits: the protocol before KIP-890's second part (partitions are added by name, the epoch changes only in `begin`),
which every broker from 0.11 on speaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import PASSING, TRANSACTION, BrokerError, Cluster, TopicPartition, check
from tidemill.spark.client.connection import Connection
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.sink.batching import Producer
from tidemill.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest

RETRIED = PASSING | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
LOST = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)  # fmt: skip
"""The transaction is not ours any more: a newer owner has begun, or its time was over."""

_PAUSE_SECONDS = 0.05
T = TypeVar("T")


def patiently(cluster: Cluster, patience_ms: int, attempt: Callable[[], T]) -> T:
    """What `attempt` returns, tried again while it fails with what passes by itself."""
    deadline = time.monotonic() + patience_ms / 1000
    while True:
        try:
            return attempt()
        except (BrokerUnavailable, BrokerError) as error:
            is_passing = isinstance(error, BrokerUnavailable) or error.code in RETRIED
            if not is_passing or time.monotonic() > deadline:
                raise
        cluster.forget_leaders()
        time.sleep(_PAUSE_SECONDS)


def idempotent_producer(cluster: Cluster, patience_ms: int) -> Producer:
    """A producer without transactions: its batches are stored once and in order, however often they are sent."""

    def attempt() -> Producer:
        answer = cluster.call_any(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
        check(answer.error_code, "asking for a producer id")
        return Producer(answer.producer_id, answer.producer_epoch, is_transactional=False)

    return patiently(cluster, patience_ms, attempt)


class Transaction:
    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int, patience_ms: int) -> None:
        self.id = transactional_id
        self.producer = Producer(-1, -1, is_transactional=True)
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms

    def begin(self) -> None:
        self.producer = patiently(self._cluster, self._patience_ms, self._begin)

    def _begin(self) -> Producer:
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=self._timeout_ms)
        answer = self._coordinator().call(request)
        check(answer.error_code, f"beginning the transaction {self.id}")
        return Producer(answer.producer_id, answer.producer_epoch, is_transactional=True)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction, before the first batch goes to them."""
        topics: dict[str, list[int]] = {}
        for where in sorted(partitions):
            topics.setdefault(where.topic, []).append(where.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer.id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=parts) for name, parts in topics.items()
            ],
        )
        patiently(self._cluster, self._patience_ms, lambda: self._add(request))

    def _add(self, request: AddPartitionsToTxnRequest) -> None:
        for topic in self._coordinator().call(request).results_by_topic_v3_and_below:
            for part in topic.results_by_partition:
                what = f"adding {topic.name}-{part.partition_index} to the transaction {self.id}"
                check(part.partition_error_code, what)

    def commit(self) -> None:
        """Tried once: when the answer is lost only `begin` can tell what became of it."""
        self._end(is_committed=True)

    def abort(self) -> None:
        self._end(is_committed=False)

    def _end(self, *, is_committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=is_committed,
        )
        answer = self._coordinator().call(request)
        check(answer.error_code, f"ending the transaction {self.id}")

    def _coordinator(self) -> Connection:
        return self._cluster.connection(self._cluster.coordinator(self.id, TRANSACTION))
