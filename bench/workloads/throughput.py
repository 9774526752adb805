"""W1 and W2: how much goes in and comes out.

W1: small messages (100 B), one partition, one producer, one consumer: the cost per batch and per request.
W2: 1 KB messages, half of their bytes random, ten partitions, idempotent producer, three codecs: the cost per
byte. The consumer reads what the producer of the same turn wrote, after it has finished, so from the page
cache.
"""

from __future__ import annotations

from typing import Any

from bench.driver import run
from bench.peers import BrokerProcess
from bench.session import Session

W1_MESSAGES = 1_500_000
W2_MESSAGES = {"none": 400_000, "lz4": 250_000, "zstd": 250_000}
W2_PARTITIONS = 10


def measure_w1(session: Session) -> None:
    count = session.plan.of(W1_MESSAGES)
    for peer in session.peers:
        _in_and_out(session, peer, 1, count, 100, {})
    for peer in session.turns("W1"):
        produced, consumed = _in_and_out(session, peer, 1, count, 100, {})
        session.record("W1.produce", peer, produced["messages"] / produced["seconds"])
        session.record("W1.consume", peer, consumed["messages"] / consumed["seconds"])


def measure_w2(session: Session) -> None:
    for peer in session.peers:
        _in_and_out(
            session, peer, W2_PARTITIONS, session.plan.of(100_000), 1000, {"enable.idempotence": True}
        )
    for codec, messages in W2_MESSAGES.items():
        count = session.plan.of(messages)
        settings = {"enable.idempotence": True, "compression.type": codec}
        for peer in session.turns(f"W2 {codec}"):
            produced, consumed = _in_and_out(session, peer, W2_PARTITIONS, count, 1000, settings)
            for name, result in (("produce", produced), ("consume", consumed)):
                session.record(f"W2.{codec}.{name}", peer, result["bytes"] / 1e6 / result["seconds"])
                session.record(
                    f"W2.{codec}.{name}_cpu", peer, result["cpu_seconds"] / (result["bytes"] / 1e9)
                )


def _in_and_out(
    session: Session, peer: BrokerProcess, partitions: int, count: int, size: int, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    with session.topic(peer, partitions) as topic:
        job = {"topic": topic, "partitions": partitions, "size": size, "count": count}
        produced = run("produce", peer, **job, settings=settings)
        consumed = run("consume", peer, **job, passes=2 if size >= 1000 else 1)
    return produced, consumed
