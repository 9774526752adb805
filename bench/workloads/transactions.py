"""W9: consume, transform, produce, 100 messages in a transaction: from a filled topic to another, in one process."""

from __future__ import annotations

from bench.driver import run
from bench.peers import BrokerProcess
from bench.session import Session
from bench.statistics_of import percentile_ms

MESSAGES = 50_000
PER_TRANSACTION = 100
PARTITIONS = 4
SIZE = 100


def measure_w9(session: Session) -> None:
    for number, peer in enumerate(session.peers):
        _copy(session, peer, f"warm-up-{number}", session.plan.of(MESSAGES) // 5)
    for number, peer in enumerate(session.turns("W9")):
        messages_per_second, p99_ms = _copy(session, peer, f"copier-{number}", session.plan.of(MESSAGES))
        session.record("W9.copy", peer, messages_per_second)
        session.record("W9.transaction_p99", peer, p99_ms)


def _copy(session: Session, peer: BrokerProcess, group: str, count: int) -> tuple[float, float]:
    with session.topic(peer, PARTITIONS) as topic, session.topic(peer, PARTITIONS) as target:
        filled = count + 2 * PER_TRANSACTION
        run("produce", peer, topic=topic, partitions=PARTITIONS, size=SIZE, count=filled)
        job = {"topic": topic, "target": target, "group": group, "per_transaction": PER_TRANSACTION}
        answer = run("copy", peer, **job, count=count)
    return answer["messages"] / answer["seconds"], percentile_ms(answer["latencies"], 99)
