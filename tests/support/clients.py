"""The three Python clients behind one face, so that one test speaks for all of them.

Each `Client` produces and consumes whole lists with a client of its own that it closes again; there is no hidden
state. `consume` assigns a partition by hand (no consumer group). What only one client can do is tested with that
client directly.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 calls old
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

TIMEOUT_SECONDS = 30.0
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]
T = TypeVar("T")


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Received(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Refused(Exception):
    """A client gave up on a message; the text names the error the broker gave."""


class Client(Protocol):
    name: str

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Sent],
        *,
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = 1_000_000,
    ) -> list[int]:
        """Send all, wait for all, answer their offsets in the order sent (-1 each with acks=0)."""
        ...

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        """Exactly the next `count` messages from this offset."""
        ...

    def read_to_end(
        self, bootstrap: str, topic: str, isolation: str = "read_committed", *, partition: int = 0
    ) -> list[tuple[int, bytes]]:
        """(offset, value) of everything that a reader with this isolation may see now."""
        ...

    def offsets_for_times(
        self, bootstrap: str, topic: str, timestamps_ms: Sequence[int], *, partition: int = 0
    ) -> list[int | None]:
        """For each time the offset of the first message at or after it, None if there is none."""
        ...

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Beginning and end offset."""
        ...


class _Deadline:
    def __init__(self, what: str) -> None:
        self._what, self._end = what, time.monotonic() + TIMEOUT_SECONDS

    def check(self, so_far: Sequence[object]) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError(f"{self._what}: {len(so_far)} messages in {TIMEOUT_SECONDS:.0f} s")


class ConfluentClient:
    """librdkafka."""

    name = "confluent-kafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Sent],
        *,
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = 1_000_000,
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": compression,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.max.bytes": max_request_bytes,
                "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
            }
        )
        outcomes: dict[int, Any] = {}
        for number, message in enumerate(messages):
            timestamp = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            producer.produce(
                topic,
                message.value,
                message.key,
                partition=partition,
                headers=list(message.headers),
                on_delivery=lambda error, done, number=number: outcomes.update({number: error or done}),
                **timestamp,
            )
            producer.poll(0)
        producer.flush(TIMEOUT_SECONDS)
        return [_confluent_offset(outcomes[number]) for number in range(len(messages))]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        consumer = self._consumer(bootstrap)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        received: list[Received] = []
        deadline = _Deadline(f"{topic}-{partition} from {offset}")
        try:
            while len(received) < count:
                deadline.check(received)
                received += map(_from_confluent, consumer.consume(count - len(received), 0.5))
        finally:
            consumer.close()
        return received

    def read_to_end(
        self, bootstrap: str, topic: str, isolation: str = "read_committed", *, partition: int = 0
    ) -> list[tuple[int, bytes]]:
        settings = {"isolation.level": isolation, "enable.partition.eof": True}
        consumer, found = self._consumer(bootstrap, **settings), []
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        deadline = _Deadline(f"{topic}-{partition} to its end")
        try:
            while True:
                deadline.check(found)
                for message in consumer.consume(10_000, 0.1):
                    if message.error():
                        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                        return found
                    found.append((message.offset(), message.value()))
        finally:
            consumer.close()

    def offsets_for_times(
        self, bootstrap: str, topic: str, timestamps_ms: Sequence[int], *, partition: int = 0
    ) -> list[int | None]:
        consumer = self._consumer(bootstrap)
        try:
            found = []
            for timestamp_ms in timestamps_ms:
                asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
                (answer,) = consumer.offsets_for_times([asked], TIMEOUT_SECONDS)
                found.append(None if answer.offset < 0 else answer.offset)
            return found
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer(bootstrap)
        try:
            asked = confluent_kafka.TopicPartition(topic, partition)
            answer: tuple[int, int] = consumer.get_watermark_offsets(asked, TIMEOUT_SECONDS)
            return answer
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str, **settings: Any) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": 8_000_000,
                **settings,
            }
        )


def _confluent_offset(outcome: Any) -> int:
    if isinstance(outcome, confluent_kafka.KafkaError):
        raise Refused(outcome.name())
    offset: int = outcome.offset()
    return -1 if offset == confluent_kafka.OFFSET_INVALID else offset


def _from_confluent(message: Any) -> Received:
    if message.error():
        raise Refused(str(message.error()))
    headers = tuple(message.headers() or ())
    return Received(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)


