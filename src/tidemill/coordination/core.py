"""What every coordinator core is: a function of requests, timers and replayed records, without I/O.

A core holds the state of one partition of an internal topic (a *shard*). It is driven from outside:

    outcome = core.handle_something(request, token, now_ms)     # a request; `token` names its reply
    outcome = core.on_timer(key, now_ms)                        # a timer it asked for is due
    core.replay(record)                                         # a record was appended, or read at loading

and answers with an `Outcome`: records to append (all in one batch, so that they are there together or not at
all), replies to send once those records are committed, and timers to set or cancel. Durable state changes only in
`replay`, the same for live traffic and for loading after a restart; what a handler may change directly is only
what a restart may forget (who waits for an answer, when a member was last heard of).

The order the runtime keeps: append the records, replay them, later, when they are committed, send the replies. If
the append fails nothing is replayed and the tokens of the replies get an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from tidemill.wire.schema import Message

Token = Hashable
"""Names a request that waits for its reply; made by the runtime, opaque to the core."""


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """One record of an internal topic: `value` is None for a tombstone."""

    type: int
    """The record type: Kafka's `apiKey` of its schema, the version number that stands before the key."""
    key: Message
    value: Message | None
    value_version: int = 0


class Reply(NamedTuple):
    token: Token
    response: Any
    """A neutral value or a response message; handlers in `api` know which."""


class SetTimer(NamedTuple):
    """Set, or set anew, the timer of this key."""

    key: Hashable
    due_ms: int


class CancelTimer(NamedTuple):
    key: Hashable


@dataclasses.dataclass(slots=True)
class Outcome:
    records: list[CoordinatorRecord] = dataclasses.field(default_factory=list)
    replies: list[Reply] = dataclasses.field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = dataclasses.field(default_factory=list)


class CoordinatorCore(Protocol):
    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        """The only mutator of durable state; `producer_id` is -1 outside transactions."""
        ...

    def on_loaded(self, now_ms: int) -> Outcome:
        """All records are replayed: set timers, finish what a crash interrupted."""
        ...

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome: ...
