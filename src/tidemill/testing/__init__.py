"""Brokers for other people's tests.

    from tidemill.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

`EmbeddedBroker` runs in a thread of this process, `SubprocessBroker` is a process of its own that can be
killed. Both take free ports, keep their data in a temporary directory and leave nothing behind. With pytest
installed the fixtures `tidemill_broker`, `tidemill_topic` and `tidemill_topic_factory` are there without any
set-up (see `tidemill.testing.plugin`).

Nothing here is imported before it is asked for, so that a test run which never starts a broker pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.testing.embedded import EmbeddedBroker, SubprocessBroker
    from tidemill.testing.wire_client import WireClient

__all__ = ["EmbeddedBroker", "SubprocessBroker", "WireClient"]

_HOMES = {
    "EmbeddedBroker": "tidemill.testing.embedded",
    "SubprocessBroker": "tidemill.testing.embedded",
    "WireClient": "tidemill.testing.wire_client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
