"""What the handlers of transactions translate: requests of every version to the shard, its answers back to clients.

The shard is the real one, driven by hand; services, gate and marker writer are as small as they can be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from transaction_driver import TIMEOUT_MS, TransactionDriver

from tidemill.api.context import ANONYMOUS, RequestContext
from tidemill.api.producers import ProducerApi
from tidemill.api.transaction_markers import EndOfTransaction, Errors
from tidemill.api.transactions import TransactionApi
from tidemill.coordination.transaction.producer_ids import ProducerIdStock
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_transactions import ListTransactionsRequest
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
INVALID = ErrorCode.INVALID_REQUEST
TOPICS = {"orders": SimpleNamespace(partitions={0: None, 1: None})}


class DrivenCoordinator:
    """The runtime as far as handlers see it: each call is carried out at once."""

    def __init__(self, driver: TransactionDriver) -> None:
        self._driver = driver
        self.runtime = SimpleNamespace(led_partitions=[0])

    async def submit(self, key: str, call: Callable[..., Any]) -> Any:
        return await self.submit_to(0, call)

    async def submit_to(self, index: int, call: Callable[..., Any]) -> Any:
        core = SimpleNamespace(shard=self._driver.shard, carry_out=lambda outcome: outcome)
        return self._driver.carry_out(call(core, "token", self._driver.now_ms))


class Markers:
    """Notes the ends that it is to write; the test says what comes of them."""

    def __init__(self) -> None:
        self.written: list[tuple[EndOfTransaction, tuple[TopicPartition, ...]]] = []
        self.errors: Errors = {}

    def write(
        self, end: EndOfTransaction, partitions: Iterable[TopicPartition], done: Callable[[Errors], None]
    ) -> None:
        names = tuple(partitions)
        self.written.append((end, names))
        done({name: self.errors.get(name, ErrorCode.NONE) for name in names})


class Handlers:
    def __init__(self) -> None:
        self.driver, self.markers = TransactionDriver(), Markers()
        self.blocks = 0
        self.stock = ProducerIdStock()
        self.group_partitions: dict[str, int] = {}
        services: Any = SimpleNamespace(
            node_id=1,
            metadata=SimpleNamespace(image=SimpleNamespace(topics=TOPICS), change=self._allocate),
            groups=SimpleNamespace(partition_for=lambda group: self.group_partitions[group]),
            replicas=SimpleNamespace(partitions={}),
            coordinators=SimpleNamespace(
                producer_ids=self.stock, internal_topics=SimpleNamespace(make_sure_of=self._make_sure_of)
            ),
        )
        coordinator: Any = DrivenCoordinator(self.driver)
        markers: Any = self.markers
        self.api = TransactionApi(services, coordinator, None, markers)  # type: ignore[arg-type]
        self.producers = ProducerApi(services, lambda: self.api)

    async def _allocate(self, decide: Callable[..., Any]) -> Any:
        self.blocks += 1
        return SimpleNamespace(first=1000 * self.blocks, end=1000 * self.blocks + 1000)

    async def _make_sure_of(self, topic: str) -> None:
        assert topic == "__consumer_offsets"
        self.group_partitions = {"readers": 7}

    def call(self, handler: Callable[..., Coroutine[Any, Any, Any]], request: Any, version: int) -> Any:
        context = RequestContext(0, version, 1, "client", ANONYMOUS, "PLAINTEXT", "127.0.0.1")
        return asyncio.run(handler(context, request))

    def init(self, version: int = 5, **fields: Any) -> Any:
        defaults = {"transactional_id": "orders", "transaction_timeout_ms": TIMEOUT_MS}
        request = InitProducerIdRequest(**(defaults | fields))
        return self.call(self.producers.init_producer_id, request, version)

    def add(self, identity: Any, *partitions: int, version: int = 3, topic: str = "orders") -> Any:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        who = {"transactional_id": "orders", "producer_id": identity[0], "producer_epoch": identity[1]}
        if version >= 4:
            request = AddPartitionsToTxnRequest(
                transactions=[AddPartitionsToTxnTransaction(**who, topics=topics)]
            )
        else:
            old = {f"v3_and_below_{name}": value for name, value in (who | {"topics": topics}).items()}
            request = AddPartitionsToTxnRequest(**old)
        answer = self.call(self.api.add_partitions_to_txn, request, version)
        found = (
            answer.results_by_transaction[0].topic_results
            if version >= 4
            else answer.results_by_topic_v3_and_below
        )
        return {each.partition_index: each.partition_error_code for each in found[0].results_by_partition}

    def end(self, identity: Any, version: int, commit: bool = True) -> Any:
        request = EndTxnRequest(
            transactional_id="orders", producer_id=identity[0], producer_epoch=identity[1], committed=commit
        )
        return self.call(self.api.end_txn, request, version)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def begun(handlers: Handlers) -> tuple[int, int]:
    answer = handlers.init()
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


# -- InitProducerId ---------------------------------------------------------------------------------------


def test_the_stock_of_ids_is_filled_before_it_is_needed(handlers: Handlers) -> None:
    assert begun(handlers)[1] == 0
    assert (handlers.blocks, handlers.stock.remaining) == (1, 1000)
    assert handlers.init().producer_epoch == 1
    assert handlers.blocks == 1


@pytest.mark.parametrize("transactional_id", ["orders", "", None])
@pytest.mark.parametrize("fields", [{"producer_id": 5}, {"producer_epoch": 3}])
def test_a_producer_id_goes_with_an_epoch(
    handlers: Handlers, transactional_id: str | None, fields: dict[str, int]
) -> None:
    answer = handlers.init(transactional_id=transactional_id, **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (INVALID, -1, -1)


def test_an_empty_transactional_id_is_refused(handlers: Handlers) -> None:
    answer = handlers.init(transactional_id="")
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (INVALID, -1, -1)


@pytest.mark.parametrize(("version", "code"), [(3, OLD_FENCED), (4, FENCED), (5, FENCED)])
def test_who_was_replaced_is_told_so_in_words_it_knows(
    handlers: Handlers, version: int, code: ErrorCode
) -> None:
    old = begun(handlers)
    begun(handlers), begun(handlers)
    answer = handlers.init(version, producer_id=old[0], producer_epoch=old[1])
    assert (answer.error_code, answer.producer_id) == (code, -1)


# -- partitions and offsets -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_all_partitions_are_added_or_none(handlers: Handlers, version: int) -> None:
    identity = begun(handlers)
    assert handlers.add(identity, 0, 9, version=version) == {
        0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not handlers.driver.metadata().partitions
    assert handlers.add(identity, 0, 1, version=version) == {0: 0, 1: 0}
    assert handlers.driver.metadata().partitions == {TopicPartition("orders", n) for n in (0, 1)}


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_clients_add_no_partitions_of_the_coordinators(
    handlers: Handlers, version: int, code: ErrorCode
) -> None:
    """For a broker they are partitions as all others; here there are none of them."""
    identity = begun(handlers)
    assert handlers.add(identity, 0, version=version, topic="__transaction_state") == {0: code}
    assert not handlers.driver.metadata().partitions


@pytest.mark.parametrize(("version", "code"), [(1, OLD_FENCED), (2, FENCED), (3, FENCED), (4, FENCED)])
def test_a_zombie_adds_nothing(handlers: Handlers, version: int, code: ErrorCode) -> None:
    zombie = begun(handlers)
    begun(handlers)
    assert handlers.add(zombie, 0, version=version) == {0: code}


def test_offsets_add_the_partition_of_their_group(handlers: Handlers) -> None:
    """Its topic is made for that, if nobody needed it before."""
    producer_id, epoch = begun(handlers)
    who = {"transactional_id": "orders", "producer_id": producer_id, "producer_epoch": epoch}
    answer = handlers.call(
        handlers.api.add_offsets_to_txn, AddOffsetsToTxnRequest(**who, group_id="readers"), 4
    )
    assert answer.error_code == 0
    assert handlers.driver.metadata().partitions == {TopicPartition("__consumer_offsets", 7)}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({}, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_offsets_that_are_refused_are_refused_one_by_one(
    handlers: Handlers, fields: dict[str, str], code: ErrorCode
) -> None:
    handlers.group_partitions = {"readers": 7}
    partitions = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in (0, 1)]
    who = {"transactional_id": "orders", "group_id": "readers"} | fields
    request = TxnOffsetCommitRequest(
        **who, topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=partitions)]
    )
    (topic,) = handlers.call(handlers.api.txn_offset_commit, request, 5).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, code), (1, code)]


def test_offsets_of_one_topic_are_answered_together(handlers: Handlers) -> None:
    """Those of partitions that do not exist come first, as in Kafka."""
    partitions = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in (0, 9, 1)]
    request = TxnOffsetCommitRequest(
        transactional_id="orders",
        group_id="",
        topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=partitions)],
    )
    (topic,) = handlers.call(handlers.api.txn_offset_commit, request, 5).topics
    refused = ErrorCode.INVALID_GROUP_ID
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, refused),
        (1, refused),
    ]


# -- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "next_epoch"), [(4, 0), (5, 1)])
def test_an_end_raises_the_epoch_for_those_who_know_of_it(
    handlers: Handlers, version: int, next_epoch: int
) -> None:
    identity = begun(handlers)
    handlers.add(identity, 0, version=3 if version == 4 else 5)
    answer = handlers.end(identity, version)
    assert (answer.error_code, answer.producer_epoch) == (0, next_epoch)
    assert handlers.driver.markers[0].transaction_version == (2 if version == 5 else 0)


@pytest.mark.parametrize(("version", "code"), [(1, OLD_FENCED), (2, FENCED), (5, FENCED)])
def test_a_zombie_ends_nothing(handlers: Handlers, version: int, code: ErrorCode) -> None:
    zombie = begun(handlers)
    successor = begun(handlers)
    handlers.add(successor, 0)
    answer = handlers.end(zombie, version)
    assert (answer.error_code, answer.producer_id) == (code, -1)
    assert handlers.driver.state.text == "Ongoing"


def test_markers_are_answered_partition_by_partition(handlers: Handlers) -> None:
    gone = TopicPartition("orders", 9)
    handlers.markers.errors[gone] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    marker = WritableTxnMarker(
        producer_id=5,
        producer_epoch=2,
        transaction_result=True,
        coordinator_epoch=3,
        transaction_version=2,
        topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0, 9])],
    )
    answer = handlers.call(
        handlers.api.write_txn_markers, WriteTxnMarkersRequest(markers=[marker]), 2
    ).markers[0]
    ((end, names),) = handlers.markers.written
    assert end == EndOfTransaction((5, 2), True, 3, 2)  # type: ignore[arg-type]
    assert names == (TopicPartition("orders", 0), gone)
    assert [each.error_code for each in answer.topics[0].partitions] == [0, 3]


@pytest.mark.parametrize("producer", [(-1, 0), (-1, -1), (5, -1)])
def test_a_marker_of_nobody_is_not_written(handlers: Handlers, producer: tuple[int, int]) -> None:
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
    )
    (answer,) = handlers.call(
        handlers.api.write_txn_markers, WriteTxnMarkersRequest(markers=[marker]), 2
    ).markers
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not handlers.markers.written


# -- looking ----------------------------------------------------------------------------------------------


def test_a_transaction_is_described_and_a_missing_one_is_an_error_of_its_own(handlers: Handlers) -> None:
    identity = begun(handlers)
    handlers.add(identity, 1, 0)
    request = DescribeTransactionsRequest(transactional_ids=["orders", "nobody", ""])
    found, missing, empty = handlers.call(handlers.api.describe_transactions, request, 0).transaction_states
    assert (found.transaction_state, found.producer_id, found.transaction_timeout_ms) == (
        "Ongoing",
        identity[0],
        TIMEOUT_MS,
    )
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("orders", [0, 1])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_producers_of_what_cannot_be_a_topic(handlers: Handlers, topic: str, code: ErrorCode) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[4])])
    (answer,) = handlers.call(handlers.producers.describe_producers, request, 0).topics
    assert [(each.partition_index, each.error_code) for each in answer.partitions] == [(4, code)]


@pytest.mark.parametrize(
    ("fields", "listed"),
    [
        ({}, ["orders", "payments"]),
        ({"state_filters": ["Ongoing"]}, ["orders"]),
        ({"state_filters": ["Asleep"]}, []),
        ({"state_filters": ["Asleep", "Empty"]}, ["payments"]),
        ({"producer_id_filters": [999_999]}, []),
        ({"transactional_id_pattern": "pay.*"}, ["payments"]),
        ({"transactional_id_pattern": "pay"}, []),
        ({"duration_filter": 1_000_000}, []),
    ],
)
def test_what_is_listed(handlers: Handlers, fields: dict[str, Any], listed: list[str]) -> None:
    handlers.add(begun(handlers), 0)
    handlers.init(transactional_id="payments")
    answer = handlers.call(handlers.api.list_transactions, ListTransactionsRequest(**fields), 2)
    assert sorted(each.transactional_id for each in answer.transaction_states) == listed
    unknown = [name for name in fields.get("state_filters", ()) if name == "Asleep"]
    assert answer.unknown_state_filters == unknown


@pytest.mark.parametrize("pattern", ["([", "a" * 5000, "((a{100}){100}){100}", "(a?b?){1000}c"])
def test_a_pattern_that_is_none_is_refused(handlers: Handlers, pattern: str) -> None:
    """Or one that is too long, or takes too much memory."""
    with pytest.raises(ApiError) as refused:
        handlers.call(
            handlers.api.list_transactions, ListTransactionsRequest(transactional_id_pattern=pattern), 2
        )
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_hostile_pattern_does_not_stall_the_loop(handlers: Handlers) -> None:
    """Milliseconds for each of these ids, half a second in all: others have their turn meanwhile."""
    chance = random.Random(4)
    for _ in range(200):
        handlers.init(transactional_id="".join(chance.choice("ab") for _ in range(400)))
    request = ListTransactionsRequest(transactional_id_pattern=".*a.{500}")
    turns = 0

    async def list_and_count() -> Any:
        nonlocal turns
        context = RequestContext(0, 2, 1, "client", ANONYMOUS, "PLAINTEXT", "127.0.0.1")
        listing = asyncio.ensure_future(handlers.api.list_transactions(context, request))
        while not listing.done():
            turns += 1
            await asyncio.sleep(0.001)
        return listing.result()

    assert not asyncio.run(list_and_count()).transaction_states
    assert turns > 20
