"""Transactions in single messages: what a broker answers to those that a well-behaved client sends rarely, or never."""

from __future__ import annotations

import uuid

import pytest
from cluster_under_test import Cluster
from raw_groups import committed_offsets
from raw_transactions import RawProducer, is_stable
from transaction_reading import committed_values
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TRANSACTIONS_AT_ONCE = 40
VERIFY_VERSION = 5


@pytest.fixture
def name() -> str:
    return f"wire-{uuid.uuid4().hex[:8]}"


# -- Produce ----------------------------------------------------------------------------------------------


def test_a_batch_that_overtook_the_first_one_is_refused(cluster: Cluster, topic: str, name: str) -> None:
    """A producer of version 2 begins every transaction at sequence zero, so this one cannot be the first."""
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        first, second = producer.produce_request(topic, b"first"), producer.produce_request(topic, b"second")
        assert producer.send_late(second) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send_late(first) == 0
        assert producer.send_late(second) == 0
        assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of the transaction")
    assert committed_values(cluster.bootstrap, topic) == [b"first", b"second"]


def test_a_producer_of_version_1_may_begin_anywhere(cluster: Cluster, topic: str, name: str) -> None:
    """Its past may have been deleted: it keeps its epoch, and counts on, from one transaction to the next."""
    with RawProducer(cluster.bootstrap, name, version=1).begin() as producer:
        assert producer.add(topic) == 0
        producer.produce_request(topic, b"never sent")
        assert producer.produce(topic, b"second") == 0
        assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of the transaction")
    assert committed_values(cluster.bootstrap, topic) == [b"second"]


def test_the_next_transaction_begins_at_once_or_hears_why_not(
    cluster: Cluster, topic: str, name: str
) -> None:
    """The broker waits a moment for the end of the one before; a producer of version 2 understands the rest."""
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        for number in range(TRANSACTIONS_AT_ONCE):
            batch = producer.produce_request(topic, b"%d" % number)
            while code := producer.send_late(batch):
                assert code == ErrorCode.CONCURRENT_TRANSACTIONS
            assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of all transactions")
    expected = [b"%d" % number for number in range(TRANSACTIONS_AT_ONCE)]
    assert committed_values(cluster.bootstrap, topic) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_transactional_batch_needs_the_transactional_id(
    cluster: Cluster, topic: str, name: str, version: int
) -> None:
    """Even where its transaction is open."""
    with RawProducer(cluster.bootstrap, name, version=version).begin() as producer:
        assert version == 2 or producer.add(topic) == 0
        batches = [producer.produce_request(topic, value) for value in (b"named", b"nameless")]
        for batch in batches:
            batch.transactional_id = None
            assert producer.send_late(batch) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            batch.transactional_id = name
            if batch is batches[0]:
                assert producer.send_late(batch) == 0
        assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of the transaction")
    assert committed_values(cluster.bootstrap, topic) == [b"named"]


def test_a_partition_that_knows_a_later_epoch_asks_nobody(cluster: Cluster, topic: str, name: str) -> None:
    """Here a marker of an administrator has the later epoch, which the coordinator knows nothing of."""
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        producer_id, later = producer.producer_id, producer.epoch + 1
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=later,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        )
        (written,) = producer.connection.call(WriteTxnMarkersRequest(markers=[marker]), 2).markers
        assert written.topics[0].partitions[0].error_code == 0
        assert producer.produce(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE, "nothing was added"


# -- TxnOffsetCommit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_alone", [True, False])
def test_offsets_of_a_topic_that_does_not_exist(
    cluster: Cluster, topic: str, name: str, is_alone: bool
) -> None:
    with WireClient(cluster.bootstrap) as connection:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        wait_until(lambda: connection.call(request).coordinators[0].error_code == 0, "a coordinator", 20)
    nowhere = cluster.topic_name()
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        wait_until(lambda: producer.send_late(producer.offsets_request(name, topic, 5)) == 0, "the group")
        asked = producer.offsets_request(name, nowhere, 1)
        asked.topics += [] if is_alone else producer.offsets_request(name, topic, 7).topics
        answer = producer.connection.call(asked, 5)
        codes = {each.name: each.partitions[0].error_code for each in answer.topics}
        unknown = {nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert codes == (unknown if is_alone else unknown | {topic: 0})
        assert producer.end(commit=True) == 0
    offset = 5 if is_alone else 7
    wait_until(lambda: committed_offsets(cluster.bootstrap, name, topic, 1) == {0: offset}, "the offset")


def test_offsets_of_a_partition_that_does_not_exist(cluster: Cluster, topic: str, name: str) -> None:
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        wait_until(lambda: producer.send_late(producer.offsets_request(name, topic, 5)) == 0, "the group")
        asked = producer.offsets_request(name, topic, 6)
        asked.topics[0].partitions[0].partition_index = 77
        assert producer.send_late(asked) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert producer.end(commit=True) == 0
    wait_until(lambda: committed_offsets(cluster.bootstrap, name, topic, 1) == {0: 5}, "the offset")


# -- AddPartitionsToTxn, as brokers send it ---------------------------------------------------------------


def verify(producer: RawProducer, epoch: int, *partitions: tuple[str, int]) -> list[int]:
    """Only ask whether these are part of the transaction."""
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in partitions],
    )
    answer = producer.connection.call(AddPartitionsToTxnRequest(transactions=[transaction]), VERIFY_VERSION)
    (result,) = answer.results_by_transaction
    found = {topic.name: topic.results_by_partition[0].partition_error_code for topic in result.topic_results}
    return [found[topic] for topic, _ in partitions]


def test_partitions_are_verified_and_nothing_is_added(cluster: Cluster, topic: str, name: str) -> None:
    other = cluster.topic()
    with RawProducer(cluster.bootstrap, name, version=1).begin() as producer:
        assert producer.add(topic) == 0
        for _ in range(2):
            codes = verify(producer, producer.epoch, (topic, 0), (other, 0))
            assert codes == [0, ErrorCode.TRANSACTION_ABORTABLE]
        assert verify(producer, producer.epoch + 1, (topic, 0)) == [ErrorCode.PRODUCER_FENCED]
        unknown = verify(producer, producer.epoch, (topic, 0), (cluster.topic_name(), 0))
        assert unknown == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert producer.end(commit=False) == 0
