"""Rebalance time, for 2, 20 and 200 members: from one who asks to join until the last one has its assignment.

Members of a group live on other machines than the broker; here the client shares the cores with it. Where the kernel
runs them changes the figure: it may put client and broker on one core, because each wakes the other, while the second
one is idle, and then the figure is the sum of what both need. A broker of many threads, on the other hand, wants every
core it can get. So each turn measures two arrangements, and for each broker the better one counts:

    shared    client and broker run where the kernel puts them
    apart     the client has the first core, the broker the others

What 200 members take when the cores are shared is recorded as well.
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
WARM_UP = 20


def measure_rebalance(session: Session) -> None:
    for size in SIZES:
        for number, peer in enumerate(session.peers):
            run("rebalance", peer, group=f"warm-up-{size}-{number}", members=size, rounds=WARM_UP)
        for number, peer in enumerate(session.turns(f"rebalance of {size} members")):
            shared_ms = _rebalance_ms(peer, f"shared-{size}-{number}", size)
            with _apart(peer) as client_cores:
                apart_ms = _rebalance_ms(peer, f"apart-{size}-{number}", size, cores=client_cores)
            session.record(f"rebalance.{size}", peer, min(shared_ms, apart_ms))
            if size == SIZES[-1]:
                session.record("rebalance.shared", peer, shared_ms)


def _rebalance_ms(peer: BrokerProcess, group: str, size: int, **where: list[int]) -> float:
    answer = run("rebalance", peer, group=group, members=size, rounds=REBALANCES, **where)
    return statistics.median(answer["latencies"]) / NANOSECONDS_PER_MS


@contextmanager
def _apart(peer: BrokerProcess) -> Iterator[list[int]]:
    """The core for the client, while the broker keeps to the others; where there is only one, they share it."""
    cores = sorted(os.sched_getaffinity(0))
    _hold(peer, cores[1:] or cores)
    try:
        yield cores[:1]
    finally:
        _hold(peer, cores)


def _hold(peer: BrokerProcess, cores: list[int]) -> None:
    for thread in os.listdir(f"/proc/{peer.pid}/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass  # a thread that ended meanwhile
