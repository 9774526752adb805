"""EndTxn, Produce and TxnOffsetCommit that arrive past the next transaction: nothing foreign is ended, nothing hangs.

With single messages every request of a producer can be kept and sent again, at any later time; with a real client its
process is stopped (SIGSTOP) in the middle of a transaction and goes on after it was replaced.
"""

from __future__ import annotations

import os
import random
import signal
import uuid

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from log_files import read_values
from raw_groups import committed_offsets
from raw_transactions import RawProducer, is_stable
from transaction_reading import committed_values
from waiting import wait_until
from workers import Worker

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest

IS_LONG = os.environ.get("TIDEMILL_FAULTS") == "long"
REFUSED_WRITES = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
}
REFUSED_ENDS = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
ROUNDS = 30


@pytest.fixture
def name() -> str:
    return f"late-{uuid.uuid4().hex[:8]}"


def test_a_late_end_does_not_end_the_next_transaction(cluster: Cluster, topic: str, name: str) -> None:
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        assert producer.produce(topic, b"first") == 0
        late_commit, late_abort = producer.end_request(commit=True), producer.end_request(commit=False)
        assert producer.end(commit=True) == 0
        assert producer.produce(topic, b"second") == 0
        assert producer.send_late(late_commit) in REFUSED_ENDS
        assert producer.send_late(late_abort) in REFUSED_ENDS
        assert not is_stable(cluster.bootstrap, topic), "the second transaction is still open"
        assert committed_values(cluster.bootstrap, topic) == [b"first"]
        assert producer.end(commit=False) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of all transactions")
    assert committed_values(cluster.bootstrap, topic) == [b"first"]


def test_an_end_that_is_repeated_at_once_gets_the_same_answer(
    cluster: Cluster, topic: str, name: str
) -> None:
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        assert producer.produce(topic, b"once") == 0
        again = producer.end_request(commit=True)
        assert producer.end(commit=True) == 0
        wait_until(lambda: is_stable(cluster.bootstrap, topic), "the marker")
        wait_until(lambda: producer.send_late(again) == 0, "the answer to be repeated")
        assert producer.produce(topic, b"next") == 0, "with the epoch that the first answer gave"
        assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the second marker")
    assert committed_values(cluster.bootstrap, topic) == [b"once", b"next"]


@pytest.mark.parametrize(("version", "is_next_open"), [(1, False), (2, False), (2, True)])
def test_a_late_batch_is_refused_and_nothing_hangs(
    cluster: Cluster, topic: str, name: str, version: int, is_next_open: bool
) -> None:
    """In version 1 the next transaction has the same epoch: a late batch can only be caught before it begins."""
    with RawProducer(cluster.bootstrap, name, version).begin() as producer:
        if version == 1:
            assert producer.add(topic) == 0
        assert producer.produce(topic, b"in time") == 0
        late = producer.produce_request(topic, b"late")
        assert producer.end(commit=True) == 0
        wait_until(lambda: is_stable(cluster.bootstrap, topic), "the marker")
        if is_next_open:
            assert producer.produce(topic, b"next") == 0
        assert producer.send_late(late) in REFUSED_WRITES
        if is_next_open:
            assert producer.end(commit=True) == 0
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of all transactions")
    assert b"late" not in committed_values(cluster.bootstrap, topic)
    assert b"late" not in read_values(cluster.bootstrap, topic)


def test_late_offsets_are_refused(cluster: Cluster, topic: str, name: str) -> None:
    with WireClient(cluster.bootstrap) as connection:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        wait_until(lambda: connection.call(request).coordinators[0].error_code == 0, "a coordinator", 20)
    with RawProducer(cluster.bootstrap, name).begin() as producer:
        first = producer.offsets_request(name, topic, 5)
        wait_until(lambda: producer.send_late(first) == 0, "the offsets to be taken")
        late = producer.offsets_request(name, topic, 3)
        assert producer.end(commit=True) == 0
        wait_until(lambda: committed_offsets(cluster.bootstrap, name, topic, 1) == {0: 5}, "the offset")
        assert producer.send_late(producer.offsets_request(name, topic, 9)) == 0
        assert producer.send_late(late) in REFUSED_WRITES | REFUSED_ENDS
        assert producer.end(commit=True) == 0
        wait_until(lambda: committed_offsets(cluster.bootstrap, name, topic, 1) == {0: 9}, "the offset")


@pytest.mark.parametrize("seed", range(30 if IS_LONG else 1))
def test_everything_is_repeated_at_random_with_kills_between(seed: int) -> None:
    """Each request that was ever sent may come again at any time; the broker is killed now and then."""
    chance, expected, sent = random.Random(seed), [], []
    with SubprocessBroker() as broker:
        topic = broker.create_topic("late")
        producer = RawProducer(broker.bootstrap, "repeats").begin()
        for number in range(ROUNDS):
            value, commit = b"%d" % number, chance.random() < 0.6
            write, end = producer.produce_request(topic, value), None
            assert producer.send_late(write) == 0
            for late in chance.sample(sent, min(len(sent), 2)):
                assert producer.send_late(late) != 0, "what belongs to an earlier transaction is refused"
            end = producer.end_request(commit=commit)
            assert producer.end(commit=commit) == 0
            sent += [write, end]
            expected += [value] if commit else []
            if chance.random() < 0.1:
                broker.kill()
                broker.restart()
                producer.reconnect(broker.bootstrap)
        wait_until(lambda: is_stable(broker.bootstrap, topic), "the end of all transactions")
        assert committed_values(broker.bootstrap, topic) == expected
        with producer:
            assert all(producer.send_late(each) != 0 for each in sent[:-2]), "and after all is over, too"
        assert is_stable(broker.bootstrap, topic)
        assert committed_values(broker.bootstrap, topic) == expected


def test_a_client_that_was_stopped_is_fenced_when_it_goes_on(cluster: Cluster, topic: str, name: str) -> None:
    with Worker("zombie_producer.py", cluster.bootstrap, topic, name) as zombie:
        zombie.start()
        wait_until(lambda: zombie.journal() == [["open"]], "the open transaction", 30)
        zombie.signal(signal.SIGSTOP)
        successor = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
        successor.init_transactions(20)
        successor.begin_transaction()
        successor.produce(topic, b"from the successor", partition=0)
        successor.flush(20)
        zombie.signal(signal.SIGUSR1)
        zombie.signal(signal.SIGCONT)
        wait_until(lambda: len(zombie.journal()) == 2, "the end of the zombie", 30)
        assert zombie.journal()[1] == ["refused", "_FENCED"]
        successor.commit_transaction(20)
    wait_until(lambda: is_stable(cluster.bootstrap, topic), "the end of all transactions")
    assert committed_values(cluster.bootstrap, topic) == [b"from the successor"]
