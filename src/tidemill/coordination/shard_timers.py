"""What a coordinator has in the timing wheel: the timers that its cores asked for, and a reminder to go on loading."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tidemill.timing.wheel import TimerTask


class ShardTimer(TimerTask):
    """A timer that a core asked for; `due_wall_ms` is what the core called it."""

    __slots__ = ("_on_due", "due_wall_ms", "key", "wanted_ms")

    def __init__(self, on_due: Callable[[ShardTimer], object], key: Hashable) -> None:
        super().__init__()
        self._on_due = on_due
        self.key = key
        self.due_wall_ms = 0
        self.wanted_ms = 0
        """When it is due on the monotonic clock; it may lie in the wheel for a time before that."""

    def expire(self) -> None:
        self._on_due(self)


class Reminder(TimerTask):
    """There is something to go on with."""

    __slots__ = ("_go_on",)

    def __init__(self, go_on: Callable[[], object]) -> None:
        super().__init__()
        self._go_on = go_on

    def expire(self) -> None:
        self._go_on()
