"""Who asks: carried by every request through the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

from tidemill.wire.frames import Response

ANONYMOUS = "User:ANONYMOUS"


class RequestContext(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    principal: str
    listener: str
    peer_address: str


class ResponseSlot(Protocol):
    """Where a response goes; the connection puts it in order."""

    on_abandoned: Callable[[], object]
    """Called when the connection ends before the response."""

    @property
    def is_ready(self) -> bool:
        """Whether it has its response."""
        ...

    def hold_back_others(self) -> None:
        """Take no further request of this connection until this one is answered."""
        ...

    def respond(self, response: Response) -> None:
        """Answer; an empty list stands for a request that has no response."""
        ...

    def respond_with_others(self, response: Response) -> None:
        """Answer at the end of this turn of the loop, with all who are answered in it."""
        ...

    def close_connection(self) -> None: ...

    def when_connection_ends(self, key: Hashable, callback: Callable[[], object]) -> Callable[[], object]:
        """Call this, and not what was given for the same key before, when the connection is closed.

        Returns how to take it back.
        """
        ...
