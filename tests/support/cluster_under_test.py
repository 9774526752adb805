"""The cluster that tests with clients talk to, whatever it is made of.

`TIDEMILL_TEST_PEER` says which: `tidemill` (the default: one broker as a process of its own), `kafka` (Apache
Kafka, see `kafka_peer.py`: a test that fails there is wrong about Kafka), or an address `HOST:PORT` of brokers
that already run. A test takes everything from the `Cluster` it is handed and so never knows the difference.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator

from confluent_kafka.admin import AdminClient, NewTopic
from waiting import wait_until

from tidemill.testing import SubprocessBroker, WireClient
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

PEER = os.environ.get("TIDEMILL_TEST_PEER", "tidemill")
ADMIN_TIMEOUT_SECONDS = 20
LATEST = -1
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
"""A first rebalance waits for nobody, as with the other peer."""


class Cluster:
    """An address, topics nobody else uses, and clients."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin: AdminClient | None = None
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    def topic_name(self) -> str:
        """A name that no topic has."""
        return f"topic-{self._run}-{next(self._numbers)}"

    def topic(self, partitions: int = 1, *, together: bool = False, **configs: object) -> str:
        """A fresh topic; settings by keyword, with underscores for dots: `topic(retention_ms=1000)`.

        `together` puts all partitions on one broker, for tests that ask for several of them on one connection.
        """
        name = self.topic_name()
        dotted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        placed = {"replica_assignment": [[self._some_broker()]] * partitions} if together else {}
        new = NewTopic(name, num_partitions=partitions, config=dotted, **placed)
        self.admin().create_topics([new])[name].result(ADMIN_TIMEOUT_SECONDS)
        wait_until(lambda: self.serves(name, partitions), f"a leader for topic {name}")
        return name

    def _some_broker(self) -> int:
        return min(self.admin().list_topics(timeout=ADMIN_TIMEOUT_SECONDS).brokers)

    def serves(self, topic: str, partitions: int) -> bool:
        """Whether all leaders are at work; Kafka's begin a little after the creation was answered."""
        leaders = self._leaders(topic)
        if set(leaders) != set(range(partitions)):
            return False
        for address in set(leaders.values()):
            led = [number for number, leader in leaders.items() if leader == address]
            if not self._is_serving(address, topic, led):
                return False
        return True

    def _is_serving(self, address: str, topic: str, led: list[int]) -> bool:
        asked = [ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in led]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        with WireClient(address) as connection:
            (answer,) = connection.call(request).topics
        return all(partition.error_code == 0 for partition in answer.partitions)

    def leader_of(self, topic: str, partition: int = 0) -> str:
        """The address of the broker that leads this partition."""
        return self._leaders(topic)[partition]

    def _leaders(self, topic: str) -> dict[int, str]:
        """Where each partition is led, as the metadata say; one without a leader is left out."""
        wanted = MetadataRequestTopic(name=topic)
        with WireClient(self.bootstrap) as connection:
            answer = connection.call(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False))
        brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        return {
            each.partition_index: brokers[each.leader_id]
            for each in answer.topics[0].partitions
            if each.leader_id in brokers
        }

    def admin(self) -> AdminClient:
        """librdkafka's administration client, one for all tests."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return self._admin

    def connect(self, topic: str | None = None, partition: int = 0, **options: object) -> WireClient:
        """A connection on which a test sees single protocol messages.

        Whatever only a leader answers (Produce, Fetch, ListOffsets) must name its topic here. Without one, or for a
        partition that nobody leads, the connection goes to any broker.
        """
        leaders = {} if topic is None else self._leaders(topic)
        address = leaders.get(partition, self.bootstrap)
        return WireClient(address, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    if PEER == "tidemill":
        with SubprocessBroker(settings=SETTINGS) as broker:
            yield Cluster(broker.bootstrap)
    elif PEER == "kafka":
        from kafka_peer import KafkaPeer

        with KafkaPeer() as kafka:
            yield Cluster(kafka.bootstrap)
    elif ":" in PEER:
        yield Cluster(PEER)
    else:
        raise ValueError(f"TIDEMILL_TEST_PEER is {PEER!r}; say tidemill, kafka or HOST:PORT")
