"""Delayed operations: completed exactly once, never forgotten, and no garbage left behind."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.timing.purgatory import DelayedOperation, Purgatory
from tidemill.timing.wheel import TimingWheel, run_due


class Operation(DelayedOperation):
    __slots__ = ("completions", "expirations", "is_ready", "then", "tries")

    def __init__(self, is_ready: bool = False, then: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.is_ready = is_ready
        self.then = then
        self.tries = self.completions = self.expirations = 0

    def try_complete(self) -> bool:
        self.tries += 1
        return self.is_ready and self.force_complete()

    def on_complete(self) -> None:
        self.completions += 1
        if self.then is not None:
            self.then()

    def on_expiration(self) -> None:
        assert self.completions == 1
        self.expirations += 1


def make(reap_threshold: int = 1_000) -> tuple[TimingWheel, Purgatory]:
    wheel = TimingWheel(0)
    return wheel, Purgatory(wheel, reap_threshold)


def test_what_is_ready_completes_on_the_spot_and_leaves_nothing() -> None:
    wheel, purgatory = make()
    operation = Operation(is_ready=True)
    assert purgatory.try_complete_else_watch(operation, ["a", "b"], 500)
    assert (operation.tries, operation.completions, len(wheel)) == (1, 1, 0)
    assert (purgatory.watched, purgatory.delayed, purgatory.keys) == (0, 0, 0)


class ReadyAtSecondTry(Operation):
    """The change comes after the first try, before anybody could be woken."""

    __slots__ = ()

    def try_complete(self) -> bool:
        self.is_ready = self.tries == 1
        return super().try_complete()


def test_a_change_between_the_first_try_and_the_last_key_is_not_lost() -> None:
    wheel, purgatory = make()
    operation = ReadyAtSecondTry()
    assert purgatory.try_complete_else_watch(operation, ["a", "b"], 500)
    assert (operation.tries, operation.completions, len(wheel), purgatory.delayed) == (2, 1, 0, 0)
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.check_and_complete("b") == 0
    assert (purgatory.watched, purgatory.keys) == (0, 0)


def test_the_timer_is_set_last() -> None:
    wheel, purgatory = make()
    seen: list[tuple[int, bool]] = []

    class Spy(Operation):
        def try_complete(self) -> bool:
            seen.append((purgatory.watched, self.is_scheduled))
            return False

    spy = Spy()
    assert not purgatory.try_complete_else_watch(spy, ["a", "b"], 500)
    assert seen == [(0, False), (2, False)]
    assert spy.is_scheduled and len(wheel) == 1


def test_any_of_the_keys_completes_it_and_its_timer_goes() -> None:
    wheel, purgatory = make()
    operation = Operation()
    assert not purgatory.try_complete_else_watch(operation, ["a", "b"], 500)
    assert purgatory.check_and_complete("a") == 0
    operation.is_ready = True
    assert purgatory.check_and_complete("unknown") == 0
    assert purgatory.check_and_complete("b") == 1
    assert (operation.completions, len(wheel), wheel.next_due_ms()) == (1, 0, None)
    assert (purgatory.watched, purgatory.delayed, purgatory.keys) == (1, 0, 1)
    assert purgatory.check_and_complete("a") == 0
    assert (purgatory.watched, purgatory.keys, operation.completions) == (0, 0, 1)


def test_a_time_out_completes_and_then_expires_once() -> None:
    wheel, purgatory = make()
    operation = Operation()
    purgatory.try_complete_else_watch(operation, ["a"], 500)
    assert run_due(wheel, 499) == 0
    assert run_due(wheel, 500) == 1
    assert (operation.completions, operation.expirations, purgatory.delayed) == (1, 1, 0)
    assert not operation.force_complete()
    operation.expire()
    assert (operation.completions, operation.expirations) == (1, 1)


def test_force_complete_is_won_by_one_caller() -> None:
    wheel, purgatory = make()
    operation = Operation()
    purgatory.try_complete_else_watch(operation, ["a"], 500)
    assert [operation.force_complete() for _ in range(3)] == [True, False, False]
    assert (operation.completions, operation.expirations, run_due(wheel, 1_000)) == (1, 0, 0)


def test_after_the_end_nobody_waits() -> None:
    wheel, purgatory = make()
    waiting, late = Operation(), Operation()
    assert not purgatory.try_complete_else_watch(waiting, ["a", "b"], 500)
    assert purgatory.close() == 1
    assert purgatory.try_complete_else_watch(late, ["a"], 500)
    assert (waiting.completions, late.completions, len(wheel), purgatory.delayed) == (1, 1, 0, 0)


def test_completing_one_may_wake_another_watcher_of_the_same_key() -> None:
    _, purgatory = make()
    first = Operation()

    def wake_first() -> None:
        first.is_ready = True
        assert purgatory.check_and_complete("a") == 1

    second = Operation(then=wake_first)
    purgatory.try_complete_else_watch(first, ["a"], 500)
    purgatory.try_complete_else_watch(second, ["a"], 500)
    second.is_ready = True
    assert purgatory.check_and_complete("a") == 1
    assert (first.completions, second.completions) == (1, 1)
    assert (purgatory.watched, purgatory.delayed, purgatory.keys) == (0, 0, 0)


def test_completing_one_may_register_the_next_under_the_same_key() -> None:
    wheel, purgatory = make()
    following = Operation()
    first = Operation(then=lambda: purgatory.try_complete_else_watch(following, ["a"], 900))
    purgatory.try_complete_else_watch(first, ["a"], 500)
    first.is_ready = True
    assert purgatory.check_and_complete("a") == 1
    assert (purgatory.watched, purgatory.delayed, len(wheel)) == (1, 1, 1)
    following.is_ready = True
    assert purgatory.check_and_complete("a") == 1


def test_an_idle_key_does_not_leak() -> None:
    """Ten thousand polls time out on a key that nobody ever checks."""
    wheel, purgatory = make(reap_threshold=100)
    for now_ms in range(10_000):
        purgatory.try_complete_else_watch(Operation(), ["idle", ("other", now_ms)], now_ms + 5)
        run_due(wheel, now_ms)
        assert purgatory.watched <= 2 * (100 + 10)
    assert purgatory.delayed <= 6


def test_many_that_time_out_together_are_reaped_although_nothing_follows() -> None:
    wheel, purgatory = make(reap_threshold=10)
    for number in range(5_000):
        purgatory.try_complete_else_watch(Operation(), [number % 7], 500)
    assert (purgatory.watched, purgatory.delayed, purgatory.keys) == (5_000, 5_000, 7)
    assert run_due(wheel, 500) == 5_000
    assert purgatory.delayed == 0
    assert purgatory.watched < 10


def test_reaping_keeps_the_living() -> None:
    _, purgatory = make(reap_threshold=10)
    living = Operation()
    purgatory.try_complete_else_watch(living, ["a"], 10_000)
    for _ in range(100):
        operation = Operation()
        purgatory.try_complete_else_watch(operation, ["a"], 500)
        operation.force_complete()
    assert purgatory.watched < 20
    living.is_ready = True
    assert purgatory.check_and_complete("a") == 1


actions = st.lists(
    st.tuples(st.sampled_from(["register", "ready", "check", "force", "advance"]), st.integers(0, 40)),
    max_size=150,
)


@settings(max_examples=200, deadline=None)
@given(actions, st.integers(1, 20))
def test_every_operation_completes_exactly_once(script: list[tuple[str, int]], reap_threshold: int) -> None:
    wheel, purgatory = make(reap_threshold)
    operations: list[Operation] = []
    now_ms = 0
    for action, number in script:
        chosen = operations[number % len(operations)] if operations else Operation()
        if action == "register":
            operations.append(Operation(is_ready=number % 5 == 0))
            keys = [number % 3, number % 4 + 10, "all"]
            purgatory.try_complete_else_watch(operations[-1], keys, now_ms + number)
        elif action == "ready":
            chosen.is_ready = True
        elif action == "check":
            purgatory.check_and_complete("all" if number % 2 else number % 3)
        elif action == "force" and chosen in operations:
            chosen.force_complete()
        elif action == "advance":
            now_ms += number
            run_due(wheel, now_ms)
        waiting = [operation for operation in operations if not operation.is_completed]
        assert purgatory.delayed == len(waiting) == len(wheel)
        assert purgatory.watched == sum(map(len, purgatory._watchers.values()))
    run_due(wheel, now_ms + 1_000)
    assert all(operation.completions == 1 for operation in operations)
    assert purgatory.delayed == 0
