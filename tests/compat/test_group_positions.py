"""Where members of groups read: commit with metadata, seek, reset, and static members, with the clients in Python.

librdkafka's side of the same is in test_groups.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import aiokafka
import kafka
import pytest
from aiokafka.structs import OffsetAndMetadata as AioOffset
from aiokafka.structs import TopicPartition as AioPartition
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from group_members import Member, member
from kafka.structs import OffsetAndMetadata, TopicPartition
from waiting import wait_until

COUNT = 10
PARTITIONS = 4
POLL_MS = 10_000


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled(cluster: Cluster) -> str:
    topic = cluster.topic()
    CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"%d" % number) for number in range(COUNT)])
    return topic


@contextlib.contextmanager
def kafka_python(cluster: Cluster, group: str, topic: str, reset: str) -> Iterator[kafka.KafkaConsumer]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
    )
    with contextlib.closing(consumer):
        yield consumer


@contextlib.asynccontextmanager
async def aio(
    cluster: Cluster, group: str, topic: str, reset: str
) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def first_offset(consumer: kafka.KafkaConsumer) -> int:
    found: list[int] = []
    wait_until(
        lambda: (
            found.extend(record.offset for records in consumer.poll(1000).values() for record in records)
            or found
        ),
        "a message",
        30,
    )
    return found[0]


def test_commit_seek_and_metadata_with_kafka_python(cluster: Cluster, group: str, filled: str) -> None:
    place = TopicPartition(filled, 0)
    with kafka_python(cluster, group, filled, "earliest") as consumer:
        assert first_offset(consumer) == 0
        consumer.commit({place: OffsetAndMetadata(7, "half way", -1)})
        consumer.seek(place, 3)
        assert first_offset(consumer) == 3
        assert consumer.committed(place, metadata=True)[:2] == (7, "half way")
    with kafka_python(cluster, group, filled, "earliest") as successor:
        assert first_offset(successor) == 7


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", COUNT)])
def test_where_a_new_group_of_kafka_python_begins(
    cluster: Cluster, group: str, filled: str, reset: str, expected: int
) -> None:
    with kafka_python(cluster, group, filled, reset) as consumer:
        if reset == "latest":
            wait_until(lambda: consumer.poll(500) or consumer.assignment(), "an assignment", 30)
            assert consumer.position(TopicPartition(filled, 0)) == COUNT
            CONFLUENT.produce(cluster.bootstrap, filled, [Sent(b"new")])
        assert first_offset(consumer) == expected


def test_commit_seek_and_reset_with_aiokafka(cluster: Cluster, group: str, filled: str) -> None:
    async def run() -> None:
        place = AioPartition(filled, 0)
        async with aio(cluster, group, filled, "earliest") as consumer:
            assert (await consumer.getone()).offset == 0
            await consumer.commit({place: AioOffset(7, "half way")})
            consumer.seek(place, 3)
            assert (await consumer.getone()).offset == 3
            assert await consumer.committed(place) == 7
            await consumer.seek_to_end(place)
            assert await consumer.position(place) == COUNT
        async with aio(cluster, group, filled, "earliest") as successor:
            assert (await successor.getone()).offset == 7
        async with aio(cluster, f"{group}-new", filled, "latest") as late:
            await late.position(place)
            CONFLUENT.produce(cluster.bootstrap, filled, [Sent(b"new")])
            assert (await late.getone()).offset == COUNT

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("name", ["kafka-python", "aiokafka"])
def test_a_static_member_comes_back_without_a_rebalance(cluster: Cluster, group: str, name: str) -> None:
    topic = cluster.topic(PARTITIONS)

    def static(instance: str) -> contextlib.AbstractContextManager[Member]:
        return member(name, cluster.bootstrap, group, topic, instance=instance)

    with static("stays") as stays:
        wait_until(lambda: len(stays.assigned) == PARTITIONS, "the first assignment", 30)
        with static("restarts") as before:
            wait_until(lambda: len(before.assigned) == len(stays.assigned) == 2, "two that share", 30)
            held, told = before.assigned, stays.assignments
            assert told >= 2
        with static("restarts") as after:
            wait_until(lambda: after.assigned, "the restarted member to be back", 30)
            assert after.assigned == held
            assert stays.assignments == told
