"""Purgatory: where requests wait that cannot be answered yet.

A fetch that found too few bytes, a write that waits for its replicas, a group that waits for its members:
each is a `DelayedOperation`, complete when its condition holds or when its time is over, whichever comes
first, and exactly once. An operation is *watched* under the keys of what could complete it (a fetch: each
of its partitions). Whoever changes such a thing says so:

    purgatory.check_and_complete(TopicPartition("orders", 3))     # after an append: try all that watch it

State of an operation, the whole table:

    state       event                                     next        runs
    pending     try_complete finds the condition true     completed   on_complete
    pending     force_complete                            completed   on_complete
    pending     its time is over                          completed   on_complete, then on_expiration
    completed   any                                       completed   nothing

Registration goes: try, watch all keys, try again, and only then set the timer. The second try is for a change
that came between the first try and the last key: that change found nobody to wake, and without the second try
the operation would sleep until its time-out although its condition holds.

Worked example: a long poll that wants 100 bytes of two partitions and waits at most 500 ms.

    purgatory.try_complete_else_watch(fetch, [partition_a, partition_b], now_ms + 500)   # False: it waits
    purgatory.check_and_complete(partition_a)      # 40 bytes appended: 0 completed, it stays
    purgatory.check_and_complete(partition_b)      # 70 more: 1 completed; answered, its timer cancelled
    ...                                            # `partition_a` still lists it, as a completed watcher

Completed watchers are dropped when their key is checked again. A key that is never checked again would keep
them, so a reaper goes through all keys when completed watchers are `reap_threshold` and at least as many as
the live ones: garbage stays bounded, and the cost per operation constant.

Limits: for one thread (the event loop). `on_complete` may register operations and check keys (also the same
key), but must not raise: the rest of its key's watchers would not be tried.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tidemill.timing.wheel import TimerTask, TimingWheel


class DelayedOperation(TimerTask):
    """Subclasses write `try_complete` and `on_complete`, and `on_expiration` if a time-out needs more."""

    __slots__ = ("_purgatory", "_watch_count", "is_completed")

    def __init__(self) -> None:
        super().__init__()
        self.is_completed = False
        self._purgatory: Purgatory | None = None
        self._watch_count = 0

    def try_complete(self) -> bool:
        """If the condition holds, return `self.force_complete()`, otherwise False."""
        raise NotImplementedError

    def force_complete(self) -> bool:
        """Complete now, condition or not. True for the one caller that did it."""
        if self.is_completed:
            return False
        self.is_completed = True
        self.cancel()
        if self._purgatory is not None:
            self._purgatory._note_completed(self)
        self.on_complete()
        return True

    def on_complete(self) -> None:
        """Answer; runs exactly once, however the operation completed."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Runs after `on_complete` if the operation completed because its time was over."""

    def expire(self) -> None:
        if self.force_complete():
            self.on_expiration()


class Purgatory:
    """The operations of one kind, watched by key; several purgatories share one wheel."""

    # `_watched` counts (key, operation) pairs, `_completed_watched` those of completed operations among them.
    __slots__ = (
        "_completed_watched",
        "_delayed",
        "_is_closed",
        "_reap_threshold",
        "_watched",
        "_watchers",
        "_wheel",
    )

    def __init__(self, wheel: TimingWheel, reap_threshold: int = 1_000) -> None:
        self._wheel = wheel
        self._reap_threshold = reap_threshold
        self._watchers: dict[Hashable, list[DelayedOperation]] = {}
        self._watched = 0
        self._completed_watched = 0
        self._delayed = 0
        self._is_closed = False

    @property
    def watched(self) -> int:
        """(key, operation) pairs held, completed ones that no one has dropped yet included."""
        return self._watched

    @property
    def delayed(self) -> int:
        """Operations that wait."""
        return self._delayed

    @property
    def keys(self) -> int:
        """Keys that somebody watches."""
        return len(self._watchers)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Collection[Hashable], due_ms: int
    ) -> bool:
        """True if it completed on the spot; otherwise it waits for its keys, until `due_ms` at most."""
        assert keys, "an operation that watches nothing can only time out: put it in the wheel instead"
        if operation.try_complete() or (self._is_closed and operation.force_complete()):
            return True
        self._watch(operation, keys)
        if operation.try_complete() or operation.is_completed:
            return True
        self._wheel.add(operation, due_ms)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try all operations that watch this key; how many completed."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        count = 0
        # Over a copy: an operation that completes may register another one or check this very key.
        for operation in tuple(watchers):
            if not operation.is_completed and operation.try_complete():
                count += 1
        self._drop_completed(key, watchers)
        return count

    def close(self) -> int:
        """Nobody waits any more: complete everything, condition or not, and whatever comes later at once; how many."""
        self._is_closed = True
        waiting = {operation for watchers in self._watchers.values() for operation in watchers}
        return sum(operation.force_complete() for operation in waiting)

    def _watch(self, operation: DelayedOperation, keys: Collection[Hashable]) -> None:
        watchers = self._watchers
        for key in keys:
            present = watchers.get(key)
            if present is None:
                watchers[key] = [operation]
            else:
                present.append(operation)
        operation._purgatory = self
        operation._watch_count = len(keys)
        self._watched += len(keys)
        self._delayed += 1

    def _note_completed(self, operation: DelayedOperation) -> None:
        self._delayed -= 1
        self._completed_watched += operation._watch_count
        completed = self._completed_watched
        if completed >= self._reap_threshold and completed * 2 >= self._watched:
            self._reap()

    def _reap(self) -> None:
        for key, watchers in list(self._watchers.items()):
            self._drop_completed(key, watchers)

    def _drop_completed(self, key: Hashable, watchers: list[DelayedOperation]) -> None:
        """In place: whoever goes through this key's watchers further up the stack sees the same list."""
        before = len(watchers)
        watchers[:] = [operation for operation in watchers if not operation.is_completed]
        dropped = before - len(watchers)
        self._watched -= dropped
        self._completed_watched -= dropped
        if not watchers and self._watchers.get(key) is watchers:
            del self._watchers[key]
