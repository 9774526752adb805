"""Rebalance time, for 2, 20 and 200 members: from one who asks to join until the last one has its assignment.

Members of a group live on other machines than the broker. So the client has one core for itself here and the broker has
the others, which is the same for every broker. Left to itself the kernel may run client and broker on one core,
because each wakes the other, while the second one is idle; the figure is then the sum of what both need. That one is
measured too, for 200 members, and stands beside it as `shared`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from bench.driver import run
from bench.peers import BrokerProcess
from bench.session import Session
from bench.statistics_of import NANOSECONDS_PER_MS

SIZES = (2, 20, 200)
REBALANCES = 10


def measure_rebalance(session: Session) -> None:
    for size in SIZES:
        for number, peer in enumerate(session.peers):
            run("rebalance", peer, group=f"warm-up-{size}-{number}", members=size, rounds=2)
        for number, peer in enumerate(session.turns(f"rebalance of {size} members")):
            with _apart(peer) as client_cores:
                took_ms = _rebalance_ms(peer, f"group-{size}-{number}", size, cores=client_cores)
            session.record(f"rebalance.{size}", peer, took_ms)
    for number, peer in enumerate(session.turns("rebalance of 200 members on shared cores")):
        session.record("rebalance.shared", peer, _rebalance_ms(peer, f"shared-{number}", 200))


def _rebalance_ms(peer: BrokerProcess, group: str, size: int, **where: list[int]) -> float:
    answer = run("rebalance", peer, group=group, members=size, rounds=REBALANCES, **where)
    return statistics.median(answer["latencies"]) / NANOSECONDS_PER_MS


@contextmanager
def _apart(peer: BrokerProcess) -> Iterator[list[int]]:
    """The core for the client, while the broker keeps to the others; one core is shared, as there is no other."""
    cores = sorted(os.sched_getaffinity(0))
    client_cores, broker_cores = cores[:1], cores[1:] or cores
    _hold(peer, broker_cores)
    try:
        yield client_cores
    finally:
        _hold(peer, cores)


def _hold(peer: BrokerProcess, cores: list[int]) -> None:
    for thread in os.listdir(f"/proc/{peer.pid}/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass  # a thread that ended meanwhile
