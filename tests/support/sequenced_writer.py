"""An idempotent producer whose every step can be seen: which batches were acknowledged, and which may be there.

Batches are numbered messages under one producer id, with up to `IN_FLIGHT` requests on the wire. When the connection
breaks, all answers that had arrived before are still read, so `acknowledged` is exactly what the broker promised;
`reconnect` sends the rest again with the same sequence numbers, as librdkafka and Java do.
"""

from __future__ import annotations

import collections
import contextlib

from raw import PRODUCE_WITH_NAMES, batch_of, new_producer_id, produce_request

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient

IN_FLIGHT = 5
MESSAGES_PER_BATCH = 3


class SequencedWriter:
    def __init__(self, broker: SubprocessBroker, topic: str, padding: int = 0) -> None:
        self._broker, self._topic, self._padding = broker, topic, b"." * padding
        self._connection: WireClient | None = None
        with WireClient(broker.bootstrap) as connection:
            self._producer_id, self._epoch = new_producer_id(connection)
        self._waiting: collections.deque[int] = collections.deque()
        self._sent = 0
        self.acknowledged = 0
        """So many messages, from the first on, are promised: their values are 0, 1, 2, ... in this order."""

    def value(self, number: int) -> bytes:
        return b"%d" % number + self._padding

    def reconnect(self) -> None:
        """Connect and send again what was not acknowledged."""
        self._connection = WireClient(self._broker.bootstrap, timeout_seconds=10)
        unanswered, self._sent = list(self._waiting), self.acknowledged
        self._waiting.clear()
        for first in unanswered:
            assert first == self._sent
            self._send()

    def write(self, batches: int) -> None:
        """Send so many batches; ends early, without an error, when the connection breaks."""
        try:
            for _ in range(batches):
                while len(self._waiting) >= IN_FLIGHT:
                    self._receive()
                self._send()
        except ConnectionError:
            self._drain()

    def settle(self) -> None:
        """Wait until nothing is in flight."""
        while self._waiting:
            self._receive()

    def disconnect(self) -> None:
        """Read what had been answered, then close."""
        self._drain()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self) -> None:
        assert self._connection is not None
        first = self._sent
        values = [self.value(first + n) for n in range(MESSAGES_PER_BATCH)]
        batch = batch_of(
            *values, producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=first
        )
        self._waiting.append(first)
        self._sent += MESSAGES_PER_BATCH
        self._connection.send(produce_request(self._topic, batch), PRODUCE_WITH_NAMES)

    def _receive(self) -> None:
        assert self._connection is not None
        answer = self._connection.receive().responses[0].partition_responses[0]
        first = self._waiting.popleft()
        assert answer.error_code == 0, f"{ErrorCode(answer.error_code).name} for message {first}"
        assert answer.base_offset == first, f"message {first} is at offset {answer.base_offset}"
        self.acknowledged = first + MESSAGES_PER_BATCH

    def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._waiting and self._connection is not None:
                self._receive()
