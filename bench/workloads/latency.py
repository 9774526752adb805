"""W3 and W4: how long a message takes.

W3: a fixed rate over 16 partitions, 1 KB, no linger; from the moment a message was due to be sent until the
consumer has it, producer and consumer in two processes. W4: one message in flight, acks=all, no linger; from
the call until the acknowledgement. Without fsync (Kafka's default), with fsync before each acknowledgement
(`flush.messages=1`), and while another topic of 1 GB is compacted.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from bench.driver import Client, run
from bench.peers import BrokerProcess
from bench.session import Session, alter_topic
from bench.statistics_of import percentile_ms

W3_RATES = (1000, 5000)
W3_PARTITIONS = 16
W3_SECONDS = 8
W4_MESSAGES = 3000
W4_FSYNC_MESSAGES = 400
NO_LINGER = {"linger.ms": 0}
COMPACTED_MESSAGES = 1_000_000
COMPACTED_KEYS = 200_000
COMPACTION_SECONDS = 180
SETTLED_SECONDS = 0.3


def measure_w3(session: Session) -> None:
    for peer in session.peers:
        _end_to_end(session, peer, W3_RATES[-1], 3)
    for rate in W3_RATES:
        for peer in session.turns(f"W3 at {rate}/s"):
            latencies = _end_to_end(session, peer, rate, session.plan.of(W3_SECONDS, 2))
            for name, percent in (("p50", 50), ("p99", 99), ("p999", 99.9)):
                session.record(f"W3.{rate}.{name}", peer, percentile_ms(latencies, percent))


def _end_to_end(session: Session, peer: BrokerProcess, rate: int, seconds: int) -> list[int]:
    with session.topic(peer, W3_PARTITIONS) as topic:
        job = {"topic": topic, "partitions": W3_PARTITIONS, "size": 1000}
        with (
            Client("tail", peer, **job, count=rate * seconds) as consumer,
            Client(
                "send_at_rate", peer, **job, rate=rate, seconds=seconds, warm_up_seconds=1, settings=NO_LINGER
            ) as producer,
        ):
            consumer.go()
            producer.go()
            producer.result()
            answer = consumer.result()
    if answer["missing"]:
        raise RuntimeError(f"{answer['missing']} messages never came out of {peer.name}")
    return [latency for _, latency in answer["pairs"]]


def measure_w4(session: Session) -> None:
    for peer in session.peers:
        _acknowledgements(session, peer, W4_MESSAGES)
    for peer in session.turns("W4"):
        latencies = _acknowledgements(session, peer, W4_MESSAGES)
        _record(session, peer, "ack", latencies)
    for peer in session.turns("W4 with fsync"):
        latencies = _acknowledgements(session, peer, W4_FSYNC_MESSAGES, flush_messages="1")
        _record(session, peer, "fsync", latencies)
    for peer in session.turns("W4 while compacting"):
        _while_compacting(session, peer)


def _record(session: Session, peer: BrokerProcess, name: str, latencies: list[int]) -> None:
    session.record(f"W4.{name}_p50", peer, percentile_ms(latencies, 50))
    session.record(f"W4.{name}_p99", peer, percentile_ms(latencies, 99))


def _acknowledgements(session: Session, peer: BrokerProcess, count: int, **config: str) -> list[int]:
    with session.topic(peer, 1, **config) as topic:
        job = {"groups": [[(topic, 1)]], "size": 100, "settings": NO_LINGER}
        latencies: list[int] = run("ping", peer, **job, count=count)["latencies"]
    return latencies


def _while_compacting(session: Session, peer: BrokerProcess) -> None:
    """Fill a topic with old values, measure, let it become compacted, measure until the cleaner has been through."""
    config = {"segment_bytes": str(session.plan.of(128_000_000, 16_000_000))}
    with session.topic(peer, 1, **config) as victim, session.topic(peer, 1) as topic:
        count, keys = session.plan.of(COMPACTED_MESSAGES), session.plan.of(COMPACTED_KEYS)
        run("produce", peer, topic=victim, partitions=1, size=1000, count=count, keys=keys)
        job = {"groups": [[(topic, 1)]], "size": 100, "settings": NO_LINGER}
        idle = run("ping", peer, **job, count=W4_MESSAGES)["latencies"]
        session.record("W4.idle_p99", peer, percentile_ms(idle, 99))
        with tempfile.TemporaryDirectory() as scratch:
            done = Path(scratch) / "done"
            with Client("ping", peer, **job, count=10_000_000, until=str(done)) as client:
                began = time.monotonic()
                alter_topic(peer, victim, cleanup_policy="compact", min_cleanable_dirty_ratio="0.1")
                client.go()
                session.record("W4.compaction", peer, _wait_compacted(peer, victim) - began)
                done.touch()
                session.record("W4.compacting_p99", peer, percentile_ms(client.result()["latencies"], 99))


def _wait_compacted(peer: BrokerProcess, topic: str) -> float:
    """When (monotonic) the log had shrunk to what it must keep and stayed so; judged by its files alone.

    A fifth of the log survives, and the active segment is left alone: together less than two fifths.
    """
    before = size = _log_bytes(peer, topic)
    changed_at = time.monotonic()
    deadline = changed_at + COMPACTION_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now, last = time.monotonic(), size
        size = _log_bytes(peer, topic)
        if size != last:
            changed_at = now
        if size < 0.4 * before and now - changed_at > SETTLED_SECONDS:
            return changed_at
    raise TimeoutError(f"{peer.name} did not compact {topic} in {COMPACTION_SECONDS} s\n{peer.tail()}")


def _log_bytes(peer: BrokerProcess, topic: str) -> int:
    total = 0
    for path in (peer.data_directory / f"{topic}-0").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # swapped away in this moment
            total += path.stat().st_size
    return total
