"""A transactional producer to be stopped in the middle: a program that `workers` starts.

    python zombie_producer.py JOURNAL LIFE BOOTSTRAP TOPIC TRANSACTIONAL_ID

It opens a transaction, writes a message, says so, waits for SIGUSR1, and then goes on as if nothing had happened: it
writes another message and commits. The journal tells what came of it: "committed", or "refused" and why.
"""

from __future__ import annotations

import signal
import sys

from confluent_kafka import KafkaException, Producer
from workers import Journal

CALL_SECONDS = 20.0


def main(path: str, life: str, bootstrap: str, topic: str, transactional_id: str) -> None:
    journal = Journal(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(CALL_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"before the stall", partition=0)
    producer.flush(CALL_SECONDS)
    journal.write("open")
    signal.sigwait({signal.SIGUSR1})
    try:
        producer.produce(topic, b"after the stall", partition=0)
        producer.commit_transaction(CALL_SECONDS)
        journal.write("committed")
    except KafkaException as error:
        journal.write("refused", error.args[0].name())


if __name__ == "__main__":
    main(*sys.argv[1:])
