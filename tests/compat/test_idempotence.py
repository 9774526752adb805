"""A connection cut at the worst moment: the broker has written, the client never hears of it."""

from __future__ import annotations

import time

import pytest
from clients import CONFLUENT, Client, Sent
from cluster_under_test import Cluster
from confluent_kafka import Producer
from cutting_proxy import FETCH, PRODUCE, CuttingProxy


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_nothing_is_lost_and_nothing_doubled(
    cluster: Cluster, topic: str, client: Client, compression: str
) -> None:
    sent = [Sent(b"%d" % number) for number in range(300)]
    with CuttingProxy(cluster.bootstrap) as proxy:
        proxy.cut_next(PRODUCE, 3)
        offsets = client.produce(proxy.bootstrap, topic, sent, idempotent=True, compression=compression)
        assert proxy.cuts == 3
    assert offsets == list(range(300))
    values = [received.value for received in CONFLUENT.consume(cluster.bootstrap, topic, 300)]
    assert values == [message.value for message in sent]
    assert CONFLUENT.watermarks(cluster.bootstrap, topic) == (0, 300)


def test_cuts_with_requests_in_flight(cluster: Cluster, topic: str) -> None:
    """Many small batches, five requests in flight, a cut every few answers: order and count stay right."""
    with CuttingProxy(cluster.bootstrap) as proxy:
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 3,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
            }
        )
        failures: list[object] = []
        proxy.cut_next(PRODUCE, count=6, passing=5)
        for number in range(600):
            producer.produce(
                topic, b"%d" % number, on_delivery=lambda error, _: error and failures.append(error)
            )
            producer.poll(0.0005)
        assert producer.flush(30) == 0
        assert not failures
        assert proxy.cuts == 6
    values = [int(received.value or b"") for received in CONFLUENT.consume(cluster.bootstrap, topic, 600)]
    assert values == list(range(600))
    assert CONFLUENT.watermarks(cluster.bootstrap, topic) == (0, 600)


def test_without_idempotence_a_cut_may_double_but_never_loses(cluster: Cluster, topic: str) -> None:
    """The control: the cut is real, for a producer without sequence numbers writes twice."""
    with CuttingProxy(cluster.bootstrap) as proxy:
        proxy.cut_next(PRODUCE)
        CONFLUENT.produce(proxy.bootstrap, topic, [Sent(b"once?")])
    beginning, end = CONFLUENT.watermarks(cluster.bootstrap, topic)
    assert (beginning, end) == (0, 2)


def test_a_consumer_survives_a_cut(cluster: Cluster, topic: str, client: Client) -> None:
    sent = [Sent(b"%d" % number * 100) for number in range(500)]
    CONFLUENT.produce(cluster.bootstrap, topic, sent)
    with CuttingProxy(cluster.bootstrap) as proxy:
        proxy.cut_next(FETCH)
        values = [received.value for received in client.consume(proxy.bootstrap, topic, 500)]
        assert values == [message.value for message in sent]
        assert proxy.cuts == 1


def test_the_proxy_adds_no_delay(cluster: Cluster, topic: str) -> None:
    """The support code must not hide a slow broker, nor look like one."""
    with CuttingProxy(cluster.bootstrap) as proxy:
        began = time.monotonic()
        CONFLUENT.produce(proxy.bootstrap, topic, [Sent(b"x") for _ in range(1_000)])
        assert time.monotonic() - began < 5
