"""A reader with read_committed that looks on while others write, die and abort; every poll is kept for the judge."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from history import OK, Assign, Operation, Poll

POLL_SECONDS = 0.1


class LiveReader(threading.Thread):
    """Reads all partitions of a topic from their beginning until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "live reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self.history: list[Operation] = [Operation("live reader", OK, [Assign()])]
        self.count = 0
        self.errors: list[str] = []

    def run(self) -> None:
        self._consumer.assign(self._places)
        while not self._is_over.is_set():
            self._note(self._consumer.consume(2_000, POLL_SECONDS))
        self._consumer.close()

    def _note(self, messages: list[Any]) -> None:
        read: dict[int, list[tuple[int, str]]] = {}
        for message in messages:
            if message.error():
                self.errors.append(str(message.error()))
            else:
                found = (message.offset(), message.value().decode())
                read.setdefault(message.partition(), []).append(found)
                self.count += 1
        if read:
            polls = [Poll(str(partition), found) for partition, found in read.items()]
            self.history.append(Operation("live reader", OK, list(polls)))

    def stop(self) -> None:
        self._is_over.set()
        self.join()
