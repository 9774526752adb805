"""One connection to one broker: requests out, answers in, in order.

    connection = Connection("127.0.0.1:9092", settings)
    connection.call(MetadataRequest(topics=None)).brokers

`send` and `receive` are the two halves of `call`: whoever writes has several requests under way. A `call` in between
takes its own answer, and the answers that arrive before it wait for their `receive`:

    send(Produce 1)  send(Produce 2)  call(Metadata)     the answers to 1 and 2 are put by, Metadata is returned
    receive()  receive()                                 the answers to 1 and 2

The first exchange asks for the versions that the broker speaks; after that each
request goes out in the newest version both sides know. TLS and SASL happen before it.

Limits: blocking, one thread at a time; no retries (see `cluster`). A connection that failed once is closed
and stays so.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import ssl
import struct
import sys
import tempfile
from typing import Any, NamedTuple

import numpy as np

from tidemill.spark.client.apis import API_VERSIONS_KEY, APIS
from tidemill.spark.client.settings import ClientSettings, TlsSettings
from tidemill.spark.errors import BrokerUnavailable
from tidemill.wire.frames import skip_tagged_fields
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.schema import Message, decode_in_place, encode_into
from tidemill.wire.schema_values import write_unsigned_varint

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")
LARGEST_FRAME = 512 << 20
CONNECT_TIMEOUT_SECONDS = 10.0
_LARGE = 64 << 10
_WAKING_BYTES = 1 << 20
"""Of a large answer so much should be there before the reader is woken: each time it has to win the interpreter lock
from the thread that decodes."""


class _Pending(NamedTuple):
    correlation_id: int
    request: type[Message]
    version: int


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Connection:
    """A socket on which whole messages travel."""

    def __init__(self, address: str, settings: ClientSettings) -> None:
        self.address = address
        self.settings = settings
        self.is_closed = False
        self._pending: collections.deque[_Pending] = collections.deque()
        self._ready: collections.deque[Any] = collections.deque()
        """Answers that came while `call` waited for its own; older than anything pending."""
        self._next_correlation_id = 1
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = self._open()
        try:
            if settings.sasl is not None:
                from tidemill.spark.client.sasl import authenticate

                authenticate(self, settings.sasl)
            self._ask_versions()
        except BaseException:
            self.close()
            raise

    def _open(self) -> socket.socket:
        host, port = split_address(self.address)
        try:
            patience = min(CONNECT_TIMEOUT_SECONDS, self.settings.request_timeout_ms / 1000)
            plain = socket.create_connection((host, port), patience)
            return self._secure(plain, host)
        except OSError as error:
            raise BrokerUnavailable(f"no connection to {self.address}: {error}") from error

    def _secure(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket with its time-out and, where wanted, TLS; closed when that fails."""
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(self.settings.request_timeout_ms / 1000)
            if self.settings.tls is None:
                return plain
            return _tls_context(self.settings.tls).wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _ask_versions(self) -> None:
        answer = self.call(
            ApiVersionsRequest(client_software_name="tidemill", client_software_version="0"), 0
        )
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def close(self) -> None:
        self.is_closed = True
        if hasattr(self, "_socket"):
            self._socket.close()

    # -- messages -----------------------------------------------------------------------------------------

    def call(self, request: Message, version: int | None = None) -> Any:
        """The answer to this request, whatever else is under way."""
        self.send(request, version)
        while len(self._pending) > 1:
            self._ready.append(self._receive_next())
        return self._receive_next()

    def version_of(self, request: type[Message]) -> int:
        """The newest version that we and the broker speak."""
        api = APIS[request]
        if api.key not in self._versions:
            raise BrokerUnavailable(f"{self.address} does not know {request.__name__}")
        oldest, newest = self._versions[api.key]
        version = min(api.newest, newest)
        if version < max(oldest, request.VERSIONS[0]):
            raise BrokerUnavailable(f"{self.address} speaks {request.__name__} only from version {oldest}")
        return version

    def send(self, request: Message, version: int | None = None) -> None:
        """Send without waiting."""
        version = self.version_of(type(request)) if version is None else version
        frame = _encode(request, version, self._next_correlation_id, self.settings.client_id)
        self._pending.append(_Pending(self._next_correlation_id, type(request), version))
        self._next_correlation_id += 1
        self.send_frame(frame)

    def receive(self) -> Any:
        """The answer to the oldest request that was sent and has none yet."""
        return self._ready.popleft() if self._ready else self._receive_next()

    def _receive_next(self) -> Any:
        pending = self._pending.popleft()
        frame = self.receive_frame()
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != pending.correlation_id:
            self.close()
            raise BrokerUnavailable(f"{self.address} answered out of order")
        position = 4
        api = APIS[pending.request]
        if pending.version >= pending.request.FLEXIBLE and api.key != API_VERSIONS_KEY:
            position = skip_tagged_fields(frame, position)
        return decode_in_place(api.response, pending.version, frame, position)

    @property
    def is_waiting(self) -> bool:
        """Whether `receive` has an answer to give or to wait for."""
        return bool(self._ready or self._pending)

    # -- frames -------------------------------------------------------------------------------------------

    def send_frame(self, frame: bytes | bytearray) -> None:
        """Bytes that already begin with their size."""
        try:
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"{self.address} took no request: {error}") from error

    def receive_frame(self) -> memoryview:
        """The next answer, in memory of its own: what is decoded from it may refer to it."""
        (size,) = _SIZE.unpack(self._receive_exactly(4))
        if not 4 <= size <= LARGEST_FRAME:
            self.close()
            raise BrokerUnavailable(f"{self.address} announced an answer of {size} bytes")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> memoryview:
        view = _empty(size)
        done = 0
        try:
            while done < size:
                if size >= _LARGE:
                    self._wake_at(size - done)
                received = self._socket.recv_into(view[done:], size - done)
                if not received:
                    raise ConnectionError("it closed the connection")
                done += received
            if size >= _LARGE:
                self._wake_at(1)
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"{self.address} gave no answer: {error}") from error
        return view

    def _wake_at(self, size: int) -> None:
        """Sleep until so many bytes have come, or a good part of them; TLS has some of them in buffers of its own.

        Where that cannot be set the reader is woken more often, and nothing else.
        """
        if self.settings.tls is None and sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(size, _WAKING_BYTES))


def _empty(size: int) -> memoryview:
    """Room for so many bytes; what is large is not filled with zeros first."""
    return memoryview(bytearray(size)) if size < _LARGE else np.empty(size, np.uint8).data


def _encode(request: Message, version: int, correlation_id: int, client_id: str) -> bytearray:
    name = client_id.encode()
    out = bytearray(_HEADER.pack(0, APIS[type(request)].key, version, correlation_id, len(name)))
    out += name
    if version >= type(request).FLEXIBLE:
        write_unsigned_varint(out, 0)
    encode_into(out, request, version)
    _SIZE.pack_into(out, 0, len(out) - 4)
    return out


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file, cadata=tls.ca_text)
    if not tls.is_host_checked:
        context.check_hostname = False
    password = tls.key_password or ""  # None would let OpenSSL ask on the terminal
    if tls.certificate_text:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{tls.key_text}\n{tls.certificate_text}\n")
            file.flush()
            context.load_cert_chain(file.name, password=password)
    elif tls.certificate_file:
        context.load_cert_chain(tls.certificate_file, tls.key_file, password)
    return context
