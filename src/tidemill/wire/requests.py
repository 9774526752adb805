"""A client's half of the protocol: requests to bytes, and answers back. `frames` holds the broker's half.

    payload = encode_request(METADATA_KEY, MetadataRequest(topics=None), 12, correlation_id=1, client_id="me")
    socket.sendall(framed(payload))
    correlation_id, answer = decode_response(METADATA_KEY, MetadataRequest, MetadataResponse, 12, frame)

Limits: an answer whose header holds tagged fields is refused; no broker sends one.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from tidemill.model.errors import MalformedMessage
from tidemill.wire.frames import SIZE
from tidemill.wire.schema import Message, decode, encode_into
from tidemill.wire.schema_values import read_unsigned_varint, write_unsigned_varint

API_VERSIONS_KEY = 18
_HEADER = struct.Struct(">hhi")
M = TypeVar("M", bound=Message)


def encode_request(
    api_key: int, request: Message, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Header and body of a request, without the size before it."""
    out = bytearray(_HEADER.pack(api_key, version, correlation_id))
    raw = None if client_id is None else client_id.encode()
    out += struct.pack(">h", -1 if raw is None else len(raw)) + (raw or b"")
    if version >= type(request).FLEXIBLE:
        write_unsigned_varint(out, 0)
    encode_into(out, request, version)
    return bytes(out)


def decode_response(
    api_key: int, request: type[Message], response: type[M], version: int, frame: bytes
) -> tuple[int, M]:
    """Correlation id and message of an answer; ApiVersions never has tagged fields in its header."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    position = 4
    if version >= request.FLEXIBLE and api_key != API_VERSIONS_KEY:
        count, position = read_unsigned_varint(frame, position)
        if count:
            raise MalformedMessage("an answer's header holds tagged fields")
    return correlation_id, decode(response, version, frame, position, max_elements=len(frame))


def framed(payload: bytes) -> bytes:
    return SIZE.pack(len(payload)) + payload
