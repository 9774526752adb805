"""The Java share consumer, acknowledging each record by itself: what comes again, when, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from cluster_under_test import Cluster
from confluent_kafka import Producer
from kafka_peer import KafkaPeer
from kafka_tools import java_program
from share_wire import configure_group
from tidemill_peer import TidemillPeer

from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic

LOCK_MS = 3000
"""Long enough for a consumer of a JVM that has just begun, on a busy machine, to answer within it."""
QUIET_MS = 1500
"""So long a consumer stays to see that nothing more comes."""
DELIVERY = re.compile(r"^(\d+) (\S+) (\d+)$", re.MULTILINE)
Delivery = tuple[str, int]
"""Value and delivery count."""


class Queue:
    """A topic and a share group that begins at its start."""

    def __init__(self, bootstrap: str, topic: str, **settings: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, f"workers-of-{topic}"
        with WireClient(bootstrap) as connection:
            configure_group(connection, self.group, **({"share_auto_offset_reset": "earliest"} | settings))

    def fill(self, count: int) -> list[str]:
        """Each record in a batch of its own."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "batch.num.messages": 1})
        values = [f"job-{number}" for number in range(count)]
        for value in values:
            producer.produce(self.topic, value.encode(), partition=0)
        assert producer.flush(30) == 0
        return values

    def run(self, mode: str, *numbers: int) -> str:
        return java_program(
            "ShareClient", self.bootstrap, self.topic, self.group, mode, *(str(number) for number in numbers)
        )

    def settle(self, *, releases: int, deliveries: int, quiet_ms: int = QUIET_MS) -> list[Delivery]:
        return [
            (value, count) for _, value, count in parsed(self.run("settle", releases, deliveries, quiet_ms))
        ]


def parsed(text: str) -> list[tuple[int, str, int]]:
    """(number of the consumer, value, delivery count)."""
    return [(int(number), value, int(count)) for number, value, count in DELIVERY.findall(text)]


def each(values: list[str], *counts: int) -> list[Delivery]:
    return sorted((value, count) for value in values for count in counts)


@pytest.fixture
def queue(cluster: Cluster) -> Queue:
    return Queue(cluster.bootstrap, cluster.topic(partitions=1))


def test_what_is_accepted_comes_once(queue: Queue) -> None:
    values = queue.fill(12)
    assert sorted(queue.settle(releases=0, deliveries=12)) == each(values, 1)


def test_what_is_released_comes_again_with_a_higher_count(queue: Queue) -> None:
    values = queue.fill(6)
    assert sorted(queue.settle(releases=1, deliveries=12)) == each(values, 1, 2)


def test_after_the_last_delivery_a_record_is_gone(cluster: Cluster) -> None:
    queue = Queue(cluster.bootstrap, cluster.topic(partitions=1), share_delivery_count_limit="3")
    values = queue.fill(4)
    assert sorted(queue.settle(releases=99, deliveries=12)) == each(values, 1, 2, 3)
    later = queue.fill(1)
    assert queue.settle(releases=0, deliveries=1) == each(later, 1), "archived for those who come later, too"


def test_more_consumers_than_partitions(queue: Queue) -> None:
    text = queue.run("share", 4)
    (sent,) = re.findall(r"^sent (\d+)$", text, re.MULTILINE)
    deliveries = parsed(text)
    assert {number for number, _, _ in deliveries} == {0, 1, 2, 3}
    assert sorted((value, count) for _, value, count in deliveries) == each(
        [f"job-{number}" for number in range(int(sent))], 1
    ), "each record to one consumer, once"


@pytest.fixture(params=[TidemillPeer, KafkaPeer], ids=["tidemill", "kafka"])
def own_peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, with locks that are soon over."""
    settings: dict[str, object] = {
        "group.share.record.lock.duration.ms": LOCK_MS,
        "group.share.min.record.lock.duration.ms": LOCK_MS,
    }
    with request.param(data_directory=tmp_path / "data", settings=settings) as broker:
        create_topic(broker.bootstrap, "jobs", 1, {})
        yield broker


def test_what_is_held_too_long_goes_to_somebody_else(own_peer: BrokerProcess) -> None:
    queue = Queue(own_peer.bootstrap, "jobs")
    values = queue.fill(3)
    text = queue.run("hold", 3)
    deliveries = parsed(text)
    held = [(value, count) for number, value, count in deliveries if number == 0]
    taken = [(value, count) for number, value, count in deliveries if number == 1]
    assert held and {count for _, count in held} == {1}
    again = [value for value, _ in held]
    others = [value for value in values if value not in again]
    assert sorted(taken) == sorted(each(again, 2) + each(others, 1))
    assert "too late: InvalidRecordStateException\n" in text


def test_counts_survive_a_killed_broker(own_peer: BrokerProcess) -> None:
    queue = Queue(own_peer.bootstrap, "jobs")
    values = queue.fill(4)
    assert sorted(queue.settle(releases=2, deliveries=8, quiet_ms=0)) == each(values, 1, 2)
    own_peer.kill()
    own_peer.start()
    assert sorted(queue.settle(releases=0, deliveries=4)) == each(values, 3)
