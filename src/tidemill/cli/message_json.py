"""One message as one line of JSON, in both directions: what `consume --json` prints, `produce --json-lines` sends.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1700000000000,
     "key": "a", "value": "text", "headers": [["trace", "1"]]}

A key, value or header that is not UTF-8 text becomes `{"base64": "..."}`; null stays null (a tombstone). Written
by hand, a line needs no more than a value, the value may be any JSON (an object is sent as its compact text), and
headers may be an object.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidemill.cli.errors import CommandError

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = list[tuple[str, str | bytes | None]]

ANY_PARTITION = -1
NOW = 0
"""librdkafka's word for "the time of sending"."""


class Outgoing(NamedTuple):
    """A message to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = []
    partition: int = ANY_PARTITION
    timestamp_ms: int = NOW


def message_to_json(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _to_json(message.key()),
        "value": _to_json(message.value()),
        "headers": [[name, _to_json(value)] for name, value in headers_of(message)],
    }


def headers_of(message: Message) -> Headers:
    """librdkafka's own type for them is wider than what it gives."""
    return cast(Headers, message.headers() or [])


def message_from_json(line: str) -> Outgoing:
    """Raises CommandError with what is wrong with the line."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise CommandError(f"this is no JSON: {error}") from error
    if not isinstance(fields, dict) or "value" not in fields:
        raise CommandError('a line must be an object with at least a "value"')
    return Outgoing(
        value=_from_json(fields["value"]),
        key=_from_json(fields.get("key")),
        headers=[(name, _from_json(value)) for name, value in _header_pairs(fields.get("headers"))],
        partition=_number(fields, "partition", ANY_PARTITION),
        timestamp_ms=_number(fields, "timestamp", NOW),
    )


def _to_json(raw: bytes | str | None) -> Any:
    if raw is None or isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _from_json(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise CommandError(f"this is no base64: {error}") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _header_pairs(headers: Any) -> list[tuple[str, Any]]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    if not isinstance(pairs, list) or not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise CommandError('"headers" must be an object or a list of [name, value]')
    return [(name, value) for name, value in pairs]


def _number(fields: dict[str, Any], name: str, default: int) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CommandError(f'"{name}" must be a whole number')
    return value
