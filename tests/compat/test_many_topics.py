"""A thousand topics at once: made, listed, written and read by each of the three clients, deleted.

Each client gets to know all topics in a few requests for metadata rather than in a thousand: it is asked for them side
by side, as a program with many topics does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from cluster_under_test import Cluster
from confluent_kafka.admin import NewTopic
from waiting import wait_until

MANY = 1_000
PATIENCE_SECONDS = 60
Messages = dict[str, bytes]
"""One value for each topic."""


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Iterator[list[str]]:
    """Made in one request and deleted in one; both are seen in the list of topics."""
    admin, prefix = cluster.admin(), cluster.topic_name()
    names = [f"{prefix}-{number}" for number in range(MANY)]
    for made in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result(PATIENCE_SECONDS)
    wait_until(lambda: set(names) <= listed(cluster), "all topics")
    yield names
    for gone in admin.delete_topics(names).values():
        gone.result(PATIENCE_SECONDS)
    wait_until(lambda: not set(names) & listed(cluster), "the end of all topics", PATIENCE_SECONDS)


def listed(cluster: Cluster) -> set[str]:
    return set(cluster.admin().list_topics(timeout=20).topics)


# -- librdkafka ----------------------------------------------------------------------------------------


def confluent_write(bootstrap: str, messages: Messages) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    failures: list[object] = []
    for name, value in messages.items():
        producer.produce(name, value, on_delivery=lambda error, _: error and failures.append(error))
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not failures


def confluent_read(bootstrap: str, wanted: Messages) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0) for name in wanted])
    missing = Missing(wanted)
    while missing:
        for message in consumer.consume(MANY, 0.2):
            assert not message.error()
            missing.found(message.topic(), message.value())
    consumer.close()


# -- kafka-python --------------------------------------------------------------------------------------


def kafka_python_write(bootstrap: str, messages: Messages) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    with ThreadPoolExecutor(100) as threads:  # each of them waits for the metadata of its topic
        sent = list(threads.map(lambda name: producer.send(name, messages[name]), messages))
    producer.flush(PATIENCE_SECONDS)
    assert all(each.succeeded() for each in sent)
    producer.close()


def kafka_python_read(bootstrap: str, wanted: Messages) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=100)
    partitions = [kafka.TopicPartition(name, 0) for name in wanted]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    missing = Missing(wanted)
    while missing:
        for records in consumer.poll(200, max_records=MANY).values():
            for record in records:
                missing.found(record.topic, record.value)
    consumer.close()


# -- aiokafka ------------------------------------------------------------------------------------------


def aiokafka_write(bootstrap: str, messages: Messages) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
        await producer.start()
        sent = await asyncio.gather(*(producer.send(name, value) for name, value in messages.items()))
        await asyncio.gather(*sent)
        await producer.stop()

    asyncio.run(asyncio.wait_for(write(), PATIENCE_SECONDS))


def aiokafka_read(bootstrap: str, wanted: Messages) -> None:
    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100)
        await consumer.start()
        partitions = [aiokafka.TopicPartition(name, 0) for name in wanted]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        missing = Missing(wanted)
        while missing:
            for records in (await consumer.getmany(timeout_ms=200, max_records=MANY)).values():
                for record in records:
                    missing.found(record.topic, record.value)
        await consumer.stop()

    asyncio.run(asyncio.wait_for(read(), PATIENCE_SECONDS))


class Missing:
    """What is still to be read. Other clients write to the same topics: their values are passed over."""

    def __init__(self, wanted: Messages) -> None:
        self._left = dict(wanted)
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    def __bool__(self) -> bool:
        assert time.monotonic() < self._deadline, f"{len(self._left)} topics gave nothing"
        return bool(self._left)

    def found(self, topic: str, value: Any) -> None:
        if self._left.get(topic) == value:
            del self._left[topic]


WAYS: dict[str, tuple[Callable[[str, Messages], None], Callable[[str, Messages], None]]] = {
    CONFLUENT.name: (confluent_write, confluent_read),
    KAFKA_PYTHON.name: (kafka_python_write, kafka_python_read),
    AIOKAFKA.name: (aiokafka_write, aiokafka_read),
}


@pytest.mark.parametrize("client", WAYS)
def test_a_thousand_topics_are_written_and_read(cluster: Cluster, topics: list[str], client: str) -> None:
    write, read = WAYS[client]
    messages = {name: f"{client} {name}".encode() for name in topics}
    write(cluster.bootstrap, messages)
    read(cluster.bootstrap, messages)
