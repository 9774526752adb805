"""The timing wheel against a sorted list, its worked examples, and its size."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.timing.wheel import NEVER_MS, TimerTask, TimingWheel, run_due


class Task(TimerTask):
    __slots__ = ("name", "runs")

    def __init__(self, name: int = 0) -> None:
        super().__init__()
        self.name = name
        self.runs = 0

    def expire(self) -> None:
        self.runs += 1


def test_350_ms_lands_in_layer_2_slot_17() -> None:
    wheel, task = TimingWheel(0), Task()
    wheel.add(task, 350)
    assert wheel.location(task) == (2, 17)
    assert wheel.next_due_ms() == 340
    assert wheel.advance(340) == []
    assert wheel.location(task) == (1, 10)
    assert wheel.advance(349) == []
    assert wheel.advance(350) == [task]


def test_450_ms_lands_in_layer_3_slot_1_and_is_demoted_twice() -> None:
    wheel, task = TimingWheel(0), Task()
    wheel.add(task, 450)
    assert wheel.location(task) == (3, 1)
    assert wheel.next_due_ms() == 400
    assert wheel.advance(400) == []  # 50 ms left
    assert wheel.location(task) == (2, 2)
    assert wheel.next_due_ms() == 440
    assert wheel.advance(440) == []  # 10 ms left
    assert wheel.location(task) == (1, 10)
    assert wheel.next_due_ms() == 450
    assert wheel.advance(450) == [task]
    assert wheel.next_due_ms() is None
    assert wheel.location(task) is None


def test_one_late_advance_passes_all_layers() -> None:
    wheel, task = TimingWheel(0), Task()
    wheel.add(task, 450)
    assert wheel.advance(10**9) == [task]


def test_overflow_layers_are_made_on_demand() -> None:
    wheel = TimingWheel(0)
    for due_ms, layer in [(19, 1), (20, 2), (399, 2), (400, 3), (7_999, 3), (8_000, 4), (10**12, 10)]:
        task = Task()
        wheel.add(task, due_ms)
        location = wheel.location(task)
        assert location is not None and location[0] == layer


def test_what_is_overdue_expires_at_the_next_advance_even_if_time_stands_still() -> None:
    wheel = TimingWheel(1_000)
    late, later = Task(), Task()
    wheel.add(late, 900)
    wheel.add(later, -5)
    assert wheel.next_due_ms() == 1_000
    assert wheel.advance(1_000) == [later, late]
    assert wheel.advance(1_000) == []


def test_time_that_runs_backwards_changes_nothing() -> None:
    wheel, task = TimingWheel(1_000), Task()
    wheel.add(task, 1_100)
    assert wheel.advance(500) == []
    assert wheel.advance(1_099) == []
    assert wheel.advance(1_100) == [task]


def test_cancelled_tasks_cause_no_wake_up() -> None:
    wheel, task = TimingWheel(0), Task()
    wheel.add(task, 350)
    task.cancel()
    task.cancel()
    assert (len(wheel), wheel.next_due_ms(), task.due_ms) == (0, None, NEVER_MS)
    wheel.add(task, 345)
    assert (len(wheel), wheel.next_due_ms()) == (1, 340)


def test_adding_a_waiting_task_moves_it() -> None:
    wheel, task = TimingWheel(0), Task()
    wheel.add(task, 10)
    wheel.add(task, 700)
    assert len(wheel) == 1
    assert wheel.advance(699) == []
    assert wheel.advance(700) == [task]


def test_with_a_coarse_tick_nothing_is_early_and_nothing_later_than_a_tick() -> None:
    wheel = TimingWheel(3, tick_ms=50)
    tasks = [Task(due) for due in range(0, 5_000, 7)]
    for task in tasks:
        wheel.add(task, task.name)
    for now_ms in range(3, 5_200, 13):
        for task in wheel.advance(now_ms):
            assert isinstance(task, Task)
            assert task.name <= now_ms <= task.name + 50 + 13
            task.expire()
    assert all(task.runs == 1 for task in tasks)


class Saboteur(Task):
    """Cancels one task and puts off another, both due in the same advance."""

    __slots__ = ("cancelled", "put_off", "wheel")

    def __init__(self, wheel: TimingWheel, cancelled: Task, put_off: Task) -> None:
        super().__init__()
        self.wheel, self.cancelled, self.put_off = wheel, cancelled, put_off

    def expire(self) -> None:
        self.cancelled.cancel()
        self.wheel.add(self.put_off, 100)


def test_run_due_leaves_out_what_an_earlier_one_cancels_or_puts_off() -> None:
    wheel = TimingWheel(0)
    cancelled, put_off = Task(), Task()
    wheel.add(Saboteur(wheel, cancelled, put_off), 10)
    wheel.add(cancelled, 11)
    wheel.add(put_off, 11)
    assert run_due(wheel, 12) == 1
    assert (cancelled.runs, put_off.runs) == (0, 0)
    assert run_due(wheel, 100) == 1
    assert (cancelled.runs, put_off.runs) == (0, 1)


def test_a_plain_task_must_say_what_expiring_means() -> None:
    with pytest.raises(NotImplementedError):
        TimerTask().expire()


class Model:
    """What a wheel should do, as a dict of due times sorted on each advance."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.due: dict[int, int] = {}

    def advance(self, now_ms: int) -> list[tuple[int, int]]:
        if now_ms < self.now_ms:
            return []
        self.now_ms = now_ms
        ready = sorted((due, name) for name, due in self.due.items() if due <= now_ms)
        for _, name in ready:
            del self.due[name]
        return ready


