"""Frames and headers: what stands around every request and response.

    request   size i32 | api key i16 | version i16 | correlation id i32 | client id | [tagged fields] | body
    response  size i32 | correlation id i32 | [tagged fields] | body

The tagged fields are there from an API's first flexible version on; ApiVersions answers without them
whatever its version, because a client asks it before it knows what the broker speaks. A response is a
list of pieces, bytes or slices of files, so that a fetch leaves by `sendfile` and TLS can read the same
list later.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from tidemill.model.errors import MalformedMessage
from tidemill.wire.schema import Message, encode_into
from tidemill.wire.schema_values import MAX_TAGGED_FIELDS, read_unsigned_varint

SIZE = struct.Struct(">i")
_FIXED_HEADER = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD = struct.Struct(">iix")
"""With no tagged fields."""


class SlicedFile(Protocol):
    def fileno(self) -> int: ...

    def read(self, position: int, length: int) -> bytes: ...


class FileSlice(NamedTuple):
    """Bytes of a file that belong to a response; holding it keeps the file open."""

    file: SlicedFile
    position: int
    length: int


Piece = bytes | bytearray | FileSlice
Response = list[Piece]


FixedHeader = tuple[int, int, int, int]
"""API key, version, correlation id, and the length of the client id that follows (-1: none)."""


def read_fixed_header(frame: memoryview) -> FixedHeader:
    """All that can be read before the version is known to be ours."""
    if len(frame) < _FIXED_HEADER.size:
        raise MalformedMessage(f"a request of {len(frame)} bytes has no header")
    fixed: FixedHeader = _FIXED_HEADER.unpack_from(frame)
    return fixed


def read_client_id(frame: memoryview, client_length: int, flexible: bool) -> tuple[str | None, int]:
    """The rest of the header: who asks, and where the body begins."""
    position = _FIXED_HEADER.size
    client_id: str | None = None
    if client_length >= 0:
        end = position + client_length
        if end > len(frame):
            raise MalformedMessage("the client id is longer than its request")
        client_id = str(frame[position:end], "utf-8", "replace")
        position = end
    if flexible:
        position = skip_tagged_fields(frame, position)
    return client_id, position


def skip_tagged_fields(data: memoryview, position: int) -> int:
    try:
        if data[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(data, position)
        if count > MAX_TAGGED_FIELDS:
            raise MalformedMessage(f"{count} tagged fields in one struct")
        for _ in range(count):
            _, position = read_unsigned_varint(data, position)
            size, position = read_unsigned_varint(data, position)
            position += size
    except IndexError as error:
        raise MalformedMessage("tagged fields are cut off") from error
    if position > len(data):
        raise MalformedMessage("a tagged field is longer than its message")
    return position


def piece_size(piece: Piece) -> int:
    return piece.length if isinstance(piece, FileSlice) else len(piece)


def frame_message(correlation_id: int, flexible_header: bool, message: Message, version: int) -> Response:
    """A whole response of one message, in one buffer."""
    head = _FLEXIBLE_RESPONSE_HEAD if flexible_header else _RESPONSE_HEAD
    frame = bytearray(head.size)
    encode_into(frame, message, version)
    head.pack_into(frame, 0, len(frame) - SIZE.size, correlation_id)
    return [frame]


def frame_response(correlation_id: int, flexible_header: bool, body: Response) -> Response:
    """Put size and header before a body; the first piece is joined with them into one buffer."""
    size = sum(map(piece_size, body)) + (5 if flexible_header else 4)
    if flexible_header:
        head = _FLEXIBLE_RESPONSE_HEAD.pack(size, correlation_id)
    else:
        head = _RESPONSE_HEAD.pack(size, correlation_id)
    first = body[0]
    if isinstance(first, FileSlice):
        return [head, *body]
    return [head + first, *body[1:]]
