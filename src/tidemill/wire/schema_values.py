"""Values on the wire: numbers, lengths, and what carries a length; each as a reader and a writer.

A reader takes the data and a position and gives the value and the position after it; a writer appends to a buffer.
Both are made once for each kind of value (`blob_reader("string", flexible=True, nullable=False)`) and shared by all
fields of that kind. Lengths are checked against what is there before anything is made of them.
"""

from __future__ import annotations

import struct as _struct
import threading
from collections.abc import Callable
from typing import Any

from tidemill.model.errors import MalformedMessage

MAX_TAGGED_FIELDS = 1_000
"""More tagged fields than this in one struct are an attack: Kafka's largest struct has seven."""
MAX_STRING_BYTES = 0x7FFF
"""As in Kafka, also where the length of a string has room for more."""
MAX_ELEMENTS = 100_000
"""Array elements of one message, all its arrays together: more would hold up everybody else."""
TOO_MANY_ELEMENTS = "too many array elements in one message"

Reader = Callable[[Any, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]


def require_few_elements(count: int) -> int:
    """For decoders by hand: the elements of all arrays so far; each takes ten times its bytes in memory."""
    if count > MAX_ELEMENTS:
        raise MalformedMessage(TOO_MANY_ELEMENTS)
    return count


class Budget(threading.local):
    """What is left of `MAX_ELEMENTS` for the message being decoded in this thread, and who keeps its records."""

    elements = MAX_ELEMENTS
    copies_records = True


BUDGET = Budget()

# -- numbers and lengths ------------------------------------------------------------------------------


def read_unsigned_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a varint is longer than five bytes")


def write_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _fixed(code: str) -> tuple[Reader, Writer]:
    packer = _struct.Struct(">" + code)
    size, unpack_from, pack = packer.size, packer.unpack_from, packer.pack

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return unpack_from(data, position)[0], position + size

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return read, write


FIXED_CODES = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint16": "H", "uint32": "I", "float64": "d",
}  # fmt: skip
FIXED = {name: _fixed(code) for name, code in FIXED_CODES.items()}
MINIMUM_SIZES = {name: _struct.calcsize(">" + code) for name, code in FIXED_CODES.items()} | {"uuid": 16}


def read_uuid(data: bytes, position: int) -> tuple[bytes, int]:
    end = position + 16
    if end > len(data):
        raise MalformedMessage("a uuid is cut off")
    return bytes(data[position:end]), end


def length_reader(kind: str, flexible: bool) -> Reader:
    """Length or count of what follows; -1 stands for null."""
    if flexible:

        def read_compact(data: bytes, position: int) -> tuple[int, int]:
            value, position = read_unsigned_varint(data, position)
            return value - 1, position

        return read_compact
    read: Reader = FIXED["int16" if kind == "string" else "int32"][0]
    return read


def length_writer(kind: str, flexible: bool) -> Callable[[bytearray, int], None]:
    if flexible:

        def write_compact(out: bytearray, length: int) -> None:
            write_unsigned_varint(out, length + 1)

        return write_compact
    return FIXED["int16" if kind == "string" else "int32"][1]


# -- values that carry a length -----------------------------------------------------------------------


def blob_reader(kind: str, flexible: bool, nullable: bool) -> Reader:
    read_length = length_reader(kind, flexible)
    is_text, is_records = kind == "string", kind == "records"

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if flexible and data[position] < 0x80:  # most lengths are one byte, and a call would cost more
            length = data[position] - 1
            position += 1
        else:
            length, position = read_length(data, position)
            if is_text and length > MAX_STRING_BYTES:
                raise MalformedMessage(f"a string of {length} bytes, at most {MAX_STRING_BYTES} are read")
        if length < 0:
            if nullable and length == -1:
                return None, position
            raise MalformedMessage(f"a {kind} that must not be null has length {length}")
        end = position + length
        if end > len(data):
            raise MalformedMessage(f"a {kind} of {length} bytes is longer than its message")
        raw = data[position:end]
        if is_records and not BUDGET.copies_records:
            return raw, end
        return (str(raw, "utf-8") if is_text else bytes(raw)), end

    return read


def blob_writer(kind: str, flexible: bool) -> Writer:
    write_length = length_writer(kind, flexible)
    is_text = kind == "string"

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            write_length(out, -1)
            return
        raw = value.encode() if is_text else value
        length = len(raw)
        if flexible and length < 0x7F:
            out.append(length + 1)
        else:
            write_length(out, length)
        out += raw

    return write
