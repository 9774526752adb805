"""Single protocol messages to the brokers of a cluster, for what librdkafka's administration client cannot ask.

    with WireCluster(connection) as cluster:
        listed = cluster.ask_all(LIST_TRANSACTIONS, ListTransactionsRequest())     # {broker: answer}
        described = cluster.ask(leader, DESCRIBE_PRODUCERS, DescribeProducersRequest(topics=[...]))

A connection to a broker is opened when it is first asked; the version of a request is the newest that both sides know.

Limits: no TLS and no authentication; a cluster that wants them is refused with a sentence. Requests are not repeated.
"""

from __future__ import annotations

import socket
from typing import Generic, NamedTuple, Self, TypeVar

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError, no_answer
from tidemill.wire.frames import SIZE
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.requests import API_VERSIONS_KEY, decode_response, encode_request, framed
from tidemill.wire.schema import Message

CLIENT_ID = "tidemill-cli"
PLAINTEXT = "plaintext"
R = TypeVar("R", bound=Message)


class WireApi(NamedTuple, Generic[R]):
    """A request as a client sees it."""

    key: int
    name: str
    request: type[Message]
    response: type[R]


API_VERSIONS = WireApi(API_VERSIONS_KEY, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse)
METADATA = WireApi(3, "Metadata", MetadataRequest, MetadataResponse)


class BrokerConnection:
    """One connection; everything blocks, at most as long as the command may take for an answer."""

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)
            self._socket.settimeout(timeout_seconds)
        except OSError as error:
            raise no_answer(address, str(error.strerror or error).lower()) from error
        self._next_correlation_id = 1
        versions = self._call(API_VERSIONS, ApiVersionsRequest(), 0).api_keys
        self._newest = {each.api_key: each.max_version for each in versions}

    def close(self) -> None:
        self._socket.close()

    def knows(self, api: WireApi[R]) -> bool:
        return api.key in self._newest

    def ask(self, api: WireApi[R], request: Message) -> R:
        if api.key not in self._newest:
            raise CommandError(
                f"the broker at {self._address} does not know {api.name}: it is too old for this"
            )
        return self._call(api, request, min(self._newest[api.key], api.request.VERSIONS[1]))

    def _call(self, api: WireApi[R], request: Message, version: int) -> R:
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        try:
            self._socket.sendall(framed(encode_request(api.key, request, version, correlation_id, CLIENT_ID)))
            (size,) = SIZE.unpack(self._receive(SIZE.size))
            frame = self._receive(size)
        except OSError as error:
            raise no_answer(self._address, str(error.strerror or error).lower()) from error
        answered, response = decode_response(api.key, api.request, api.response, version, frame)
        if answered != correlation_id:
            raise CommandError(f"the broker at {self._address} answers out of order")
        return response

    def _receive(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("it closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class WireCluster:
    """All brokers of a cluster, found through the first one that answers."""

    def __init__(self, connection: Connection) -> None:
        _refuse_security(connection)
        self._timeout_seconds = connection.timeout_seconds
        self._first = BrokerConnection(connection.first_reachable(), self._timeout_seconds)
        self._open: dict[int, BrokerConnection] = {}
        brokers = self._first.ask(METADATA, MetadataRequest(topics=[])).brokers
        self._addresses = {each.node_id: f"{each.host}:{each.port}" for each in brokers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._first, *self._open.values()):
            connection.close()

    def knows(self, api: WireApi[R]) -> bool:
        """Whether the first broker knows this API at all."""
        return self._first.knows(api)

    def ask_any(self, api: WireApi[R], request: Message) -> R:
        return self._first.ask(api, request)

    def ask(self, broker: int, api: WireApi[R], request: Message) -> R:
        if broker not in self._addresses:
            raise CommandError(f"broker {broker} is not there: it may be down, try again when it is back")
        if broker not in self._open:
            self._open[broker] = BrokerConnection(self._addresses[broker], self._timeout_seconds)
        return self._open[broker].ask(api, request)

    def ask_all(self, api: WireApi[R], request: Message) -> dict[int, R]:
        return {broker: self.ask(broker, api, request) for broker in sorted(self._addresses)}


def speaks_plaintext(connection: Connection) -> bool:
    protocol: str = connection.properties.get("security.protocol", PLAINTEXT)
    return protocol.lower() == PLAINTEXT


def _refuse_security(connection: Connection) -> None:
    if not speaks_plaintext(connection):
        raise CommandError(
            f"this command does not speak security.protocol={connection.properties['security.protocol']}:"
            " point --bootstrap at a plaintext listener"
        )
