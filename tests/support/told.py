"""What a broker answered, as plain values that may stand beside another broker's answer to the same request.

Fields that have their default are left out, ids of topics and names of this run read as the test calls them, and what
is said in sentences is left out: only people read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.wire.batch import iterate_headers
from tidemill.wire.schema import Message

UNSAID = {
    "throttle_time_ms",
    "error_message",
    "acknowledge_error_message",
    "heartbeat_interval_ms",
    "client_host",
}
NO_LEADER = (0, -1)
"""Kafka fills in 0 where the protocol says -1."""


def told(value: Any, names: Mapping[bytes | str, str]) -> Any:
    if isinstance(value, Message):
        return _fields(value, names)
    if isinstance(value, list):
        return [told(each, names) for each in value]
    return names.get(value, value) if isinstance(value, bytes | str) else value


def _fields(message: Message, names: Mapping[bytes | str, str]) -> dict[str, Any]:
    plain = vars(type(message)())
    found: dict[str, Any] = {}
    for name, value in vars(message).items():
        if name in UNSAID or value == plain[name] or _is_nobody(name, value):
            continue
        if name == "records":
            found[name] = [(header.base_offset, header.last_offset) for _, header in iterate_headers(value)]
        else:
            found[name] = told(value, names)
    return found


def _is_nobody(name: str, value: Any) -> bool:
    return name == "current_leader" and value.leader_id in NO_LEADER
