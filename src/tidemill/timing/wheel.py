"""A hierarchical timing wheel: a million timers, and setting or cancelling one costs the same as with ten.

A wheel of 20 slots that turns one slot per millisecond holds everything due within the next 20 ms: the slot
of a timer is its due time modulo 20. What is due later goes to an overflow wheel whose slot is as wide as
the whole wheel below it, so the layers are

    layer 1   slots of    1 ms, spans    20 ms
    layer 2   slots of   20 ms, spans   400 ms
    layer 3   slots of  400 ms, spans 8,000 ms      and so on; each is made when the first timer needs it

When a slot of an overflow layer comes up, its timers are not due yet, only near: they are put in again and
land in a lower layer (demotion). A timer therefore moves at most once per layer, whatever its distance.

Time does not walk through empty slots. Slots that hold timers wait in a delay queue, a heap ordered by the
time at which they come up; `advance` jumps from one to the next. The heap holds slots, at most 20 per
layer, never timers: that is why it stays tiny with a million of them.

Worked example, a wheel that starts at 0:

- A timer of 350 ms does not fit layer 1 (20 ms) but fits layer 2 (400 ms): 350 // 20 = 17, so layer 2, slot
  17, which comes up at 340. There it is put in again with 10 ms left: layer 1, slot 350 % 20 = 10.
- A timer of 450 ms goes to layer 3, slot 450 // 400 = 1, which comes up at 400. It is demoted with 50 ms
  left to layer 2, slot 450 // 20 % 20 = 2, which comes up at 440, and demoted again with 10 ms left to
  layer 1, slot 10. At 450 it is due. Three steps, although 449 of the milliseconds had nothing to do.

The wheel has no clock. It is told the time (monotonic, so that setting the wall clock moves no time-out):

    wheel = TimingWheel(start_ms=clock.monotonic_ms())
    wheel.add(task, due_ms=clock.monotonic_ms() + 500)
    ...
    run_due(wheel, clock.monotonic_ms())       # no later than wheel.next_due_ms()

Limits: with `tick_ms` above 1 a timer is late by up to a tick, never early. Timers of the same due time
come out in no promised (but a reproducible) order. A cancelled timer leaves at once; the table of its slot
shrinks only when the slot comes up or is refilled, so memory follows the peak within one slot's width, not
the present count.
"""

from __future__ import annotations

import heapq
import logging
import operator

logger = logging.getLogger(__name__)

NEVER_MS = 0x7FFF_FFFF_FFFF_FFFF
"""The due time of a task that nobody waits for: not set yet, or cancelled."""

_NOT_QUEUED = -1
_by_due_time = operator.attrgetter("due_ms")


class TimerTask:
    """Something that becomes due; subclasses say in `expire` what happens then."""

    __slots__ = ("_bucket", "due_ms")

    def __init__(self) -> None:
        self.due_ms = NEVER_MS
        self._bucket: _Bucket | None = None

    @property
    def is_scheduled(self) -> bool:
        """In a wheel, waiting."""
        return self._bucket is not None

    def cancel(self) -> None:
        """Never expire, unless added again; without effect on a task that is not waiting."""
        self.due_ms = NEVER_MS
        bucket = self._bucket
        if bucket is not None:
            self._bucket = None
            del bucket.tasks[self]

    def expire(self) -> None:
        raise NotImplementedError


class _Bucket:
    """One slot: its tasks (a dict for its order: same input, same output) and when it comes up, if queued."""

    __slots__ = ("expiration", "tasks")

    def __init__(self) -> None:
        self.expiration = _NOT_QUEUED
        self.tasks: dict[TimerTask, None] = {}


class _Layer:
    """One wheel of the hierarchy; `width` and `span` in ticks."""

    __slots__ = ("buckets", "span", "width")

    def __init__(self, width: int, slots: int) -> None:
        self.width = width
        self.span = width * slots
        self.buckets = [_Bucket() for _ in range(slots)]


