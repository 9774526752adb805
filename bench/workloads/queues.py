"""W7: a work queue with 50 consumers that give 5 % of the messages back. Share groups, with RabbitMQ reported beside.

A broker that does not advertise share groups is left out, and so is RabbitMQ where Debian's package is not there and
cannot be installed; both are said.
"""

from __future__ import annotations

from api_ranges import api_ranges
from kafka_jars import Missing

from bench.driver import run
from bench.peers import BrokerProcess
from bench.rabbit_peer import RabbitPeer
from bench.session import Session
from bench.statistics_of import percentile_ms

MESSAGES = 20_000
CONSUMERS = 50
PARTITIONS = 6
SHARE_GROUP_HEARTBEAT = 76


def measure_w7(session: Session) -> None:
    peers = [peer for peer in session.peers if _has_share_groups(session, peer)]
    rabbit = _rabbit(session)
    try:
        queues = [*peers, *([rabbit] if rabbit else [])]
        for number, peer in enumerate(session.turns("W7", peers=queues)):
            _measure(session, peer, f"workers-{number}")
    finally:
        if rabbit is not None:
            rabbit.close()


def _measure(session: Session, peer: BrokerProcess, group: str) -> None:
    job = {"group": group, "consumers": CONSUMERS, "partitions": PARTITIONS}
    count = session.plan.of(MESSAGES)
    if isinstance(peer, RabbitPeer):
        answer = run("rabbit", peer, topic=group, **job, count=count)
    else:
        with session.topic(peer, PARTITIONS) as topic:
            answer = run("share", peer, topic=topic, **job, count=count)
    session.record("W7.accepted", peer, answer["messages"] / answer["seconds"])
    session.record("W7.redelivery_p99", peer, percentile_ms(answer["latencies"], 99))


def _has_share_groups(session: Session, peer: BrokerProcess) -> bool:
    has_them = SHARE_GROUP_HEARTBEAT in api_ranges(peer.bootstrap)
    if not has_them:
        session.say(f"W7: {peer.name} has no share groups and is left out")
    return has_them


def _rabbit(session: Session) -> RabbitPeer | None:
    try:
        RabbitPeer.install()
    except Missing as error:
        session.say(f"W7: RabbitMQ is left out: {error}")
        return None
    session.say("starting rabbitmq")
    rabbit = RabbitPeer()
    rabbit.start()
    return rabbit
