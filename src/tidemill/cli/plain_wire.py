"""A few protocol messages straight to a broker: for what librdkafka's administration does not know yet.

    with PlainWire(connection, "127.0.0.1:9092") as wire:
        answer = wire.call(77, 1, ShareGroupDescribeRequest(group_ids=["workers"]), ShareGroupDescribeResponse)

All messages that go this way are flexible, which decides the form of their headers.

Limits: no TLS and no authentication; `can_talk` says whether the connection's settings ask for them.
"""

from __future__ import annotations

import socket
import struct
from typing import Self, TypeVar

from tidemill.cli.connection import Connection
from tidemill.cli.errors import no_answer
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.schema import Message, decode, decode_from, encode_into, write_unsigned_varint

API_VERSIONS = 18
API_VERSIONS_VERSION = 4
CLIENT_ID = b"tidemill-cli"
_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")

R = TypeVar("R", bound=Message)


class _Tags(Message, flexible=0):
    """Nothing but the tagged fields that end a flexible header."""


def can_talk(connection: Connection) -> bool:
    return connection.properties.get("security.protocol", "plaintext").lower() == "plaintext"


class PlainWire:
    """One connection; each call waits for its answer."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), connection.timeout_seconds)
        except OSError as error:
            raise no_answer(address, str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._socket.close()

    def supports(self, key: int, version: int) -> bool:
        """Whether the broker knows this API in this version."""
        asked = ApiVersionsRequest(client_software_name="tidemill-cli", client_software_version="1")
        answer = self.call(API_VERSIONS, API_VERSIONS_VERSION, asked, ApiVersionsResponse)
        return any(
            api.api_key == key and api.min_version <= version <= api.max_version for api in answer.api_keys
        )

    def call(self, key: int, version: int, request: Message, response: type[R]) -> R:
        out = bytearray(_HEADER.pack(key, version, 0, len(CLIENT_ID)) + CLIENT_ID)
        write_unsigned_varint(out, 0)
        encode_into(out, request, version)
        try:
            self._socket.sendall(_SIZE.pack(len(out)) + out)
            frame = self._receive(*_SIZE.unpack(self._receive(_SIZE.size)))
        except OSError as error:
            raise no_answer(self._address, str(error)) from error
        position = _SIZE.size
        if key != API_VERSIONS:
            _, position = decode_from(_Tags, 0, frame, position)
        return decode(response, version, frame, position)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            some = self._socket.recv(size - len(received))
            if not some:
                raise ConnectionError("the connection was closed")
            received += some
        return bytes(received)
