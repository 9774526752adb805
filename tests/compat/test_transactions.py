"""Transactions with every client: committed, aborted, fenced, abandoned, and with offsets inside.

What a producer of one client wrote is read by the readers of all three: what is committed or not is the broker's word,
and each client hides what was aborted in its own way.
"""

from __future__ import annotations

import uuid

import pytest
from clients import CLIENTS, CONFLUENT, Client, Sent
from cluster_under_test import Cluster
from raw_groups import committed_offsets
from transactional_clients import TRANSACTIONAL, Fenced, Message, TransactionalClient, transactional
from waiting import wait_until

from tidemill.testing import SubprocessBroker


def new_id() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


def send(producer: TransactionalClient, topic: str, *values: bytes) -> None:
    """And wait until they are written."""
    producer.send(topic, values)
    producer.flush()


def seen_by_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """What readers see, and all of them the same."""
    first, *others = [client.read_to_end(bootstrap, topic, isolation) for client in CLIENTS]
    assert all(other == first for other in others), (first, others)
    return [value for _, value in first]


def test_committed_is_seen_and_aborted_is_not(cluster: Cluster, client: Client, topic: str) -> None:
    with transactional(client.name, cluster.bootstrap, new_id()) as producer:
        for number in range(6):
            producer.begin()
            send(producer, topic, b"%d a" % number, b"%d b" % number)
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    wait_until(lambda: len(seen_by_all(cluster.bootstrap, topic)) == 6, "the end of the last transaction")
    assert seen_by_all(cluster.bootstrap, topic) == [b"0 a", b"0 b", b"2 a", b"2 b", b"4 a", b"4 b"]
    assert len(seen_by_all(cluster.bootstrap, topic, "read_uncommitted")) == 12


def test_an_open_transaction_holds_readers_back(cluster: Cluster, client: Client, topic: str) -> None:
    with transactional(client.name, cluster.bootstrap, new_id()) as producer:
        producer.begin()
        send(producer, topic, b"open")
        client.produce(cluster.bootstrap, topic, [Sent(b"plain")])
        assert seen_by_all(cluster.bootstrap, topic) == []
        assert seen_by_all(cluster.bootstrap, topic, "read_uncommitted") == [b"open", b"plain"]
        producer.commit()
        wait_until(lambda: seen_by_all(cluster.bootstrap, topic), "the end of the transaction")
        assert seen_by_all(cluster.bootstrap, topic) == [b"open", b"plain"]


def test_a_zombie_is_fenced_and_its_transaction_aborted(cluster: Cluster, client: Client, topic: str) -> None:
    """By a successor of another client: it is the broker that fences."""
    transactional_id = new_id()
    successor_client = CLIENTS[CLIENTS.index(client) - 1]
    with transactional(client.name, cluster.bootstrap, transactional_id) as zombie:
        zombie.begin()
        send(zombie, topic, b"from the grave")
        with transactional(successor_client.name, cluster.bootstrap, transactional_id) as successor:
            with pytest.raises(Fenced):
                zombie.commit()
            successor.begin()
            send(successor, topic, b"alive")
            successor.commit()
        wait_until(lambda: seen_by_all(cluster.bootstrap, topic), "the end of the transaction")
        assert seen_by_all(cluster.bootstrap, topic) == [b"alive"]
        assert seen_by_all(cluster.bootstrap, topic, "read_uncommitted") == [b"from the grave", b"alive"]


def next_message(client: TransactionalClient) -> list[Message]:
    found: list[Message] = []
    wait_until(lambda: found or found.extend(client.poll(1)) or found, "a message", 30)
    return found


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_offsets_belong_to_the_transaction(cluster: Cluster, name: str) -> None:
    """Consume, transform, produce: input offsets and output appear together or not at all, in both group protocols."""
    source, target, group = cluster.topic(), cluster.topic(), new_id()
    CONFLUENT.produce(cluster.bootstrap, source, [Sent(b"%d" % number) for number in range(4)])
    with transactional(name, cluster.bootstrap, new_id()) as copier:
        copier.join(group, source)
        for number in range(4):
            (message,) = messages = next_message(copier)
            assert message == (0, number, b"%d" % number)
            copier.begin()
            copier.send(target, [b"<" + message.value + b">"])
            copier.send_offsets(messages)
            if number == 3:
                copier.abort()
            else:
                copier.commit()
        copier.rewind()
        assert next_message(copier) == messages, "what was aborted comes again"
    wait_until(lambda: len(seen_by_all(cluster.bootstrap, target)) == 3, "the end of the last transaction")
    assert seen_by_all(cluster.bootstrap, target) == [b"<0>", b"<1>", b"<2>"]
    assert committed_offsets(cluster.bootstrap, group, source, 1) == {0: 3}


def test_a_killed_broker_keeps_its_transactions(client: Client) -> None:
    with SubprocessBroker() as broker:
        broker.create_topic("orders")
        with transactional(client.name, broker.bootstrap, "committed") as committed:
            committed.begin()
            send(committed, "orders", b"kept")
            committed.commit()
        with transactional(client.name, broker.bootstrap, "open") as open_one:
            open_one.begin()
            send(open_one, "orders", b"left open")
            broker.kill()
            broker.start()
            with transactional(client.name, broker.bootstrap, "open") as successor:
                successor.begin()
                send(successor, "orders", b"after the kill")
                successor.commit()
            wait_until(lambda: len(seen_by_all(broker.bootstrap, "orders")) == 2, "the last end")
            assert seen_by_all(broker.bootstrap, "orders") == [b"kept", b"after the kill"]
