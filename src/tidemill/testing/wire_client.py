"""A blocking client of one connection that speaks plain protocol messages.

    with WireClient("127.0.0.1:9092") as client:
        answer = client.call(MetadataRequest(topics=None), version=12)

Tests use it where a real client hides what they must see: the order of answers, fetch sessions, error codes,
old versions, and frames that are no frames at all (`send_bytes`). `send` and `receive` are the halves of
`call`, for pipelining; answers are decoded in the order of the requests, which the protocol guarantees.

Limits: no TLS, no authentication, no retries and no routing: it talks to the one broker it was given.
"""

from __future__ import annotations

import collections
import socket
from typing import Any, NamedTuple, Self

from tidemill.testing.apis import APIS
from tidemill.wire import requests
from tidemill.wire.frames import SIZE
from tidemill.wire.requests import framed as frame_of
from tidemill.wire.schema import Message


class _Pending(NamedTuple):
    correlation_id: int
    request: type[Message]
    version: int


class ConnectionLost(ConnectionError):
    """The broker closed the connection where an answer was due."""


def encode_request(
    request: Message, version: int, correlation_id: int = 0, client_id: str | None = "tidemill-testing"
) -> bytes:
    """Header and body of a request, without the size before it."""
    return requests.encode_request(APIS[type(request)].key, request, version, correlation_id, client_id)


def decode_response(request: type[Message], version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and message of an answer."""
    api = APIS[request]
    return requests.decode_response(api.key, request, api.response, version, frame)


class WireClient:
    """One connection. Everything blocks, at most `timeout_seconds`."""

    def __init__(
        self, bootstrap: str, *, timeout_seconds: float = 15.0, client_id: str | None = "tidemill-testing"
    ) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending: collections.deque[_Pending] = collections.deque()
        self._next_correlation_id = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        """The answer to this request, by default in the newest version that the broker offers."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int | None = None, *, is_answered: bool = True) -> int:
        """Send without waiting; `is_answered=False` for a produce with acks=0. Returns the correlation id."""
        version = APIS[type(request)].max_version if version is None else version
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        payload = encode_request(request, version, correlation_id, self.client_id)
        if is_answered:
            self._pending.append(_Pending(correlation_id, type(request), version))
        self.send_bytes(frame_of(payload))
        return correlation_id

    def receive(self) -> Any:
        """The next answer; it must belong to the oldest request that has none yet."""
        pending = self._pending.popleft()
        correlation_id, message = decode_response(pending.request, pending.version, self.receive_frame())
        assert correlation_id == pending.correlation_id, "an answer came out of order"
        return message

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size,) = SIZE.unpack(self._receive_exactly(SIZE.size))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionLost("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
