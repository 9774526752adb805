"""Waiting for what happens elsewhere: never a fixed sleep, always a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], object], what: str, timeout_seconds: float = 15.0) -> None:
    """Return as soon as the condition holds; fail with `what` did not happen after the time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout_seconds:.0f} s"
        time.sleep(POLL_SECONDS)
