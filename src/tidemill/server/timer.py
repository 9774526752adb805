"""The timing wheel on an event loop: one loop timer, set to the wheel's next moment."""

from __future__ import annotations

import asyncio

from tidemill.ports.clock import Clock
from tidemill.timing.wheel import TimerTask, TimingWheel, run_due


class LoopWheel(TimingWheel):
    __slots__ = ("_armed_for_ms", "_clock", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        super().__init__(clock.monotonic_ms())
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for_ms: int | None = None

    def add(self, task: TimerTask, due_ms: int) -> None:
        super().add(task, due_ms)
        if self._armed_for_ms is None or due_ms < self._armed_for_ms:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for_ms = self.next_due_ms()
        if self._armed_for_ms is not None:
            delay_ms = max(0, self._armed_for_ms - self._clock.monotonic_ms())
            self._handle = self._loop.call_later(delay_ms / 1000, self._run_due)

    def _run_due(self) -> None:
        self._handle = None
        self._armed_for_ms = None
        try:
            run_due(self, self._clock.monotonic_ms())
        finally:
            self._arm()  # whatever one task did, the others keep their time

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
