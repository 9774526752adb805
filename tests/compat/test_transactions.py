"""Transactions with a real client: committed, aborted, fenced, abandoned, and with offsets inside."""

from __future__ import annotations

import uuid

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from transaction_reading import committed_values

from tidemill.testing import SubprocessBroker

TIMEOUT_SECONDS = 30


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def new_id() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


def send(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(TIMEOUT_SECONDS)


def test_committed_is_seen_and_aborted_is_not(cluster: Cluster, topic: str) -> None:
    producer = transactional(cluster.bootstrap, new_id())
    for number in range(6):
        producer.begin_transaction()
        send(producer, topic, b"%d a" % number, b"%d b" % number)
        if number % 2:
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)
    assert committed_values(cluster.bootstrap, topic) == [b"0 a", b"0 b", b"2 a", b"2 b", b"4 a", b"4 b"]
    assert len(committed_values(cluster.bootstrap, topic, "read_uncommitted")) == 12


def test_an_open_transaction_holds_readers_back(cluster: Cluster, topic: str) -> None:
    producer = transactional(cluster.bootstrap, new_id())
    producer.begin_transaction()
    send(producer, topic, b"open")
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    send(plain, topic, b"plain")
    assert committed_values(cluster.bootstrap, topic) == []
    assert committed_values(cluster.bootstrap, topic, "read_uncommitted") == [b"open", b"plain"]
    producer.commit_transaction(TIMEOUT_SECONDS)
    assert committed_values(cluster.bootstrap, topic) == [b"open", b"plain"]


def test_a_zombie_is_fenced_and_its_transaction_aborted(cluster: Cluster, topic: str) -> None:
    transactional_id = new_id()
    zombie = transactional(cluster.bootstrap, transactional_id)
    zombie.begin_transaction()
    send(zombie, topic, b"from the grave")
    successor = transactional(cluster.bootstrap, transactional_id)
    with pytest.raises(KafkaException):
        zombie.commit_transaction(TIMEOUT_SECONDS)
    successor.begin_transaction()
    send(successor, topic, b"alive")
    successor.commit_transaction(TIMEOUT_SECONDS)
    assert committed_values(cluster.bootstrap, topic) == [b"alive"]


def test_offsets_belong_to_the_transaction(cluster: Cluster) -> None:
    """Consume, transform, produce: input offsets and output appear together or not at all."""
    source, target, group = cluster.topic(), cluster.topic(), new_id()
    send(Producer({"bootstrap.servers": cluster.bootstrap}), source, b"1", b"2", b"3", b"4")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = transactional(cluster.bootstrap, new_id())
    for place in range(4):
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None and not message.error()
        producer.begin_transaction()
        producer.produce(target, b"<" + message.value() + b">", partition=0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_SECONDS
        )
        if place == 3:
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)
    (committed,) = consumer.committed([TopicPartition(source, 0)], TIMEOUT_SECONDS)
    consumer.close()
    assert committed.offset == 3
    assert committed_values(cluster.bootstrap, target) == [b"<1>", b"<2>", b"<3>"]


def test_a_killed_broker_keeps_its_transactions() -> None:
    with SubprocessBroker() as broker:
        broker.create_topic("orders")
        committed = transactional(broker.bootstrap, "committed")
        committed.begin_transaction()
        send(committed, "orders", b"kept")
        committed.commit_transaction(TIMEOUT_SECONDS)
        open_one = transactional(broker.bootstrap, "open")
        open_one.begin_transaction()
        send(open_one, "orders", b"left open")
        broker.kill()
        broker.start()
        successor = transactional(broker.bootstrap, "open")
        successor.begin_transaction()
        send(successor, "orders", b"after the kill")
        successor.commit_transaction(TIMEOUT_SECONDS)
        assert committed_values(broker.bootstrap, "orders") == [b"kept", b"after the kill"]
