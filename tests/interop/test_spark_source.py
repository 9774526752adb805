"""Source and sink beside Spark's own Kafka connector, on Tidemill and on Apache Kafka, with pyspark 4.2.

Both read the same topics of both brokers and must see the same rows; one checkpoint is continued by the other, in
both directions; what either writes is what the other reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from connector_driver import ConnectorDriver
from kafka_peer import KafkaPeer

from tidemill.testing import SubprocessBroker

OURS, THEIRS = "tidemill", "kafka"


@pytest.fixture(scope="module")
def driver() -> Iterator[ConnectorDriver]:
    with ConnectorDriver() as running:
        yield running


@pytest.fixture(scope="module", params=["tidemill", "kafka"])
def peer(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Each broker in turn."""
    with SubprocessBroker() if request.param == "tidemill" else KafkaPeer() as broker:
        yield Cluster(broker.bootstrap)


def produce(cluster: Cluster, topic: str, numbers: range, codec: str = "none", partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in numbers:
        headers = [("n", b"%d" % number), ("none", None)] if number % 3 == 0 else None
        key = None if number % 2 else b"key-%d" % number
        value = None if number % 7 == 6 else b"%d" % number
        producer.produce(topic, value, key, partition=number % partitions, headers=headers)
    assert producer.flush(30) == 0


def options(cluster: Cluster, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **more}


def test_both_connectors_see_the_same_rows(driver: ConnectorDriver, peer: Cluster) -> None:
    topic = peer.topic(partitions=3)
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        produce(peer, topic, range(number * 100, number * 100 + 100), codec, partitions=3)
    ours = driver.rows(OURS, options(peer, topic))
    assert len(ours) == 500
    assert ours == driver.rows(THEIRS, options(peer, topic))


def test_both_connectors_see_the_same_transactions(driver: ConnectorDriver, peer: Cluster) -> None:
    topic = peer.topic()
    for first, is_kept in ((0, True), (10, False), (20, True), (30, False)):
        producer = Producer(
            {"bootstrap.servers": peer.bootstrap, "transactional.id": f"{topic}-{first % 20}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(topic, b"%d" % number)
        producer.flush(30)
        producer.commit_transaction(30) if is_kept else producer.abort_transaction(30)
    for level, count in (("read_committed", 20), ("read_uncommitted", 40)):
        given = options(peer, topic, **{"kafka.isolation.level": level})
        ours = driver.rows(OURS, given)
        assert len(ours) == count
        assert ours == driver.rows(THEIRS, given)


def test_both_connectors_start_and_end_at_the_same_records(driver: ConnectorDriver, peer: Cluster) -> None:
    topic = peer.topic(partitions=2)
    produce(peer, topic, range(100), partitions=2)
    given = options(
        peer, topic, startingOffsets=f'{{"{topic}":{{"0":7,"1":-2}}}}', minPartitions="5",
        endingOffsets=f'{{"{topic}":{{"0":-1,"1":30}}}}',
    )  # fmt: skip
    ours = driver.rows(OURS, given)
    assert len(ours) == 43 + 30
    assert ours == driver.rows(THEIRS, given)


@pytest.mark.parametrize(
    "order", [(THEIRS, OURS, THEIRS), (OURS, THEIRS, OURS)], ids=["theirs-first", "ours-first"]
)
def test_one_checkpoint_is_continued_in_both_directions(
    driver: ConnectorDriver, peer: Cluster, tmp_path: Path, order: tuple[str, ...]
) -> None:
    topic = peer.topic(partitions=2)
    for step, connector in enumerate(order):
        produce(peer, topic, range(step * 10, step * 10 + 5), partitions=2)
        given = options(peer, topic, startingOffsets="earliest")
        expected = sorted(str(number) for number in range(step * 10, step * 10 + 5) if number % 7 != 6)
        assert driver.copy(connector, given, str(tmp_path / "checkpoint")) == expected


@pytest.mark.parametrize("how", ["batch", "stream"])
@pytest.mark.parametrize("connector", [OURS, THEIRS])
def test_both_connectors_write_the_same_rows(
    driver: ConnectorDriver, peer: Cluster, tmp_path: Path, connector: str, how: str
) -> None:
    source, target = peer.topic(partitions=2), peer.topic(partitions=2)
    produce(peer, source, range(100), partitions=2)
    checkpoint = None if how == "batch" else str(tmp_path / "checkpoint")
    sink = {"kafka.bootstrap.servers": peer.bootstrap, "topic": target}
    driver.write(connector, sink, options(peer, source), checkpoint)
    reader = THEIRS if connector == OURS else OURS
    committed = {"kafka.isolation.level": "read_committed"}
    written = driver.rows(reader, options(peer, target, **committed))
    sent = driver.rows(OURS, options(peer, source))
    shown = ("key", "value", "headers", "partition")
    assert [[row[name] for name in shown] for row in written] == [
        [row[name] for name in shown] for row in sent
    ]
