"""W5: a backlog of 1 GB is drained while producing goes on.

One process drains ten partitions from the beginning; another goes on producing 1,000 messages a second to the
same partitions, and a third reads those at the end of the log, message by message. The drain's speed is one
figure, the latency of the live messages that were due during the drain the other. The backlog is written once
for each broker and drained again every round.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.driver import Client, run
from bench.peers import BrokerProcess
from bench.session import Session
from bench.statistics_of import percentile_ms

BACKLOG_MESSAGES = 1_000_000
PARTITIONS = 10
LIVE_RATE = 1000
LIVE_SECONDS = 6
WARM_UP_SECONDS = 1


def measure_w5(session: Session) -> None:
    count = session.plan.of(BACKLOG_MESSAGES)
    with ExitStack() as stack:
        topics = {peer.name: stack.enter_context(session.topic(peer, PARTITIONS)) for peer in session.peers}
        for peer in session.peers:
            session.say(f"W5: filling {peer.name}")
            topic = topics[peer.name]
            run("produce", peer, topic=topic, partitions=PARTITIONS, size=1000, count=count)
            _drain(peer, topic, count)
        for peer in session.turns("W5"):
            megabytes_per_second, live_p99_ms = _drain(peer, topics[peer.name], count)
            session.record("W5.drain", peer, megabytes_per_second)
            session.record("W5.live_p99", peer, live_p99_ms)


def _drain(peer: BrokerProcess, topic: str, count: int) -> tuple[float, float]:
    job = {"topic": topic, "partitions": PARTITIONS, "size": 1000}
    live = {
        "rate": LIVE_RATE,
        "seconds": LIVE_SECONDS,
        "warm_up_seconds": WARM_UP_SECONDS,
        "settings": {"linger.ms": 0},
    }
    with (
        Client("tail", peer, **job, count=LIVE_RATE * LIVE_SECONDS, from_end=True) as reader,
        Client("send_at_rate", peer, **job, **live) as writer,
        Client("consume", peer, **job, count=count) as drainer,
    ):
        reader.go()
        writer.go()
        time.sleep(WARM_UP_SECONDS)
        drainer.go()
        drained, answer = drainer.result(), reader.result()
        writer.result()
    during = [
        latency for due, latency in answer["pairs"] if drained["began_ns"] <= due <= drained["ended_ns"]
    ]
    return drained["bytes"] / 1e6 / drained["seconds"], percentile_ms(during, 99)