distances = st.one_of(st.integers(-5, 45), st.integers(0, 1_000), st.integers(0, 200_000))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), distances),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("advance"), st.just(0), distances),
        st.tuples(st.just("jump"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 100_000), st.integers(2, 20), steps)
def test_behaves_like_a_sorted_list(start_ms: int, slots: int, script: list[tuple[str, int, int]]) -> None:
    wheel, model = TimingWheel(start_ms, slots=slots), Model(start_ms)
    tasks = [Task(name) for name in range(31)]
    for action, name, distance in script:
        if action == "add":
            wheel.add(tasks[name], model.now_ms + distance)
            model.due[name] = model.now_ms + distance
        elif action == "cancel":
            tasks[name].cancel()
            model.due.pop(name, None)
        else:
            next_ms = wheel.next_due_ms()
            target_ms = next_ms or model.now_ms if action == "jump" else model.now_ms + distance
            expected = model.advance(target_ms)
            found = [(task.due_ms, task.name) for task in wheel.advance(target_ms) if isinstance(task, Task)]
            assert [due for due, _ in found] == [due for due, _ in expected]
            assert sorted(found) == expected
        assert len(wheel) == len(model.due)
        next_ms = wheel.next_due_ms()
        assert (next_ms is None) == (not model.due)
        assert next_ms is None or next_ms <= max(min(model.due.values()), model.now_ms)


def test_the_same_input_gives_the_same_order() -> None:
    def run() -> list[int]:
        wheel, randomness = TimingWheel(0), random.Random(7)
        for name in range(2_000):
            wheel.add(Task(name), randomness.randrange(3_000))
        return [task.name for now in range(0, 3_100, 50) for task in wheel.advance(now)]

    assert run() == run()


def test_a_million_timers() -> None:
    """All come out, in order, in few jumps; and the delay queue holds slots, not timers."""
    wheel, randomness = TimingWheel(0), random.Random(1)
    tasks = [Task(name) for name in range(1_000_000)]
    for task in tasks:
        wheel.add(task, randomness.randrange(60_000))
    assert len(wheel) == 1_000_000
    assert len(wheel._queue) <= 20 * len(wheel._layers) == 80
    for task in tasks[::4]:
        task.cancel()
    assert len(wheel) == 750_000
    due_times: list[int] = []
    jumps = 0
    while (next_ms := wheel.next_due_ms()) is not None:
        due_times += [task.due_ms for task in wheel.advance(next_ms)]
        jumps += 1
    assert len(due_times) == 750_000
    assert due_times == sorted(due_times)
    assert jumps <= 60_000 + 3_000 + 150


class Failing(Task):
    def expire(self) -> None:
        raise ValueError("no")


def test_a_timer_that_fails_costs_the_others_nothing() -> None:
    wheel, tasks = TimingWheel(0), [Failing(), Task(), Task()]
    for task in tasks:
        wheel.add(task, 5)
    assert run_due(wheel, 5) == 3
    assert [task.runs for task in tasks] == [0, 1, 1]
