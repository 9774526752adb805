"""Counts and strings as the encoders by hand write them, in both forms of the protocol.

form        count          string            null
legacy      int32          int16, UTF-8      -1
flexible    varint of n+1  varint of n+1     0
"""

from __future__ import annotations

import struct

from tidemill.wire.schema_values import write_unsigned_varint

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    """Of an array; -1 for none."""
    if flexible:
        write_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)


def write_string(out: bytearray, value: str | None, flexible: bool) -> None:
    raw = None if value is None else value.encode()
    length = -1 if raw is None else len(raw)
    if flexible:
        write_unsigned_varint(out, length + 1)
    else:
        out += _INT16.pack(length)
    if raw:
        out += raw
