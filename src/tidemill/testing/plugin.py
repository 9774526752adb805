"""Fixtures for people who test programs that talk to Kafka. Installed with Tidemill, no set-up needed:

    def test_orders_are_counted(tidemill_broker, tidemill_topic):
        producer = confluent_kafka.Producer({"bootstrap.servers": tidemill_broker.bootstrap})
        producer.produce(tidemill_topic, b"an order")

`tidemill_broker` is one embedded broker for the whole test session, started when the first test asks for it;
`tidemill_topic` is a fresh topic of one partition for each test, and `tidemill_topic_factory(partitions=3,
cleanup_policy="compact")` makes as many as a test wants. Tests share the broker but never a topic.

A test that needs settings of its own, or must restart its broker, starts a `tidemill.testing.EmbeddedBroker`.
Importing this module costs nothing: everything else is imported by the fixtures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemill.testing.embedded import EmbeddedBroker

_TOPIC_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def tidemill_broker() -> Iterator[EmbeddedBroker]:
    """A broker in this process; clients connect to `tidemill_broker.bootstrap`."""
    from tidemill.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def tidemill_topic_factory(tidemill_broker: EmbeddedBroker) -> Callable[..., str]:
    """A function that creates a topic nobody else uses and returns its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        return tidemill_broker.create_topic(f"topic-{next(_TOPIC_NUMBERS)}", partitions, **configs)

    return create


@pytest.fixture
def tidemill_topic(tidemill_topic_factory: Callable[..., str]) -> str:
    """The name of a fresh topic with one partition."""
    return tidemill_topic_factory()
