"""The runtime with a small core, a log in memory whose commits and failures the test decides, and a clock by hand.

The core counts: each group has a number that `add` changes through a record; `wait` keeps its token until the next
`add` of the same group; a timer adds a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from tidemill.coordination.core import CancelTimer, CoordinatorRecord, Outcome, Reply, SetTimer
from tidemill.coordination.record_codec import Producer
from tidemill.coordination.records.group_records import RECORD_TYPES, OffsetCommitKey, OffsetCommitValue
from tidemill.coordination.runtime import RECORDS_PER_STEP, CoordinatorRuntime, RuntimeSettings
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.timing.wheel import TimingWheel, run_due
from tidemill.wire.batch import read_header, stamp


class HandClock:
    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.wall_offset_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def wall_ms(self) -> int:
        return self.wall_offset_ms + self.elapsed_ms


class MemoryLog:
    """One log for every partition; commits at once unless `is_slow`."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.versions: list[int] = []
        self.end = 0
        self.committed = 0
        self.is_slow = False
        self.failure: ApiError | None = None
        self._waiting: list[tuple[int, Callable[[ApiError | None], None]]] = []

    def bounds(self, index: int) -> tuple[int, int]:
        return 0, self.end

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        return b"".join(batch for batch in self.batches if read_header(batch).last_offset >= offset)

    def append(
        self, index: int, batch: bytearray, leader_epoch: int, now_ms: int, transaction_version: int = 0
    ) -> int:
        if self.failure is not None:
            raise self.failure
        stamp(batch, 0, self.end, leader_epoch)
        self.batches.append(bytes(batch))
        self.versions.append(transaction_version)
        self.end = read_header(batch).last_offset + 1
        if not self.is_slow:
            self.commit()
        return self.end

    def commit(self, failure: ApiError | None = None) -> None:
        self.committed = self.end if failure is None else self.committed
        ready, self._waiting = self._waiting, []
        for _, respond in ready:
            respond(failure)

    def when_committed(
        self, index: int, end_offset: int, due_ms: int, respond: Callable[[ApiError | None], None]
    ) -> None:
        if end_offset <= self.committed:
            respond(None)
        else:
            self._waiting.append((end_offset, respond))


class CountingCore:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.pending: dict[int, list[tuple[str, int]]] = {}
        self.waiting: dict[str, Hashable] = {}
        self.was_loaded = False
        self.cannot_replay = 0

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        assert isinstance(record.key, OffsetCommitKey) and isinstance(record.value, OffsetCommitValue)
        if record.value.offset == self.cannot_replay:
            self.cannot_replay = -1
            raise RuntimeError("this core has a fault")
        change = (record.key.group, record.value.offset)
        if producer_id >= 0:
            self.pending.setdefault(producer_id, []).append(change)
        else:
            self._add(*change)

    def _add(self, group: str, amount: int) -> None:
        self.counts[group] = self.counts.get(group, 0) + amount

    def replay_end_of_transaction(self, producer_id: int, is_commit: bool) -> None:
        for change in self.pending.pop(producer_id, []):
            if is_commit:
                self._add(*change)

    def on_loaded(self, now_ms: int) -> Outcome:
        self.was_loaded = True
        return Outcome()

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        return Outcome(records=[change(str(key), 1000)])

    # -- requests -------------------------------------------------------------------------------------

    def add(self, group: str, amount: int, token: Hashable) -> Outcome:
        replies = [Reply(token, "added")]
        if group in self.waiting:
            replies.append(Reply(self.waiting.pop(group), "woken"))
        return Outcome([change(group, amount)], replies)

    def wait(self, group: str, token: Hashable) -> Outcome:
        self.waiting[group] = token
        return Outcome()

    def get(self, group: str, token: Hashable) -> Outcome:
        return Outcome(replies=[Reply(token, self.counts.get(group, 0))])


def change(group: str, amount: int) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    return CoordinatorRecord(1, key, OffsetCommitValue(offset=amount, metadata="", commit_timestamp=0), 3)


