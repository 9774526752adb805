"""What goes in comes out: every compression, key, header and timestamp, written and read by every client."""

from __future__ import annotations

import time

import pytest
from clients import AIOKAFKA, CLIENTS, COMPRESSIONS, CONFLUENT, Client, Refused, Sent
from cluster_under_test import Cluster

NOW_MS = int(time.time() * 1000)
DAY_MS = 86_400_000


def compressible(count: int) -> list[Sent]:
    return [Sent(b"value %d " % n * 20, b"key %d" % n, timestamp_ms=NOW_MS + n) for n in range(count)]


def assert_received(cluster: Cluster, reader: Client, topic: str, sent: list[Sent]) -> None:
    received = reader.consume(cluster.bootstrap, topic, len(sent))
    assert [r.offset for r in received] == list(range(len(sent)))
    assert [Sent(r.value, r.key, r.headers, r.timestamp_ms) for r in received] == sent


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_is_read_by_every_client(
    cluster: Cluster, topic: str, client: Client, compression: str
) -> None:
    sent = compressible(200)
    assert client.produce(cluster.bootstrap, topic, sent, compression=compression) == list(range(200))
    for reader in CLIENTS:
        assert_received(cluster, reader, topic, sent)


@pytest.mark.parametrize("topic_compression", COMPRESSIONS)
def test_a_topic_recompresses_what_it_is_given(cluster: Cluster, topic_compression: str) -> None:
    """L9: `compression.type` of the topic wins over what the producer chose."""
    name = cluster.topic(
        compression_type="uncompressed" if topic_compression == "none" else topic_compression
    )
    sent = compressible(300)
    half = len(sent) // 2
    CONFLUENT.produce(cluster.bootstrap, name, sent[:half], compression="gzip")
    CONFLUENT.produce(cluster.bootstrap, name, sent[half:], compression="none")
    for reader in CLIENTS:
        assert_received(cluster, reader, name, sent)
    assert compression_codes(cluster, name) == {COMPRESSIONS.index(topic_compression)}


def compression_codes(cluster: Cluster, topic: str) -> set[int]:
    from raw import fetch_batches

    with cluster.connect(topic) as connection:
        return {header.compression for header in fetch_batches(connection, topic)}


def test_keys_headers_and_nulls(cluster: Cluster, topic: str, client: Client) -> None:
    sent = [
        Sent(b"plain", timestamp_ms=NOW_MS),
        Sent(None, b"a tombstone", timestamp_ms=NOW_MS),
        Sent(b"", b"", timestamp_ms=NOW_MS),
        Sent(b"value", b"key", (("name", b"header"), ("name", b"again"), ("empty", b"")), NOW_MS),
        Sent(b"value", None, (("ünïcode", "wert €".encode()),), NOW_MS),
        Sent(bytes(range(256)), bytes(range(256)), (("binary", bytes(range(256))),), NOW_MS),
    ]
    client.produce(cluster.bootstrap, topic, sent)
    for reader in CLIENTS:
        assert_received(cluster, reader, topic, sent)


@pytest.mark.parametrize("writer", [CONFLUENT, AIOKAFKA], ids=lambda writer: writer.name)
def test_null_headers(cluster: Cluster, topic: str, writer: Client) -> None:
    """kafka-python reads them but does not send them."""
    sent = [Sent(b"value", None, (("null", None), ("empty", b""), ("null", None)), NOW_MS)]
    writer.produce(cluster.bootstrap, topic, sent)
    for reader in CLIENTS:
        assert_received(cluster, reader, topic, sent)


def test_create_time_is_the_producers(cluster: Cluster, topic: str, client: Client) -> None:
    times = [NOW_MS, NOW_MS - 5 * DAY_MS, NOW_MS - 1, NOW_MS - 6 * DAY_MS]
    sent = [Sent(b"x", timestamp_ms=when) for when in times]
    client.produce(cluster.bootstrap, topic, sent)
    assert [r.timestamp_ms for r in client.consume(cluster.bootstrap, topic, 4)] == times


def test_log_append_time_is_the_brokers(cluster: Cluster, client: Client) -> None:
    topic = cluster.topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    client.produce(cluster.bootstrap, topic, [Sent(b"x", timestamp_ms=NOW_MS - DAY_MS) for _ in range(5)])
    after_ms = int(time.time() * 1000)
    for reader in CLIENTS:
        for received in reader.consume(cluster.bootstrap, topic, 5):
            assert before_ms <= received.timestamp_ms <= after_ms


def test_log_append_time_of_a_compressed_batch(cluster: Cluster) -> None:
    topic = cluster.topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    sent = [Sent(b"x" * 100, timestamp_ms=NOW_MS - DAY_MS) for _ in range(50)]
    CONFLUENT.produce(cluster.bootstrap, topic, sent, compression="lz4")
    assert min(r.timestamp_ms for r in CONFLUENT.consume(cluster.bootstrap, topic, 50)) >= before_ms


def test_a_timestamp_too_far_ahead_is_refused(cluster: Cluster, topic: str) -> None:
    """`message.timestamp.after.max.ms` is an hour by default."""
    ahead = Sent(b"from tomorrow", timestamp_ms=NOW_MS + DAY_MS)
    with pytest.raises(Refused, match="INVALID_TIMESTAMP"):
        CONFLUENT.produce(cluster.bootstrap, topic, [ahead])


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks(cluster: Cluster, topic: str, client: Client, acks: str) -> None:
    sent = compressible(50)
    offsets = client.produce(cluster.bootstrap, topic, sent, acks=acks)
    assert acks == "0" or offsets == list(range(50))
    assert_received(cluster, client, topic, sent)


def test_an_idempotent_producer(cluster: Cluster, topic: str, client: Client) -> None:
    sent = compressible(500)
    assert client.produce(cluster.bootstrap, topic, sent, idempotent=True) == list(range(500))
    assert_received(cluster, client, topic, sent)


def test_partitions_are_independent(cluster: Cluster, client: Client) -> None:
    topic = cluster.topic(partitions=3)
    for partition in range(3):
        sent = [Sent(b"%d/%d" % (partition, n), timestamp_ms=NOW_MS) for n in range(10 * (partition + 1))]
        client.produce(cluster.bootstrap, topic, sent, partition=partition)
    for partition in range(3):
        assert client.watermarks(cluster.bootstrap, topic, partition=partition) == (0, 10 * (partition + 1))
        received = client.consume(cluster.bootstrap, topic, 5, partition=partition, offset=5)
        assert [r.value for r in received] == [b"%d/%d" % (partition, n) for n in range(5, 10)]


def test_several_clients_write_one_partition(cluster: Cluster, topic: str) -> None:
    for round_number in range(2):
        for client in CLIENTS:
            sent = [Sent(f"{client.name} {round_number} {n}".encode()) for n in range(20)]
            client.produce(cluster.bootstrap, topic, sent)
    for reader in CLIENTS:
        values = [r.value for r in reader.consume(cluster.bootstrap, topic, 120)]
        assert values == [
            f"{client.name} {round_number} {n}".encode()
            for round_number in range(2)
            for client in CLIENTS
            for n in range(20)
        ]
