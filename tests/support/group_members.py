"""Members of consumer groups, each polling in a thread of its own, behind one face for the three clients.

    with member("confluent-kafka", bootstrap, "group", topic, strategy="range") as one:
        wait_until(lambda: len(one.assigned) == 4, "an assignment")
        one.received            # [(partition, offset, value), ...] in the order read
    # leaving the block closes the client, which leaves the group

A member commits what it has read, synchronously, after each poll: so whatever another member reads again was read
after its last commit. A member is killed by running this file as a program and killing the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors import range as aiokafka_range
from aiokafka.coordinator.assignors import roundrobin as aiokafka_round_robin
from aiokafka.coordinator.assignors.sticky import sticky_assignor as aiokafka_sticky
from kafka.coordinator.assignors import cooperative_sticky, roundrobin
from kafka.coordinator.assignors import range as kafka_range
from kafka.coordinator.assignors.sticky import sticky_assignor

SESSION_TIMEOUT_MS = 6_000
MAX_POLL_INTERVAL_MS = 300_000
HEARTBEAT_INTERVAL_MS = 500
POLL_SECONDS = 0.1
KAFKA_PYTHON_POLL_SECONDS = 1.0
"""A poll of kafka-python that ends in the middle of a join loses the assignment: none does that soon."""
JOIN_SECONDS = 30.0

NEWER_PROTOCOL = "confluent-kafka, newer protocol"
STRATEGIES = {
    "confluent-kafka": ("range", "roundrobin", "cooperative-sticky"),
    "kafka-python": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "aiokafka": ("range", "roundrobin", "sticky"),
}
_KAFKA_PYTHON_ASSIGNORS = {
    "range": kafka_range.RangePartitionAssignor,
    "roundrobin": roundrobin.RoundRobinPartitionAssignor,
    "sticky": sticky_assignor.StickyPartitionAssignor,
    "cooperative-sticky": cooperative_sticky.CooperativeStickyAssignor,
}
_AIOKAFKA_ASSIGNORS = {
    "range": aiokafka_range.RangePartitionAssignor,
    "roundrobin": aiokafka_round_robin.RoundRobinPartitionAssignor,
    "sticky": aiokafka_sticky.StickyPartitionAssignor,
}


class Member:
    """What a test sees of a member; subclasses run one client."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        strategy: str = "range",
        instance: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS,
    ) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.strategy, self.instance = strategy, instance
        self.session_timeout_ms, self.max_poll_interval_ms = session_timeout_ms, max_poll_interval_ms
        self.assigned: set[int] = set()
        self.assignments = 0
        """How many times this member was told its partitions."""
        self.received: list[tuple[int, int, bytes]] = []
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave the group; a static member stays in it until its session is over."""
        self._stopping.set()
        self._thread.join(JOIN_SECONDS)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._consume()
        except BaseException as error:
            self.error = error
        finally:
            self.assigned = set()

    def _consume(self) -> None:
        raise NotImplementedError

    def be_assigned(self) -> None:
        """It was told its partitions: what it reads next, it reads from the committed offsets on."""
        self.assignments += 1

    def receive(self, messages: list[tuple[int, int, bytes]]) -> None:
        """These were read, and are about to be committed."""
        self.received += messages


class ConfluentMember(Member):
    def _protocol_settings(self) -> dict[str, Any]:
        return {
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }

    def _consume(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            **self._protocol_settings(),
        }
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self.topic], on_assign=self._on_assign)
        try:
            while not self._stopping.is_set():
                messages = [message for message in consumer.consume(500, POLL_SECONDS) if not message.error()]
                self.receive([(m.partition(), m.offset(), m.value()) for m in messages])
                if messages:
                    with contextlib.suppress(confluent_kafka.KafkaException):
                        consumer.commit(asynchronous=False)  # refused while a rebalance is under way
                self.assigned = {each.partition for each in consumer.assignment()}
        finally:
            consumer.close()

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        self.be_assigned()


class NewerConfluentMember(ConfluentMember):
    """It speaks the newer protocol; its strategy is an assignor of the broker."""

    def _protocol_settings(self) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": self.strategy}


class _KafkaPythonListener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.be_assigned()


class _AiokafkaListener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.be_assigned()


class KafkaPythonMember(Member):
    def _consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=[_KAFKA_PYTHON_ASSIGNORS[self.strategy]],
            session_timeout_ms=self.session_timeout_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.subscribe([self.topic], listener=_KafkaPythonListener(self))
        try:
            while not self._stopping.is_set():
                found = consumer.poll(KAFKA_PYTHON_POLL_SECONDS * 1000)
                for records in found.values():
                    self.receive([(r.partition, r.offset, r.value) for r in records])
                if found:
                    with contextlib.suppress(kafka.errors.CommitFailedError, kafka.errors.RetriableError):
                        consumer.commit()
                self.assigned = {each.partition for each in consumer.assignment()}
        finally:
            consumer.close()


class AiokafkaMember(Member):
    def _consume(self) -> None:
        asyncio.run(self._consume_in_loop())

    async def _consume_in_loop(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=[_AIOKAFKA_ASSIGNORS[self.strategy]],
            session_timeout_ms=self.session_timeout_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.subscribe([self.topic], listener=_AiokafkaListener(self))
        await consumer.start()
        try:
            while not self._stopping.is_set():
                found = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                for records in found.values():
                    self.receive([(r.partition, r.offset, r.value) for r in records])
                if found:
                    with contextlib.suppress(aiokafka.errors.KafkaError):
                        await consumer.commit()
                self.assigned = {each.partition for each in consumer.assignment()}
        finally:
            await consumer.stop()


MEMBERS: dict[str, type[Member]] = {
    "confluent-kafka": ConfluentMember,
    NEWER_PROTOCOL: NewerConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


@contextlib.contextmanager
def member(client: str, bootstrap: str, group: str, topic: str, **options: Any) -> Iterator[Member]:
    running = MEMBERS[client](bootstrap, group, topic, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def mortal_member(client: str, bootstrap: str, group: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, assigned when this returns; kill it."""
    command = [sys.executable, str(Path(__file__).resolve()), client, bootstrap, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "assigned\n"
            yield process
        finally:
            process.kill()


def _live() -> None:
    client, bootstrap, group, topic = sys.argv[1:]
    with member(client, bootstrap, group, topic) as running:
        while not running.assigned:
            time.sleep(POLL_SECONDS)
        print("assigned", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    _live()