class World:
    """A runtime with one active shard, partition 0."""

    def __init__(self, log: MemoryLog | None = None, *, lead: bool = True) -> None:
        self.clock = HandClock()
        self.log = log or MemoryLog()
        self.wheel = TimingWheel(0)
        self.cores: list[CountingCore] = []
        self.runtime: CoordinatorRuntime[CountingCore] = CoordinatorRuntime(
            "__counts", self._make_core, self.log, self.wheel, self.clock, RuntimeSettings(RECORD_TYPES)
        )
        if lead:
            self.runtime.become_leader(0, 1)

    def _make_core(self, index: int) -> CountingCore:
        self.cores.append(CountingCore())
        return self.cores[-1]

    @property
    def core(self) -> CountingCore:
        return self.cores[-1]

    def submit(
        self, call: Callable[[CountingCore, Hashable, int], Outcome], producer: Producer | None = None
    ) -> list[Any]:
        answers: list[Any] = []
        self.runtime.submit(0, call, answers.append, producer)
        return answers

    def add(self, group: str, amount: int, producer: Producer | None = None) -> list[Any]:
        return self.submit(lambda core, token, now_ms: core.add(group, amount, token), producer)

    def get(self, group: str) -> list[Any]:
        return self.submit(lambda core, token, now_ms: core.get(group, token))

    def wait(self, group: str) -> list[Any]:
        return self.submit(lambda core, token, now_ms: core.wait(group, token))

    def set_timer(self, key: str, delay_ms: int) -> None:
        self.submit(lambda core, token, now_ms: Outcome(timers=[SetTimer(key, now_ms + delay_ms)]))

    def pass_time(self, duration_ms: int) -> None:
        self.clock.elapsed_ms += duration_ms
        run_due(self.wheel, self.clock.elapsed_ms)


def code_of(answers: list[Any]) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, ApiError), answers
    return answer.code


# -- requests ---------------------------------------------------------------------------------------------


def test_a_change_is_written_replayed_and_answered() -> None:
    world = World()
    assert world.add("g", 5) == ["added"]
    assert world.get("g") == [5]
    assert len(world.log.batches) == 1


def test_answers_wait_for_the_commit_also_those_of_readers() -> None:
    world = World()
    world.log.is_slow = True
    added, read = world.add("g", 5), world.get("g")
    assert added == read == []
    world.log.commit()
    assert (added, read) == (["added"], [5])


