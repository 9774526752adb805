"""One run: the brokers, whose turn it is, and the samples.

    for peer in session.turns("W1"):                     # tidemill, kafka, kafka, tidemill, tidemill, kafka,
    …
        with session.topic(peer, partitions=1) as topic:
            session.record("W1.produce", peer, messages_per_second)

`turns` gives each broker the same number of turns in the order A-B-B-A, so that a drift of the machine (heat,
other tenants, page cache) falls on both. The brokers of a session run side by side from the first workload to
the last, which gives a just-in-time compiler all the time it wants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from bench.metrics import BY_KEY, Samples
from bench.peers import BrokerProcess, make_peer

ADMIN_SECONDS = 300


class Plan(NamedTuple):
    """How much is measured. `scale` shrinks sizes for a quick look."""

    rounds: int = 5
    scale: float = 1.0

    def of(self, amount: float, least: int = 1) -> int:
        return max(least, int(amount * self.scale))


class Session:
    """The brokers side by side and what was measured of them."""

    def __init__(self, peer_names: list[str], plan: Plan, say: Callable[[str], None]) -> None:
        self.peer_names = peer_names
        self.plan = plan
        self.say = say
        self.samples: Samples = {}
        self._peers: list[BrokerProcess] = []
        self._topics_made = 0

    @property
    def peers(self) -> list[BrokerProcess]:
        """The long-running brokers, started on first use."""
        if not self._peers:
            for name in self.peer_names:
                self.say(f"starting {name}")
                peer = make_peer(name)
                self._peers.append(peer)
                peer.start()
        return self._peers

    def close(self) -> None:
        """Stop the long-running brokers and remove their data."""
        for peer in self._peers:
            peer.close()
        self._peers = []

    def turns(
        self, what: str, rounds: int | None = None, peers: list[BrokerProcess] | None = None
    ) -> Iterator[BrokerProcess]:
        peers = peers if peers is not None else self.peers
        rounds = rounds or self.plan.rounds
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else peers[::-1]:
                self.say(f"{what}: round {number + 1} of {rounds}, {peer.name}")
                yield peer

    def record(self, metric: str, peer: BrokerProcess | str, value: float) -> None:
        assert metric in BY_KEY or metric.startswith("limit."), metric
        name = peer if isinstance(peer, str) else peer.name
        self.samples.setdefault(metric, {}).setdefault(name, []).append(value)

    @contextmanager
    def topic(self, peer: BrokerProcess, partitions: int, **config: str) -> Iterator[str]:
        """A fresh topic, deleted afterwards. Keyword `flush_messages` stands for `flush.messages`."""
        self._topics_made += 1
        name = f"bench-{self._topics_made}"
        create_topics(peer, {name: partitions}, config)
        try:
            yield name
        finally:
            client = admin(peer)  # kept until the answer is here: its end would cancel the call
            client.delete_topics([name], operation_timeout=30)[name].result(ADMIN_SECONDS)


def admin(peer: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 4})


def create_topics(
    peer: BrokerProcess, partitions_by_topic: dict[str, int], config: dict[str, str] | None = None
) -> float:
    """Create topics in requests of a hundred and wait until each partition is served; the seconds it took."""
    client = admin(peer)
    settings = {key.replace("_", "."): value for key, value in (config or {}).items()}
    topics = [NewTopic(name, count, 1, config=settings) for name, count in partitions_by_topic.items()]
    began = time.monotonic()
    for start in range(0, len(topics), 100):
        for future in client.create_topics(
            topics[start : start + 100], request_timeout=ADMIN_SECONDS
        ).values():
            future.result(ADMIN_SECONDS)
    _wait_served(client, partitions_by_topic)
    return time.monotonic() - began


def _wait_served(client: AdminClient, partitions_by_topic: dict[str, int]) -> None:
    """A broker may answer a creation before it has made the logs; a partition counts when it gives its offsets.

    The last one is asked again and again, then all of them once or twice, so that asking costs little.
    """
    everything = [
        TopicPartition(name, number) for name, count in partitions_by_topic.items() for number in range(count)
    ]
    for asked in (everything[-1:], everything):
        deadline = time.monotonic() + ADMIN_SECONDS
        while not _serves(client, asked):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(asked)} partitions were not served in {ADMIN_SECONDS} s")
            time.sleep(0.02)


def _serves(client: AdminClient, partitions: list[TopicPartition]) -> bool:
    asked = {partition: OffsetSpec.latest() for partition in partitions}
    futures = client.list_offsets(asked, request_timeout=ADMIN_SECONDS).values()
    return all(future.exception(ADMIN_SECONDS) is None for future in futures)


def alter_topic(peer: BrokerProcess, topic: str, **config: str) -> None:
    """Change settings of a topic while it is in use."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client = admin(peer)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(ADMIN_SECONDS)
