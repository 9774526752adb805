"""How `consume` prints a message."""

from __future__ import annotations

import datetime
import enum
import json
from typing import TYPE_CHECKING

from tidemill.cli.message_json import headers_of, message_to_json

if TYPE_CHECKING:
    from confluent_kafka import Message


class Format(enum.StrEnum):
    """text: the value and a newline; full: also where, when, key and headers; raw: the value's bytes alone."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"
    FULL = "full"


class MessagePrinter:
    def __init__(self, format: Format, key_separator: str | None) -> None:
        self._separator = None if key_separator is None else key_separator.encode()
        printers = {
            Format.TEXT: self._text,
            Format.JSON: self._json,
            Format.RAW: self._raw,
            Format.FULL: self._full,
        }
        self.line = printers[format]
        """The bytes to print for one message."""

    def _text(self, message: Message) -> bytes:
        value = _shown(message.value())
        if self._separator is None:
            return value + b"\n"
        return _shown(message.key()) + self._separator + value + b"\n"

    def _raw(self, message: Message) -> bytes:
        return _raw_bytes(message.value()) or b""

    def _json(self, message: Message) -> bytes:
        return json.dumps(message_to_json(message), ensure_ascii=False).encode() + b"\n"

    def _full(self, message: Message) -> bytes:
        """orders-0@7  2026-01-31T12:00:00.000Z  key=a  [trace=1]  value"""
        place = f"{message.topic()}-{message.partition()}@{message.offset()}  {_time(message)}  key=".encode()
        headers = b", ".join(name.encode() + b"=" + _shown(value) for name, value in headers_of(message))
        return b"%s%s  [%s]  %s\n" % (place, _shown(message.key()), headers, _shown(message.value()))


def _raw_bytes(raw: bytes | str | None) -> bytes | None:
    return raw.encode() if isinstance(raw, str) else raw


def _shown(raw: bytes | str | None) -> bytes:
    found = _raw_bytes(raw)
    return b"null" if found is None else found


def _time(message: Message) -> str:
    timestamp_ms = message.timestamp()[1]
    if timestamp_ms < 0:
        return "no time"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