class TimingWheel:
    """Inside, time is counted in ticks since zero; due times are rounded up to a tick, the present down."""

    # Invariant: each queued bucket comes up after `_current`, except the one of `_current` itself in layer 1,
    # which holds what was overdue when it was added. So no slot ever mixes two rounds of its layer.
    __slots__ = ("_current", "_layers", "_queue", "_slots", "_tick_ms")

    def __init__(self, start_ms: int, tick_ms: int = 1, slots: int = 20) -> None:
        assert tick_ms >= 1 and slots >= 2
        self._tick_ms = tick_ms
        self._slots = slots
        self._current = start_ms // tick_ms
        self._layers = [_Layer(1, slots)]
        self._queue: list[tuple[int, int, _Bucket]] = []

    def __len__(self) -> int:
        """How many tasks wait."""
        return sum(len(bucket.tasks) for layer in self._layers for bucket in layer.buckets)

    def add(self, task: TimerTask, due_ms: int) -> None:
        """Wait until `due_ms`; a waiting task is moved. What is overdue expires at the next advance."""
        if task._bucket is not None:
            task.cancel()
        task.due_ms = due_ms
        self._place(task, -(-due_ms // self._tick_ms))

    def advance(self, now_ms: int) -> list[TimerTask]:
        """Take out all that is due at `now_ms`, in due order. Time that runs backwards is ignored."""
        now = now_ms // self._tick_ms
        expired: list[TimerTask] = []
        queue = self._queue
        while queue and queue[0][0] <= now:
            expiration, width, bucket = heapq.heappop(queue)
            self._current = max(self._current, expiration)
            tasks, bucket.tasks = bucket.tasks, {}
            bucket.expiration = _NOT_QUEUED
            if width == 1:
                expired.extend(tasks)
            else:
                self._demote(tasks, expired)
        self._current = max(self._current, now)
        for task in expired:
            task._bucket = None
        expired.sort(key=_by_due_time)
        return expired

    def next_due_ms(self) -> int | None:
        """When to call `advance` next: the earliest due time, or a moment before it, for demotion."""
        queue = self._queue
        while queue and not queue[0][2].tasks:
            heapq.heappop(queue)[2].expiration = _NOT_QUEUED
        return queue[0][0] * self._tick_ms if queue else None

    def location(self, task: TimerTask) -> tuple[int, int] | None:
        """(layer, slot) of a waiting task, layers counted from 1: for tests and for people."""
        for number, layer in enumerate(self._layers, 1):
            for slot, bucket in enumerate(layer.buckets):
                if bucket is task._bucket:
                    return number, slot
        return None

    def _demote(self, tasks: dict[TimerTask, None], expired: list[TimerTask]) -> None:
        current, tick_ms = self._current, self._tick_ms
        for task in tasks:
            due = -(-task.due_ms // tick_ms)
            if due <= current:
                expired.append(task)
            else:
                self._place(task, due)

    def _place(self, task: TimerTask, due: int) -> None:
        current = self._current
        if due < current:
            due = current
        for layer in self._layers:
            width = layer.width
            if due < current - current % width + layer.span:
                break
        else:
            layer = self._layer_that_spans(due)
            width = layer.width
        position = due // width
        bucket = layer.buckets[position % self._slots]
        bucket.tasks[task] = None
        task._bucket = bucket
        if bucket.expiration == _NOT_QUEUED:
            bucket.expiration = position * width
            # Width breaks ties: two layers never have the same, so buckets themselves are never compared.
            heapq.heappush(self._queue, (bucket.expiration, width, bucket))
        assert bucket.expiration == position * width

    def _layer_that_spans(self, due: int) -> _Layer:
        """Grow overflow layers until one reaches the due time."""
        while True:
            layer = _Layer(self._layers[-1].span, self._slots)
            self._layers.append(layer)
            if due < self._current - self._current % layer.width + layer.span:
                return layer


def run_due(wheel: TimingWheel, now_ms: int) -> int:
    """Expire all that is due, and say how many. One that another cancels or puts off is left out.

    One that fails is reported and costs the others nothing: they were taken from the wheel together.
    """
    count = 0
    for task in wheel.advance(now_ms):
        if task.due_ms <= now_ms:
            try:
                task.expire()
            except Exception:
                logger.exception("a timer failed")
            count += 1
    return count
