"""Consume, transform, produce, exactly once, with confluent-kafka: a program that `workers` starts and kills.

    python transactional_copier.py JOURNAL LIFE BOOTSTRAP SOURCE TARGET TRANSACTIONAL_ID

Each message `n` of a partition of the source goes to the same partition of the target as `n transaction`, and the
offsets go with it. The journal tells the end of every transaction whose end this program came to know: "ok" (committed)
or "fail" (aborted; some are aborted on purpose). A rebalance in the middle of a poll throws away what was polled.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from workers import Journal, Stopping

MESSAGES_PER_TRANSACTION = 400
POLL_SECONDS = 0.3
CALL_SECONDS = 10.0
SESSION_TIMEOUT_MS = 2_000
ABORTED_ON_PURPOSE = 0.05
HANG_SECONDS = 2.0
"""librdkafka's send_offsets_to_transaction never comes back, whatever its time-out, if the group's coordinator was away
for a moment (confluentinc/librdkafka issues 5456 and 5511): then this program ends itself, to be started again."""
HANGING = 3


class Copier:
    def __init__(
        self, journal: str, life: str, bootstrap: str, source: str, target: str, transactional_id: str
    ) -> None:
        self._journal, self._target = Journal(journal), target
        self._name = f"{transactional_id}-{life}"
        self._chance = random.Random(self._name)
        self._number = 0
        self._is_rebalanced = False
        self._stopping = Stopping()
        common = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}
        self._producer = Producer(
            common | {"transactional.id": transactional_id, "linger.ms": 5, "retry.backoff.ms": 20}
        )
        self._consumer = Consumer(
            common
            | {
                "group.id": "copiers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 300,
            }
        )
        self._consumer.subscribe([source], on_assign=self._on_change, on_revoke=self._on_change)

    def _on_change(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_rebalanced = True

    def run(self) -> None:
        _until_done(lambda: self._producer.init_transactions(CALL_SECONDS))
        while not self._stopping.is_asked:
            self._is_rebalanced = False
            polled = self._consumer.consume(MESSAGES_PER_TRANSACTION, POLL_SECONDS)
            messages = [each for each in polled if not each.error()]
            if self._is_rebalanced:
                self._rewind()
            elif messages:
                self._copy(messages)
        self._consumer.close()

    def _copy(self, messages: list[Message]) -> None:
        self._number += 1
        transaction = f"{self._name}-{self._number}"
        try:
            self._producer.begin_transaction()
            for each in messages:
                value = each.value() + b" " + transaction.encode()
                self._producer.produce(self._target, value, partition=each.partition())
            self._send_offsets(messages)
            if self._chance.random() < ABORTED_ON_PURPOSE:
                self._abort(transaction)
            else:
                _until_done(lambda: self._producer.commit_transaction(CALL_SECONDS))
                self._journal.write("ok", transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(transaction)

    def _send_offsets(self, messages: list[Message]) -> None:
        ends: dict[tuple[str, int], int] = {}
        for each in messages:
            ends[each.topic(), each.partition()] = each.offset() + 1
        offsets = [TopicPartition(*place, offset) for place, offset in ends.items()]
        member = self._consumer.consumer_group_metadata()
        watchdog = threading.Timer(HANG_SECONDS, os._exit, (HANGING,))
        watchdog.start()
        _until_done(lambda: self._producer.send_offsets_to_transaction(offsets, member, CALL_SECONDS))
        watchdog.cancel()

    def _abort(self, transaction: str) -> None:
        _until_done(lambda: self._producer.abort_transaction(CALL_SECONDS))
        self._journal.write("fail", transaction)
        self._rewind()

    def _rewind(self) -> None:
        """Back to what is committed; the first poll after this sees it."""
        held = self._consumer.assignment()
        if held:
            for place in _until_done(lambda: self._consumer.committed(held, CALL_SECONDS)):
                self._consumer.seek(
                    place if place.offset >= 0 else TopicPartition(place.topic, place.partition, 0)
                )


def _until_done(call: Any) -> Any:
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


if __name__ == "__main__":
    Copier(*sys.argv[1:]).run()
