"""Reading a topic from somewhere to its end, or on and on.

The end is fixed when reading begins: each partition is read up to the offset that was next at that moment, so a
busy topic does not keep a command alive. What lies before that offset may be no message (transaction markers,
compacted ones); then librdkafka's end-of-partition event tells that nothing more will come.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError, no_answer, refusal

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition

BATCH_SIZE = 500
POLL_SECONDS = 0.25


class Beginning(enum.Enum):
    FIRST = enum.auto()
    LAST = enum.auto()
    OFFSET = enum.auto()
    TIME = enum.auto()
    TAIL = enum.auto()


class Start(NamedTuple):
    beginning: Beginning
    number: int = 0
    """An offset, milliseconds, or a count of messages, as the beginning says."""


class Bounds(NamedTuple):
    """What a partition holds: from the first offset up to, not including, the next one to be written."""

    first: int
    end: int


class TopicReader:
    def __init__(self, connection: Connection, topic: str, partitions: list[int], isolation: str) -> None:
        self._connection = connection
        self._topic = topic
        settings = {
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "allow.auto.create.topics": False,
        }
        self._consumer = connection.consumer(settings)
        self._partitions = self._existing(partitions)

    def close(self) -> None:
        self._consumer.close()

    def read(self, start: Start, follow: bool) -> Iterator[list[Message]]:
        """Messages in batches as they come; a tail is one batch, ordered by time."""
        bounds = {partition: self._bounds(partition) for partition in self._partitions}
        if start.beginning is Beginning.TAIL:
            yield self._last_messages(bounds, start.number)
            if follow:
                yield from self._read_on({partition: bound.end for partition, bound in bounds.items()})
            return
        starts = self._starts(start, bounds)
        if follow:
            yield from self._read_on(starts)
        else:
            yield from self._read_to_end(starts, bounds)

    def _existing(self, wanted: list[int]) -> list[int]:
        from confluent_kafka import KafkaException

        subject = f"topic {self._topic}"
        try:
            topic = self._consumer.list_topics(self._topic, self._connection.timeout_seconds).topics[
                self._topic
            ]
        except KafkaException as error:
            raise refusal(error.args[0], subject, self._connection.bootstrap) from error
        if topic.error is not None:
            raise refusal(topic.error, subject, self._connection.bootstrap)
        missing = sorted(set(wanted) - set(topic.partitions))
        if missing:
            raise CommandError(
                f"{subject} has no partition {missing[0]}: its partitions are 0 to {len(topic.partitions) - 1}"
            )
        return wanted or sorted(topic.partitions)

    def _bounds(self, partition: int) -> Bounds:
        from confluent_kafka import KafkaException

        timeout_seconds = self._connection.timeout_seconds
        try:
            found = self._consumer.get_watermark_offsets(self._at(partition), timeout=timeout_seconds)
        except KafkaException as error:
            subject = f"partition {self._topic}-{partition}"
            raise refusal(error.args[0], subject, self._connection.bootstrap) from error
        if found is None:
            raise no_answer(self._connection.bootstrap, f"nothing came within {timeout_seconds:g} s")
        return Bounds(*found)

    def _starts(self, start: Start, bounds: dict[int, Bounds]) -> dict[int, int]:
        if start.beginning is Beginning.FIRST:
            return {partition: bound.first for partition, bound in bounds.items()}
        if start.beginning is Beginning.LAST:
            return {partition: bound.end for partition, bound in bounds.items()}
        if start.beginning is Beginning.TIME:
            return self._offsets_at(start.number, bounds)
        self._check_offset(start.number, bounds)
        return {partition: min(max(start.number, b.first), b.end) for partition, b in bounds.items()}

    def _check_offset(self, offset: int, bounds: dict[int, Bounds]) -> None:
        if not any(bound.first <= offset <= bound.end for bound in bounds.values()):
            first = min(bound.first for bound in bounds.values())
            end = max(bound.end for bound in bounds.values())
            raise CommandError(f"topic {self._topic} has no offset {offset}: take one from {first} to {end}")

    def _offsets_at(self, timestamp_ms: int, bounds: dict[int, Bounds]) -> dict[int, int]:
        """The first message at or after this time; librdkafka's -1 says there is none."""
        asked = [self._at(partition, timestamp_ms) for partition in bounds]
        found = self._consumer.offsets_for_times(asked, timeout=self._connection.timeout_seconds)
        return {
            answer.partition: bounds[answer.partition].end if answer.offset < 0 else answer.offset
            for answer in found
        }

    def _last_messages(self, bounds: dict[int, Bounds], count: int) -> list[Message]:
        """The latest `count` over all partitions: that many of each are read, the latest of all are kept."""
        if count == 0:
            return []
        starts = {partition: max(bound.first, bound.end - count) for partition, bound in bounds.items()}
        found = [message for batch in self._read_to_end(starts, bounds) for message in batch]
        found.sort(key=lambda message: message.timestamp()[1])
        return found[-count:]

    def _read_to_end(self, starts: dict[int, int], bounds: dict[int, Bounds]) -> Iterator[list[Message]]:
        open_partitions = {partition for partition in starts if starts[partition] < bounds[partition].end}
        if not open_partitions:
            return
        self._assign({partition: starts[partition] for partition in open_partitions})
        quiet_since = time.monotonic()
        while open_partitions:
            messages, ended = self._poll()
            if messages or ended:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > self._connection.timeout_seconds:
                raise no_answer(
                    self._connection.bootstrap, f"nothing came for {self._connection.timeout_seconds:g} s"
                )
            yield [message for message in messages if _offset(message) < bounds[_partition(message)].end]
            for message in messages:
                if _offset(message) + 1 >= bounds[_partition(message)].end:
                    ended.add(_partition(message))
            open_partitions -= ended

    def _read_on(self, starts: dict[int, int]) -> Iterator[list[Message]]:
        self._assign(starts)
        while True:
            messages, _ = self._poll()
            yield messages

    def _assign(self, starts: dict[int, int]) -> None:
        self._consumer.assign([self._at(partition, offset) for partition, offset in starts.items()])

    def _poll(self) -> tuple[list[Message], set[int]]:
        """Messages, and the partitions whose end was reached."""
        from confluent_kafka import KafkaError

        messages: list[Message] = []
        ended: set[int] = set()
        for message in self._consumer.consume(BATCH_SIZE, POLL_SECONDS):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(_partition(message))
            else:
                raise refusal(error, f"topic {self._topic}", self._connection.bootstrap)
        return messages, ended

    def _at(self, partition: int, offset: int = 0) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, partition, offset)


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
