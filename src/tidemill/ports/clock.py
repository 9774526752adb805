"""Time as a port: cores take `now_ms` or a `Clock`, never the machine's clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Milliseconds that never jump: for time-outs and the timing wheel."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: for record timestamps and retention."""
        ...


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
