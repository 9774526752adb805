"""What there is to know about transactions, and which of them hang.

A transaction *hangs* on a partition when its data is there and no coordinator will ever end it: readers of committed
messages wait before it for ever. It comes about when a batch arrives after the end of its transaction and the broker
did not check (Kafka before 3.6, or `transaction.partition.verification.enable=false`). It is found as Kafka's
`kafka-transactions find-hanging` does it:

    open on the partition (DescribeProducers) for longer than any transaction may take, and
    no transactional id has that producer id (ListTransactions),
    or its transaction does not name the partition (DescribeTransactions)

and repaired by an abort marker (WriteTxnMarkers) with the epochs that the partition knows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidemill.cli.errors import CommandError
from tidemill.cli.wire_connection import METADATA, WireApi, WireCluster
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages import describe_producers as producing
from tidemill.wire.messages import describe_transactions as describing
from tidemill.wire.messages import list_transactions as listing
from tidemill.wire.messages import write_txn_markers as marking
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

FIND_COORDINATOR = WireApi(10, "FindCoordinator", FindCoordinatorRequest, FindCoordinatorResponse)
WRITE_MARKERS = WireApi(
    27, "WriteTxnMarkers", marking.WriteTxnMarkersRequest, marking.WriteTxnMarkersResponse
)
DESCRIBE_PRODUCERS = WireApi(
    61, "DescribeProducers", producing.DescribeProducersRequest, producing.DescribeProducersResponse
)
DESCRIBE_TRANSACTIONS = WireApi(
    65,
    "DescribeTransactions",
    describing.DescribeTransactionsRequest,
    describing.DescribeTransactionsResponse,
)
LIST_TRANSACTIONS = WireApi(
    66, "ListTransactions", listing.ListTransactionsRequest, listing.ListTransactionsResponse
)
TRANSACTION_COORDINATOR = 1
Place = tuple[str, int]


class TransactionSummary(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionFacts:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    coordinator: int
    start_time_ms: int | None
    duration_ms: int | None
    partitions: list[Place]

    def as_json(self) -> dict[str, Any]:
        places = [{"topic": topic, "partition": partition} for topic, partition in self.partitions]
        return dataclasses.asdict(self) | {"partitions": places}


class OpenTransaction(NamedTuple):
    """As a partition's leader sees it."""

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    idle_ms: int
    leader: int


def transaction_summaries(
    cluster: WireCluster, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
) -> list[TransactionSummary]:
    request = listing.ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids)
    )
    found = []
    for broker, answer in cluster.ask_all(LIST_TRANSACTIONS, request).items():
        _check(answer.error_code, f"the transactions of broker {broker}")
        if answer.unknown_state_filters:
            raise CommandError(
                f"there is no state {answer.unknown_state_filters[0]}: "
                "say Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Dead"
            )
        found += [
            TransactionSummary(each.transactional_id, each.producer_id, each.transaction_state, broker)
            for each in answer.transaction_states
        ]
    return sorted(found)


def describe_transaction(cluster: WireCluster, transactional_id: str) -> TransactionFacts:
    broker = _coordinator_of(cluster, transactional_id)
    request = describing.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = cluster.ask(broker, DESCRIBE_TRANSACTIONS, request).transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise CommandError(
            f"transaction {transactional_id} does not exist: `tidemill transactions list` shows what is there"
        )
    _check(found.error_code, f"transaction {transactional_id}")
    start_ms = found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None
    return TransactionFacts(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        broker,
        start_ms,
        None if start_ms is None else max(0, _now_ms() - start_ms),
        [(topic.topic, partition) for topic in found.topics for partition in topic.partitions],
    )


def find_hanging(cluster: WireCluster, topics: list[str], longer_than_ms: int) -> list[OpenTransaction]:
    """In these topics, or in all."""
    candidates = [each for each in _open_transactions(cluster, topics) if each.idle_ms >= longer_than_ms]
    if not candidates:
        return []
    ids = {each.producer_id for each in candidates}
    listed = transaction_summaries(cluster, producer_ids=ids)
    described = [describe_transaction(cluster, each.transactional_id) for each in listed]
    looked_after = {(facts.producer_id, *place) for facts in described for place in facts.partitions}
    return [each for each in candidates if (each.producer_id, each.topic, each.partition) not in looked_after]


def abort_on_partition(cluster: WireCluster, hanging: OpenTransaction) -> None:
    """The transaction version is left at 0: such a marker may carry the epoch that the data has."""
    topic = marking.WritableTxnMarkerTopic(name=hanging.topic, partition_indexes=[hanging.partition])
    marker = marking.WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(0, hanging.coordinator_epoch),
    )
    answer = cluster.ask(hanging.leader, WRITE_MARKERS, marking.WriteTxnMarkersRequest(markers=[marker]))
    (outcome,) = answer.markers[0].topics[0].partitions
    _check(outcome.error_code, f"the transaction on {hanging.topic}-{hanging.partition}")


def _coordinator_of(cluster: WireCluster, transactional_id: str) -> int:
    request = FindCoordinatorRequest(
        key=transactional_id, key_type=TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id]
    )
    answer = cluster.ask_any(FIND_COORDINATOR, request)
    found = answer.coordinators[0] if answer.coordinators else answer
    _check(found.error_code, f"the coordinator of {transactional_id}")
    return found.node_id


def _open_transactions(cluster: WireCluster, topics: list[str]) -> list[OpenTransaction]:
    led: dict[int, dict[str, list[int]]] = {}
    for topic, partition, leader in _leaders(cluster, topics):
        led.setdefault(leader, {}).setdefault(topic, []).append(partition)
    found = []
    for leader, places in led.items():
        wanted = [producing.TopicRequest(name=name, partition_indexes=each) for name, each in places.items()]
        answer = cluster.ask(leader, DESCRIBE_PRODUCERS, producing.DescribeProducersRequest(topics=wanted))
        found += _open_in(answer, leader)
    return sorted(found)


def _leaders(cluster: WireCluster, topics: list[str]) -> list[tuple[str, int, int]]:
    wanted = [MetadataRequestTopic(name=topic) for topic in topics] or None
    answer = cluster.ask_any(METADATA, MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise CommandError(
                f"topic {topic.name} does not exist: `tidemill topics list` shows what is there"
            )
        _check(topic.error_code, f"topic {topic.name}")
    return [
        (topic.name or "", partition.partition_index, partition.leader_id)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader_id >= 0
    ]


def _open_in(answer: producing.DescribeProducersResponse, leader: int) -> list[OpenTransaction]:
    now_ms, found = _now_ms(), []
    for topic in answer.topics:
        for partition in topic.partitions:
            _check(partition.error_code, f"{topic.name}-{partition.partition_index}")
            found += [
                OpenTransaction(
                    topic.name,
                    partition.partition_index,
                    each.current_txn_start_offset,
                    each.producer_id,
                    each.producer_epoch,
                    each.coordinator_epoch,
                    max(0, now_ms - each.last_timestamp),
                    leader,
                )
                for each in partition.active_producers
                if each.current_txn_start_offset >= 0
            ]
    return found


def _check(code: int, subject: str) -> None:
    if code:
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
        raise CommandError(f"{subject}: the broker says {name}; try again, or see its log")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
