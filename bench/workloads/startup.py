"""W11: from nothing to the first acknowledged message, and what an idle broker holds.

The data directory is new (Kafka's has been formatted before the clock starts). The client is already running
and tries to connect all the time; its first message goes to a topic that does not exist yet. Memory is read
two seconds after the acknowledgement, with nothing going on.
"""

from __future__ import annotations

import time

from bench.driver import Client
from bench.peers import make_peer
from bench.session import Session

IDLE_SECONDS = 2.0


def measure_w11(session: Session) -> None:
    session.close()  # what is measured here shares the machine with nobody
    names = session.peer_names
    for number in range(session.plan.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            session.say(f"W11: round {number + 1} of {session.plan.rounds}, {name}")
            _cold_start(session, name)


def _cold_start(session: Session, name: str) -> None:
    peer = make_peer(name)
    try:
        with Client("first_acknowledgement", peer, topic="first") as client:
            peer.launch()
            client.go()
            acknowledged_at = client.result()["at_ns"] / 1e9
        session.record("W11.first_ack", peer, (acknowledged_at - peer.started_at) * 1000)
        time.sleep(IDLE_SECONDS)
        session.record("W11.memory", peer, peer.resident_bytes / 1e6)
    finally:
        peer.close()
