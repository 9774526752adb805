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

    def topic(self, partitions: int = 1, **configs: object) -> str:
        """A fresh topic; settings by keyword, with underscores for dots: `topic(retention_ms=1000)`."""
        name = self.topic_name()
        dotted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        new = NewTopic(name, num_partitions=partitions, config=dotted)
        self.admin().create_topics([new])[name].result(ADMIN_TIMEOUT_SECONDS)
        wait_until(lambda: self.serves(name, partitions), f"a leader for topic {name}")
        return name

    def serves(self, topic: str, partitions: int) -> bool:
        """Whether all leaders are at work; Kafka's begin a little after the creation was answered."""
        asked = [ListOffsetsPartition(partition_index=n, timestamp=LATEST) for n in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        with self.connect() as connection:
            (answer,) = connection.call(request).topics
        return all(partition.error_code == 0 for partition in answer.partitions)

    def admin(self) -> AdminClient:
        """librdkafka's administration client, one for all tests."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return self._admin

    def connect(self, **options: object) -> WireClient:
        """A connection on which a test sees single protocol messages."""
        return WireClient(self.bootstrap, **options)  # type: ignore[arg-type]


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
