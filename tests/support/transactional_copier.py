"""Consume, transform, produce, exactly once, with any client: a program that `workers` starts and kills.

    python transactional_copier.py JOURNAL LIFE CLIENT BOOTSTRAP SOURCE TARGET TRANSACTIONAL_ID

Each message `n` of a partition of the source goes to the same partition of the target as `n transaction`, and the
offsets go with it. The journal tells the end of every transaction whose end this program came to know: "ok" (committed)
or "fail" (aborted; some are aborted on purpose). A client that gives up ends the program, which is then started again.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Sequence

from transactional_clients import TRANSACTIONAL, Message, MustAbort
from workers import Journal, Stopping

MESSAGES_PER_TRANSACTION = 400
SESSION_TIMEOUT_MS = 2_000
SESSION_TIMEOUTS_MS = {"aiokafka": 4_000}
"""The broker cannot refuse a member of aiokafka whose session ended while it was at work: it had better not end."""
ABORTED_ON_PURPOSE = 0.05
HANG_SECONDS = 4.0
"""librdkafka's send_offsets_to_transaction never comes back, whatever its time-out, if the group's coordinator was away
for a moment (confluentinc/librdkafka issues 5456 and 5511), and kafka-python's waits know no time-out: then this
program ends itself, to be started again."""
HANGING = 3


class Copier:
    def __init__(
        self,
        journal: str,
        life: str,
        client: str,
        bootstrap: str,
        source: str,
        target: str,
        transactional_id: str,
    ) -> None:
        self._journal, self._target = Journal(journal), target
        self._name = f"{transactional_id}-{life}"
        self._chance = random.Random(self._name)
        self._number = 0
        self._stopping = Stopping()
        self._client = TRANSACTIONAL[client](bootstrap, transactional_id)
        self._client.join("copiers", source, SESSION_TIMEOUTS_MS.get(client, SESSION_TIMEOUT_MS))

    def run(self) -> None:
        while not self._stopping.is_asked:
            if messages := self._client.poll(MESSAGES_PER_TRANSACTION):
                watchdog = threading.Timer(HANG_SECONDS, os._exit, (HANGING,))
                watchdog.start()
                self._copy(messages)
                watchdog.cancel()
        self._client.close()

    def _copy(self, messages: Sequence[Message]) -> None:
        self._number += 1
        transaction = f"{self._name}-{self._number}"
        try:
            self._client.begin()
            self._send(messages, transaction.encode())
            self._client.send_offsets(messages)
            if self._chance.random() < ABORTED_ON_PURPOSE:
                self._abort(transaction)
            else:
                self._client.commit()
                self._journal.write("ok", transaction)
        except MustAbort:
            self._abort(transaction)

    def _send(self, messages: Sequence[Message], transaction: bytes) -> None:
        by_partition: dict[int, list[bytes]] = {}
        for message in messages:
            by_partition.setdefault(message.partition, []).append(message.value + b" " + transaction)
        for partition, values in by_partition.items():
            self._client.send(self._target, values, partition)

    def _abort(self, transaction: str) -> None:
        self._client.abort()
        self._journal.write("fail", transaction)
        self._client.rewind()


if __name__ == "__main__":
    Copier(*sys.argv[1:]).run()