class KafkaPythonClient:
    name = "kafka-python"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Sent],
        *,
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = 1_000_000,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if compression == "none" else compression,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=max_request_bytes,
        )
        try:
            futures = [
                producer.send(topic, m.value, m.key, list(m.headers), partition, m.timestamp_ms)
                for m in messages
            ]
            return [future.get(TIMEOUT_SECONDS).offset for future in futures]
        except kafka.errors.KafkaError as error:
            raise Refused(type(error).__name__) from error
        finally:
            producer.close()

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        consumer, assigned = self._consumer(bootstrap), kafka.TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        received: list[Received] = []
        deadline = _Deadline(f"{assigned} from {offset}")
        try:
            while len(received) < count:
                deadline.check(received)
                batch = consumer.poll(500, max_records=count - len(received)).get(assigned, [])
                received += [Received(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
        finally:
            consumer.close()
        return received

    def read_to_end(
        self, bootstrap: str, topic: str, isolation: str = "read_committed", *, partition: int = 0
    ) -> list[tuple[int, bytes]]:
        consumer = self._consumer(bootstrap, isolation_level=isolation)
        assigned = kafka.TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, 0)
        found: list[tuple[int, bytes]] = []
        deadline = _Deadline(f"{assigned} to its end")
        try:
            end = consumer.end_offsets([assigned])[assigned]
            while consumer.position(assigned) < end:
                deadline.check(found)
                found += [(r.offset, r.value) for r in consumer.poll(100).get(assigned, [])]
        finally:
            consumer.close()
        return found

    def offsets_for_times(
        self, bootstrap: str, topic: str, timestamps_ms: Sequence[int], *, partition: int = 0
    ) -> list[int | None]:
        consumer, asked = self._consumer(bootstrap), kafka.TopicPartition(topic, partition)
        try:
            answers = [consumer.offsets_for_times({asked: when})[asked] for when in timestamps_ms]
            return [None if answer is None else answer.offset for answer in answers]
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        consumer, asked = self._consumer(bootstrap), kafka.TopicPartition(topic, partition)
        try:
            return consumer.beginning_offsets([asked])[asked], consumer.end_offsets([asked])[asked]
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str, **settings: Any) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=8_000_000,
            **settings,
        )


class AiokafkaClient:
    name = "aiokafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Sent],
        *,
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = 1_000_000,
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if compression == "none" else compression,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=5,
                max_request_size=max_request_bytes,
            )
            await producer.start()
            try:
                return await _send_all(producer, topic, partition, messages)
            except aiokafka.errors.KafkaError as error:
                raise Refused(type(error).__name__) from error
            finally:
                await producer.stop()

        return _run(run())

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        async def run(consumer: Any) -> list[Received]:
            assigned = aiokafka.TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            received: list[Received] = []
            deadline = _Deadline(f"{assigned} from {offset}")
            while len(received) < count:
                deadline.check(received)
                found = await consumer.getmany(assigned, timeout_ms=500, max_records=count - len(received))
                for r in found.get(assigned, []):
                    received.append(Received(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)))
            return received

        return self._with_consumer(bootstrap, run)

    def read_to_end(
        self, bootstrap: str, topic: str, isolation: str = "read_committed", *, partition: int = 0
    ) -> list[tuple[int, bytes]]:
        async def run(consumer: Any) -> list[tuple[int, bytes]]:
            assigned = aiokafka.TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, 0)
            found: list[tuple[int, bytes]] = []
            deadline = _Deadline(f"{assigned} to its end")
            end = (await consumer.end_offsets([assigned]))[assigned]
            while await consumer.position(assigned) < end:
                deadline.check(found)
                batch = await consumer.getmany(assigned, timeout_ms=100)
                found += [(r.offset, r.value) for r in batch.get(assigned, [])]
            return found

        return self._with_consumer(bootstrap, run, isolation_level=isolation)

    def offsets_for_times(
        self, bootstrap: str, topic: str, timestamps_ms: Sequence[int], *, partition: int = 0
    ) -> list[int | None]:
        async def run(consumer: Any) -> list[int | None]:
            asked = aiokafka.TopicPartition(topic, partition)
            answers = [(await consumer.offsets_for_times({asked: when}))[asked] for when in timestamps_ms]
            return [None if answer is None else answer.offset for answer in answers]

        return self._with_consumer(bootstrap, run)

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        async def run(consumer: Any) -> tuple[int, int]:
            asked = aiokafka.TopicPartition(topic, partition)
            beginning, end = await consumer.beginning_offsets([asked]), await consumer.end_offsets([asked])
            return beginning[asked], end[asked]

        return self._with_consumer(bootstrap, run)

    def _with_consumer(self, bootstrap: str, work: Any, **settings: Any) -> Any:
        async def run() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=None,
                auto_offset_reset="none",
                fetch_max_wait_ms=100,
                max_partition_fetch_bytes=8_000_000,
                **settings,
            )
            await consumer.start()
            try:
                return await work(consumer)
            finally:
                await consumer.stop()

        return _run(run())


async def _send_all(producer: Any, topic: str, partition: int, messages: Sequence[Sent]) -> list[int]:
    futures = [
        await producer.send(
            topic, m.value, m.key, partition=partition, timestamp_ms=m.timestamp_ms, headers=list(m.headers)
        )
        for m in messages
    ]
    return [-1 if done is None else done.offset for done in await asyncio.gather(*futures)]


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, TIMEOUT_SECONDS * 2)

    return asyncio.run(bounded())


CONFLUENT = ConfluentClient()
KAFKA_PYTHON = KafkaPythonClient()
AIOKAFKA = AiokafkaClient()
CLIENTS: tuple[Client, ...] = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
