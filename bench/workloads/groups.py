"""Rebalance time, for 2, 20 and 200 members: from one who asks to join until the last one has its assignment."""

from __future__ import annotations

import statistics

from bench.driver import run
from bench.session import Session
from bench.statistics_of import NANOSECONDS_PER_MS

SIZES = (2, 20, 200)
REBALANCES = 10


def measure_rebalance(session: Session) -> None:
    for size in SIZES:
        for number, peer in enumerate(session.peers):
            run("rebalance", peer, group=f"warm-up-{size}-{number}", members=size, rounds=2)
        for number, peer in enumerate(session.turns(f"rebalance of {size} members")):
            answer = run(
                *("rebalance", peer), group=f"group-{size}-{number}", members=size, rounds=REBALANCES
            )
            middle_ns = statistics.median(answer["latencies"])
            session.record(f"rebalance.{size}", peer, middle_ns / NANOSECONDS_PER_MS)
