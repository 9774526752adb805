"""Transactions of the three clients behind one face: a producer and, once it joins a group, the consumer beside it.

    with transactional("aiokafka", bootstrap, "payments") as client:
        client.join("group", "source")
        messages = client.poll()               # of one assignment; the group waits until they are dealt with
        client.begin()
        client.send("target", [message.value for message in messages])
        client.send_offsets(messages)
        client.commit()                        # or abort() and then rewind()

`send` waits for nothing, `flush` waits for the broker's answers, and so do `commit` and `abort`. Errors are `Fenced` (a
successor has taken over), `MustAbort` (this transaction is lost, the client is not) and whatever else a client raises.

Limits: aiokafka does not tell the broker which member of the group sends offsets, so the broker cannot refuse one that
lost its partitions: there the revoking of partitions waits for the end of the transaction, as its users have to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRangeAssignor
from clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from group_members import NEWER_PROTOCOL
from kafka.coordinator.assignors.range import RangePartitionAssignor

CALL_SECONDS = 20.0
POLL_SECONDS = 0.3
KAFKA_PYTHON_POLL_SECONDS = 1.0
"""A poll of kafka-python that ends in the middle of a join loses the assignment: none does that soon."""
HEARTBEAT_INTERVAL_MS = 300
RETRY_MS = 20
RECONNECT_MAX_MS = 100
T = TypeVar("T")


class Message(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Fenced(Exception):
    """Another producer has this transactional id now."""


class MustAbort(Exception):
    """The transaction cannot be committed any more."""


class TransactionalClient:
    """What a test sees; subclasses run one client."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.bootstrap, self.transactional_id = bootstrap, transactional_id
        self.group, self.source = "", ""

    def join(self, group: str, source: str, session_timeout_ms: int = 6_000) -> None:
        """Become a member of this group, which reads `source`."""
        self.group, self.source = group, source
        self._join(session_timeout_ms)

    def _join(self, session_timeout_ms: int) -> None:
        raise NotImplementedError

    def poll(self, count: int = 500) -> list[Message]:
        """What comes next, maybe nothing; all of it of one assignment."""
        raise NotImplementedError

    def begin(self) -> None:
        raise NotImplementedError

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def send_offsets(self, messages: Sequence[Message]) -> None:
        """These messages are read, if the transaction commits."""
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def rewind(self) -> None:
        """Back to what is committed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _ends(messages: Sequence[Message]) -> dict[int, int]:
    """The offset behind the last message, by partition."""
    return {message.partition: message.offset + 1 for message in messages}


class ConfluentTransactional(TransactionalClient):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(bootstrap, transactional_id)
        self._common = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
            "log_level": 0,
        }
        self._consumer: Any = None
        self._is_rebalanced = False
        self._member: Any = None
        own = {"transactional.id": transactional_id, "linger.ms": 5, "retry.backoff.ms": RETRY_MS}
        self._producer = confluent_kafka.Producer(self._common | own)
        self._call(self._producer.init_transactions, CALL_SECONDS)

    def _protocol_settings(self, session_timeout_ms: int) -> dict[str, Any]:
        return {
            "partition.assignment.strategy": "range",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }

    def _join(self, session_timeout_ms: int) -> None:
        settings = {
            "group.id": self.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._consumer = confluent_kafka.Consumer(
            self._common | settings | self._protocol_settings(session_timeout_ms)
        )
        self._consumer.subscribe([self.source], on_assign=self._on_change, on_revoke=self._on_change)

    def _on_change(self, consumer: Any, partitions: Any) -> None:
        self._is_rebalanced = True

    def poll(self, count: int = 500) -> list[Message]:
        """A rebalance in the middle of a poll throws away what was polled."""
        self._is_rebalanced = False
        polled = [each for each in self._consumer.consume(count, POLL_SECONDS) if not each.error()]
        self._member = self._consumer.consumer_group_metadata()
        if self._is_rebalanced:
            self.rewind()
            return []
        return [Message(each.partition(), each.offset(), each.value()) for each in polled]

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(CALL_SECONDS) == 0

    def send_offsets(self, messages: Sequence[Message]) -> None:
        offsets = [confluent_kafka.TopicPartition(self.source, *place) for place in _ends(messages).items()]
        self._call(self._producer.send_offsets_to_transaction, offsets, self._member, CALL_SECONDS)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, CALL_SECONDS)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, CALL_SECONDS)

    def rewind(self) -> None:
        held = self._consumer.assignment()
        if held:
            for place in self._call(self._consumer.committed, held, CALL_SECONDS):
                place.offset = max(place.offset, 0)
                self._consumer.seek(place)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        while True:
            try:
                return function(*arguments)
            except confluent_kafka.KafkaException as exception:
                error = exception.args[0]
                if error.code() == confluent_kafka.KafkaError._FENCED:
                    raise Fenced(error.str()) from exception
                if error.txn_requires_abort():
                    raise MustAbort(error.str()) from exception
                if not error.retriable():
                    raise


class NewerConfluentTransactional(ConfluentTransactional):
    """Its consumer speaks the newer protocol, where the broker says how long a session is."""

    def _protocol_settings(self, session_timeout_ms: int) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": "range"}


class KafkaPythonTransactional(TransactionalClient):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(bootstrap, transactional_id)
        self._common = {
            "bootstrap_servers": bootstrap,
            "retry_backoff_ms": RETRY_MS,
            "reconnect_backoff_max_ms": RECONNECT_MAX_MS,
        }
        self._consumer: Any = None
        self._member: Any = None
        self._futures: list[Any] = []
        self._producer = kafka.KafkaProducer(transactional_id=transactional_id, linger_ms=5, **self._common)
        self._producer.init_transactions()

    def _join(self, session_timeout_ms: int) -> None:
        self._consumer = kafka.KafkaConsumer(
            self.source,
            group_id=self.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            partition_assignment_strategy=[RangePartitionAssignor],
            **self._common,
        )

    def poll(self, count: int = 500) -> list[Message]:
        """Who the member was when it polled goes with its offsets: a member that was thrown out since is refused."""
        found = self._consumer.poll(KAFKA_PYTHON_POLL_SECONDS * 1000, max_records=count)
        self._member = self._consumer.group_metadata()
        if found and self._member.generation_id < 0:
            self.rewind()
            return []
        return [Message(r.partition, r.offset, r.value) for records in found.values() for r in records]

    def begin(self) -> None:
        self._futures = []
        self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        self._futures += [self._producer.send(topic, value, partition=partition) for value in values]

    def flush(self) -> None:
        for future in self._futures:
            self._call(future.get, CALL_SECONDS)

    def send_offsets(self, messages: Sequence[Message]) -> None:
        offsets = {
            kafka.TopicPartition(self.source, partition): kafka.OffsetAndMetadata(end, "", -1)
            for partition, end in _ends(messages).items()
        }
        self._call(self._producer.send_offsets_to_transaction, offsets, self._member)

    def commit(self) -> None:
        self.flush()
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def rewind(self) -> None:
        for place in self._consumer.assignment():
            self._consumer.seek(place, self._consumer.committed(place) or 0)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._producer.close(timeout=0)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except kafka.errors.ProducerFencedError as error:
            raise Fenced(str(error)) from error
        except (kafka.errors.CommitFailedError, kafka.errors.FencedInstanceIdError) as error:
            raise MustAbort(str(error)) from error


class _RevokedAfterWork(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, is_idle: asyncio.Event) -> None:
        self._is_idle = is_idle

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self._is_idle.wait()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class AiokafkaTransactional(TransactionalClient):
    """Its event loop runs during calls only."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(bootstrap, transactional_id)
        self._runner = asyncio.Runner()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._consumer: Any = None
        self._producer: Any = None
        self._futures: list[Any] = []
        self._run(self._start)

    async def _start(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            retry_backoff_ms=RETRY_MS,
            linger_ms=5,
        )
        await self._producer.start()

    def _join(self, session_timeout_ms: int) -> None:
        async def start() -> None:
            self._consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=self.group,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
                retry_backoff_ms=RETRY_MS,
                partition_assignment_strategy=[AiokafkaRangeAssignor],
            )
            self._consumer.subscribe([self.source], listener=_RevokedAfterWork(self._is_idle))
            await self._consumer.start()

        self._run(start)

    def poll(self, count: int = 500) -> list[Message]:
        async def get() -> list[Message]:
            found = await self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=count)
            if found:
                self._is_idle.clear()  # before anything else of this loop runs
            return [Message(r.partition, r.offset, r.value) for records in found.values() for r in records]

        return self._run(get)

    def begin(self) -> None:
        self._futures = []
        self._run(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def put() -> None:
            for value in values:
                self._futures.append(await self._producer.send(topic, value, partition=partition))

        self._run(put)

    def flush(self) -> None:
        async def wait() -> None:
            await asyncio.gather(*self._futures)

        self._run(wait)

    def send_offsets(self, messages: Sequence[Message]) -> None:
        offsets = {
            aiokafka.TopicPartition(self.source, partition): end for partition, end in _ends(messages).items()
        }
        self._run(lambda: self._producer.send_offsets_to_transaction(offsets, self.group))

    def commit(self) -> None:
        self.flush()
        self._run(self._producer.commit_transaction)
        self._is_idle.set()

    def abort(self) -> None:
        self._run(self._producer.abort_transaction)

    def rewind(self) -> None:
        async def seek() -> None:
            for place in self._consumer.assignment():
                self._consumer.seek(place, await self._consumer.committed(place) or 0)
            self._is_idle.set()

        self._run(seek)

    def close(self) -> None:
        self._is_idle.set()
        if self._consumer is not None:
            self._run(self._consumer.stop)
        with contextlib.suppress(aiokafka.errors.KafkaError):  # of a producer that was fenced
            self._run(self._producer.stop)
        self._runner.close()

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(work(), CALL_SECONDS)

        try:
            return self._runner.run(bounded())
        except aiokafka.errors.ProducerFenced as error:
            raise Fenced(str(error)) from error


TRANSACTIONAL: dict[str, type[TransactionalClient]] = {
    CONFLUENT.name: ConfluentTransactional,
    NEWER_PROTOCOL: NewerConfluentTransactional,
    KAFKA_PYTHON.name: KafkaPythonTransactional,
    AIOKAFKA.name: AiokafkaTransactional,
}


@contextlib.contextmanager
def transactional(client: str, bootstrap: str, transactional_id: str) -> Iterator[TransactionalClient]:
    opened = TRANSACTIONAL[client](bootstrap, transactional_id)
    with contextlib.closing(opened):
        yield opened
