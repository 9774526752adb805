"""W6: many topics, many partitions.

Each kind of broker runs twice: a small one with 100 partitions and a large one, which grows to 1,000 topics
of one partition and then to 10,000 partitions. The acknowledgement latency of one message in flight is
measured on both in the same turn. In a turn on the large broker ten producers follow one another, each with a
topic of 100 partitions, three messages to each partition in a shuffled order; on the small one the same ten
producers share its only topic. (One producer that knows 10,000 partitions would measure librdkafka's walk
over them.)

Creating and growing happen once for each broker, restarts twice; their figures have as many samples.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import NamedTuple

from bench.driver import Client, run
from bench.peers import BrokerProcess, make_peer, raise_descriptor_limit
from bench.session import Session, create_topics
from bench.statistics_of import percentile_ms

SINGLE_TOPICS = 1000
PARTITIONS_EACH = 100
LARGE_PARTITIONS = 10_000
PRODUCERS = 10
MESSAGES_EACH = 300
SMALL_TOPIC = "small"
RESTARTS = 2
NO_LINGER = {"linger.ms": 0}


class Pair(NamedTuple):
    """A broker with few and one with many partitions, of the same kind."""

    small: BrokerProcess
    large: BrokerProcess


def measure_w6(session: Session) -> None:
    raise_descriptor_limit()
    with ExitStack() as stack:
        pairs = {
            name: Pair(stack.enter_context(make_peer(name)), stack.enter_context(make_peer(name)))
            for name in session.peer_names
        }
        large = [pair.large for pair in pairs.values()]
        for pair in pairs.values():
            create_topics(pair.small, {SMALL_TOPIC: PARTITIONS_EACH})
        _many_topics(session, large)
        topics = _grow(session, large)
        _compare(session, pairs, topics)
        _restart(session, large, topics[0])


def _many_topics(session: Session, large: list[BrokerProcess]) -> None:
    names = [f"single-{number:04}" for number in range(session.plan.of(SINGLE_TOPICS, 100))]
    for peer in large:
        session.say(f"W6: {len(names)} topics on {peer.name}")
        session.record("W6.topics_create", peer, create_topics(peer, dict.fromkeys(names, 1)))
    job = {"groups": [[(name, 1) for name in names]], "size": 100, "settings": NO_LINGER, "touch_all": True}
    for peer in session.turns("W6 topics", peers=large):
        latencies = run("ping", peer, **job, count=2 * len(names))["latencies"]
        session.record("W6.topics_p99", peer, percentile_ms(latencies, 99))
        session.record("W6.topics_memory", peer, peer.resident_bytes / 1e6)


def _grow(session: Session, large: list[BrokerProcess]) -> list[str]:
    """More topics until the broker has all its partitions; their names."""
    count = session.plan.of((LARGE_PARTITIONS - SINGLE_TOPICS) / PARTITIONS_EACH, PRODUCERS)
    topics = [f"large-{number:03}" for number in range(count)]
    for peer in large:
        session.say(f"W6: growing {peer.name} by {count} topics of {PARTITIONS_EACH} partitions")
        session.record("W6.large_create", peer, create_topics(peer, dict.fromkeys(topics, PARTITIONS_EACH)))
    return topics


def _compare(session: Session, pairs: dict[str, Pair], topics: list[str]) -> None:
    turns = session.turns("W6 partitions", peers=[pair.large for pair in pairs.values()])
    for turn, peer in enumerate(turns):
        pair = pairs[peer.name]
        start = turn // len(pairs) * PRODUCERS % len(topics)
        chosen = (topics[start:] + topics)[:PRODUCERS]
        sides = [
            (pair.small, "W6.small_p99", [SMALL_TOPIC] * PRODUCERS),
            (pair.large, "W6.large_p99", chosen),
        ]
        for broker, metric, names in sides if turn % 2 == 0 else sides[::-1]:
            groups = [[(name, PARTITIONS_EACH)] for name in names]
            latencies = run("ping", broker, groups=groups, count=MESSAGES_EACH, size=100, settings=NO_LINGER)[
                "latencies"
            ]
            session.record(metric, peer, percentile_ms(latencies, 99))
        session.record("W6.large_memory", peer, pair.large.resident_bytes / 1e6)


def _restart(session: Session, large: list[BrokerProcess], topic: str) -> None:
    """A clean stop, then the seconds from the new process to its first acknowledgement."""
    for peer in session.turns("W6 restart", min(RESTARTS, session.plan.rounds), large):
        peer.stop_seconds = peer.start_seconds = 300.0
        peer.stop()
        with Client("first_acknowledgement", peer, topic=topic) as client:
            peer.launch()
            client.go()
            acknowledged_at = client.result()["at_ns"] / 1e9
        session.record("W6.large_restart", peer, acknowledged_at - peer.started_at)
        peer.wait_ready()
        time.sleep(1.0)
