"""Which request has which key, versions and answer: the broker's own table, turned round for a client."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from tidemill.api import table
from tidemill.wire.schema import Message


class ClientApi(NamedTuple):
    key: int
    min_version: int
    max_version: int
    response: type[Message]


def _message(api: table.Api, kind: str) -> type[Message]:
    """The declared message, also of the two APIs that the broker codes by hand."""
    module = importlib.import_module(f"tidemill.wire.messages.{api.messages or api.name.lower()}")
    found: type[Message] = getattr(module, api.name + kind)
    return found


APIS: dict[type[Message], ClientApi] = {
    _message(api, "Request"): ClientApi(api.key, api.min_version, api.max_version, _message(api, "Response"))
    for api in table.APIS
}
