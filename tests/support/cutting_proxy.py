"""A TCP proxy that understands Kafka's frames and can lose an answer on purpose.

It stands between clients and brokers: broker addresses in answers are replaced by its own, so that a client which
bootstraps through the proxy stays behind it. `cut_next(key, count)` arms it: the next `count` answers of that API
(or every so manieth, with `passing`) are read from the broker, which has done its work, and are thrown away together
with the client's connection. That is the worst moment for a connection to break: the client cannot know.

    with CuttingProxy(cluster.bootstrap) as proxy:
        proxy.cut_next(PRODUCE, 3)
        producer = Producer({"bootstrap.servers": proxy.bootstrap, "enable.idempotence": True})

One thread per direction and connection: simple, and quick enough for tests.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any, Self

from tidemill.testing.wire_client import frame_of
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.schema import decode, encode

PRODUCE = 0
FETCH = 1
REWRITTEN = {
    3: (MetadataRequest, MetadataResponse),
    10: (FindCoordinatorRequest, FindCoordinatorResponse),
    60: (DescribeClusterRequest, DescribeClusterResponse),
}


class _Plan:
    """When to cut: `count` times, each after `passing` answers got through."""

    def __init__(self, count: int, passing: int) -> None:
        self._remaining, self._passing, self._passed = count, passing, 0

    def is_due(self) -> bool:
        self._passed += 1
        if self._remaining == 0 or self._passed <= self._passing:
            return False
        self._remaining, self._passed = self._remaining - 1, 0
        return True


class CuttingProxy:
    """Listens once for each broker address it hears of."""

    def __init__(self, bootstrap: str) -> None:
        self._upstream = bootstrap.split(",")[0]
        self._lock = threading.Lock()
        self._listeners: dict[str, socket.socket] = {}
        self._sockets: list[socket.socket] = []
        self._armed: dict[int, _Plan] = {}
        self._is_closed = False
        self.cuts = 0

    def __enter__(self) -> Self:
        self.bootstrap = self.address_for(self._upstream)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
            doomed = [*self._listeners.values(), *self._sockets]
        for each in doomed:
            _close(each)

    def cut_next(self, api_key: int, count: int = 1, passing: int = 0) -> None:
        """Cut `count` answers of this API and let `passing` others through before each."""
        with self._lock:
            self._armed[api_key] = _Plan(count, passing)

    def address_for(self, upstream: str) -> str:
        """Our address that leads to this broker."""
        with self._lock:
            listener = self._listeners.get(upstream)
            if listener is None:
                listener = self._listeners[upstream] = socket.create_server(("127.0.0.1", 0))
                _in_thread(self._accept, listener, upstream)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def should_cut(self, api_key: int) -> bool:
        with self._lock:
            if api_key not in self._armed or not self._armed[api_key].is_due():
                return False
            self.cuts += 1
            return True

    def _accept(self, listener: socket.socket, upstream: str) -> None:
        host, port = upstream.rsplit(":", 1)
        while True:
            try:
                client, _ = listener.accept()
                broker = socket.create_connection((host, int(port)))
            except OSError:
                if self._is_closed:
                    return
                continue
            with self._lock:
                self._sockets += [client, broker]
            _Link(self, client, broker).start()


class _Link:
    """One client connection and its connection to the broker."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._requests: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        _in_thread(self._forward_requests)
        _in_thread(self._forward_answers)

    def _forward_requests(self) -> None:
        while (frame := _read_frame(self._client)) is not None:
            key, version, correlation_id = struct.unpack_from(">hhi", frame)
            self._requests[correlation_id] = (key, version)
            if not _send(self._broker, frame):
                break
        self._close()

    def _forward_answers(self) -> None:
        while (frame := _read_frame(self._broker)) is not None:
            key, version = self._requests.pop(struct.unpack_from(">i", frame)[0])
            if self._proxy.should_cut(key):
                break
            if key in REWRITTEN:
                frame = self._with_our_addresses(key, version, frame)
            if not _send(self._client, frame):
                break
        self._close()

    def _with_our_addresses(self, key: int, version: int, frame: bytes) -> bytes:
        request, response = REWRITTEN[key]
        header_size = 5 if version >= request.FLEXIBLE else 4
        answer = decode(response, version, frame, header_size)
        for place in _places(answer):
            if place.host:
                host, port = self._proxy.address_for(f"{place.host}:{place.port}").rsplit(":", 1)
                place.host, place.port = host, int(port)
        return frame[:header_size] + encode(answer, version)

    def _close(self) -> None:
        _close(self._client)
        _close(self._broker)


def _places(answer: Any) -> list[Any]:
    """The parts of an answer that hold a host and a port."""
    if isinstance(answer, FindCoordinatorResponse):
        return [answer, *answer.coordinators]
    places: list[Any] = answer.brokers
    return places


def _in_thread(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _close(which: socket.socket) -> None:
    try:
        which.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    which.close()


def _send(which: socket.socket, frame: bytes) -> bool:
    try:
        which.sendall(frame_of(frame))
    except OSError:
        return False
    return True


def _read_frame(which: socket.socket) -> bytes | None:
    size = _read_exactly(which, 4)
    return None if size is None else _read_exactly(which, struct.unpack(">i", size)[0])


def _read_exactly(which: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = which.recv(size - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