def test_a_commit_that_does_not_come_is_an_error_that_clients_repeat_after() -> None:
    world = World()
    world.log.is_slow = True
    added = world.add("g", 5)
    world.log.commit(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert code_of(added) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_kept_token_is_answered_by_a_later_request() -> None:
    world = World()
    waiting = world.wait("g")
    assert waiting == []
    world.add("other", 1)
    assert waiting == []
    world.add("g", 1)
    assert waiting == ["woken"]


@pytest.mark.parametrize(
    ("of_the_log", "for_clients"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_append_that_fails_changes_nothing_and_tells_all_of_the_outcome(
    of_the_log: ErrorCode, for_clients: ErrorCode
) -> None:
    world = World()
    waiting = world.wait("g")
    world.log.failure = ApiError(of_the_log)
    assert code_of(world.add("g", 5)) is for_clients
    assert code_of(waiting) is for_clients
    assert world.get("g") == [0]


def test_a_core_that_raises_answers_an_error_and_lives_on() -> None:
    world = World()

    def fault(core: CountingCore, token: Hashable, now_ms: int) -> Outcome:
        raise ZeroDivisionError

    def refuse(core: CountingCore, token: Hashable, now_ms: int) -> Outcome:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    assert code_of(world.submit(fault)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert code_of(world.submit(refuse)) is ErrorCode.ILLEGAL_GENERATION
    assert world.add("g", 1) == ["added"]


# -- timers -----------------------------------------------------------------------------------------------


def test_a_timer_is_due_by_the_monotonic_clock() -> None:
    world = World()
    world.set_timer("g", 100)
    world.clock.wall_offset_ms -= 50_000
    world.pass_time(99)
    assert world.get("g") == [0]
    world.pass_time(1)
    assert world.get("g") == [1000]


def test_a_timer_that_is_set_anew_or_cancelled() -> None:
    world = World()
    world.set_timer("g", 100)
    world.set_timer("g", 200)
    world.pass_time(100)
    assert world.get("g") == [0]
    world.submit(lambda core, token, now_ms: Outcome(timers=[CancelTimer("g")]))
    world.pass_time(1000)
    assert world.get("g") == [0]


def test_a_timer_that_is_put_off_is_due_at_its_last_time() -> None:
    world = World()
    world.set_timer("g", 100)
    world.pass_time(50)
    world.set_timer("g", 100)
    world.pass_time(50)
    world.set_timer("g", 100)
    world.clock.wall_offset_ms += 50_000
    world.pass_time(99)
    assert world.get("g") == [0]
    world.pass_time(1)
    assert world.get("g") == [1000]
    world.pass_time(1000)
    assert world.get("g") == [1000]


def test_a_timer_that_is_put_off_may_be_brought_forward() -> None:
    world = World()
    world.set_timer("g", 100)
    world.set_timer("g", 500)
    world.set_timer("g", 20)
    world.pass_time(20)
    assert world.get("g") == [1000]


def test_the_work_of_a_timer_is_repeated_when_it_cannot_be_written() -> None:
    world = World()
    world.set_timer("g", 100)
    world.log.failure = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_time(100)
    world.log.failure = None
    world.pass_time(500)
    assert world.get("g") == [1000]


# -- loading ----------------------------------------------------------------------------------------------


def test_loading_replays_the_log_in_steps() -> None:
    before = World()
    for _ in range(2 * RECORDS_PER_STEP + 1):
        before.add("g", 1)
    world = World(before.log)
    for _ in range(3):
        assert code_of(world.get("g")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.pass_time(1)
    assert world.get("g") == [2 * RECORDS_PER_STEP + 1]
    assert world.core.was_loaded


def test_a_damaged_log_makes_no_coordinator() -> None:
    before = World()
    before.add("g", 1)
    damaged = bytearray(before.log.batches[0])
    damaged[-2] ^= 1
    before.log.batches[0] = bytes(damaged)
    world = World(before.log)
    world.pass_time(1)
    assert code_of(world.get("g")) is ErrorCode.NOT_COORDINATOR


def test_a_core_that_cannot_replay_is_built_anew_from_the_log() -> None:
    world = World()
    world.add("g", 1)
    world.core.cannot_replay = 7
    assert code_of(world.add("g", 7)) is ErrorCode.NOT_COORDINATOR
    world.pass_time(1)
    assert world.get("g") == [8]
    assert len(world.cores) == 2


# -- leadership -------------------------------------------------------------------------------------------


def test_who_does_not_lead_does_not_coordinate() -> None:
    world = World(lead=False)
    assert code_of(world.get("g")) is ErrorCode.NOT_COORDINATOR
    assert world.runtime.led_partitions == []


def test_resigning_answers_all_and_stops_the_timers() -> None:
    world = World()
    waiting = world.wait("g")
    world.set_timer("g", 100)
    world.runtime.resign(0)
    assert code_of(waiting) is ErrorCode.NOT_COORDINATOR
    world.pass_time(1000)
    assert world.log.batches == []


def test_a_new_epoch_of_the_same_leader_keeps_the_state() -> None:
    world = World()
    waiting = world.wait("g")
    world.runtime.become_leader(0, 2)
    world.add("g", 1)
    assert waiting == ["woken"]
    assert read_header(world.log.batches[0]).leader_epoch == 2


# -- transactions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_commit", "expected"), [(True, 5), (False, 0)])
def test_transactional_records_count_when_their_transaction_ends(is_commit: bool, expected: int) -> None:
    world = World()
    producer = Producer(9, 0)
    ended: list[Any] = []
    assert world.add("g", 5, producer) == ["added"]
    assert world.get("g") == [0]
    world.runtime.end_transaction(0, producer, is_commit, 1, ended.append, transaction_version=2)
    assert world.log.versions == [0, 2], "the log is told which rules the marker follows"
    assert ended == [None]
    assert world.get("g") == [expected]
    again = World(world.log)
    again.pass_time(1)
    assert again.get("g") == [expected]


def test_what_cannot_be_encoded_is_answered_and_not_tried_again() -> None:
    world = World()
    assert code_of(world.add("g" * 40_000, 5)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.add("g", 5) == ["added"] and len(world.log.batches) == 1
