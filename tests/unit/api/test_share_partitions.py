"""Share partitions between their core and their persister: loading, writes that wait or fail, locks, fencing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from memory_persister import MemoryPersister

from tidemill.api.share_group_settings import ShareGroupSettings
from tidemill.api.share_partitions import LedPartition, SharePartitions
from tidemill.coordination.share.partition_contract import (
    AcknowledgedRange,
    Acknowledgement,
    FetchedBatch,
    ShareLimits,
    Wish,
)
from tidemill.coordination.share.persister import ReadState, SharePartitionKey, StateBatch
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.timing.purgatory import DelayedOperation, Purgatory
from tidemill.timing.wheel import TimingWheel, run_due

KEY = SharePartitionKey("group", bytes(16), 0)
WHERE = TopicPartition("jobs", 0)
LOCK_MS = 1000
SETTINGS = ShareGroupSettings(ShareLimits(LOCK_MS, 5, 100), "earliest", False, True)


class Waiting(DelayedOperation):
    """Counts how often it is woken."""

    __slots__ = ("wakes",)

    def __init__(self) -> None:
        super().__init__()
        self.wakes = -2  # it is tried twice when it is registered

    def try_complete(self) -> bool:
        self.wakes += 1
        return False

    def on_complete(self) -> None:
        """Nobody completes it."""


async def begin_at_40(where: TopicPartition, settings: ShareGroupSettings) -> int:
    return 40


class Stage:
    """Everything around `SharePartitions`, with virtual time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.wheel = TimingWheel(0)
        purgatory = Purgatory(self.wheel)
        self.persister = MemoryPersister()
        self.persister.states[KEY] = ReadState(3, 0, ())
        self.partitions = SharePartitions(
            self.persister, purgatory, self.wheel, self, lambda group_id: SETTINGS, begin_at_40
        )
        self.waiting = Waiting()
        purgatory.try_complete_else_watch(self.waiting, [KEY], 1 << 40)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        raise AssertionError("locks know no calendar")

    async def load(self, leader_epoch: int = 0) -> LedPartition:
        led = self.partitions.find(KEY, WHERE, leader_epoch)
        await settled()
        return led

    def acquire(self, led: LedPartition, count: int = 5) -> None:
        assert led.core is not None
        offset = led.core.next_fetch_offset
        batch = FetchedBatch(offset, offset + count - 1)
        assert led.core.acquire(offset, [batch], Wish("ann", count, 100), SETTINGS.limits, self.now_ms)
        self.partitions.watch_locks(led)

    def say(self, word: Acknowledgement, first: int = 0, last: int = 4) -> asyncio.Future[ApiError | None]:
        return self.partitions.acknowledge(KEY, "ann", [AcknowledgedRange(first, last, (word,))])

    async def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        run_due(self.wheel, self.now_ms)
        await settled()


async def settled() -> None:
    """Until all that can go on has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]


def play(scenario: Scenario) -> None:
    async def run() -> None:
        await scenario(Stage())

    asyncio.run(run())


def state_of(led: LedPartition) -> list[tuple[int, int, str, int]]:
    assert led.core is not None
    return [(run.first, run.last, run.state.name, run.delivery_count) for run in led.core.runs]


# -- loading ----------------------------------------------------------------------------------------------


def test_a_partition_is_loaded_once_and_whoever_waits_is_woken() -> None:
    async def scenario(stage: Stage) -> None:
        stage.persister.may_go_on.clear()
        first = stage.partitions.find(KEY, WHERE, 0)
        await settled()
        assert first.core is None and stage.partitions.find(KEY, WHERE, 0) is first
        stage.persister.states[KEY] = ReadState(3, 7, (StateBatch(8, 9, 2, 1),))
        stage.persister.may_go_on.set()
        await settled()
        assert state_of(first) == [(7, 7, "AVAILABLE", 0), (8, 9, "ACKNOWLEDGED", 1)]
        assert stage.waiting.wakes == 1

    play(scenario)


def test_a_group_without_a_start_begins_where_it_wants_to() -> None:
    async def scenario(stage: Stage) -> None:
        stage.persister.states[KEY] = ReadState(3, -1, ())
        led = await stage.load()
        assert led.core is not None and led.core.start_offset == 40

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ApiError(ErrorCode.NOT_COORDINATOR), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ApiError(ErrorCode.FENCED_LEADER_EPOCH), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ApiError(ErrorCode.INVALID_REQUEST), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ValueError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_load_that_fails_is_told_and_tried_again(failure: Exception, code: ErrorCode) -> None:
    async def scenario(stage: Stage) -> None:
        stage.persister.failures.append(failure)
        led = await stage.load()
        assert led.failure is not None and led.failure.code is code and stage.waiting.wakes > 0
        again = await stage.load()
        assert again is not led and again.core is not None

    play(scenario)


def test_a_new_leader_epoch_loads_anew() -> None:
    async def scenario(stage: Stage) -> None:
        old = await stage.load(leader_epoch=1)
        new = await stage.load(leader_epoch=2)
        assert old.failure is not None and new.core is not None and len(stage.partitions) == 1

    play(scenario)


# -- acknowledging ----------------------------------------------------------------------------------------


def test_an_answer_waits_for_its_write() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load(leader_epoch=6)
        stage.acquire(led)
        stage.persister.may_go_on.clear()
        result = stage.say(Acknowledgement.ACCEPT)
        await settled()
        assert not result.done()
        stage.persister.may_go_on.set()
        await settled()
        assert result.result() is None
        (write,) = stage.persister.writes
        assert write == (3, 6, 5, (StateBatch(0, 4, 2, 1),), 0)

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code", "is_gone"),
    [
        (ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.COORDINATOR_NOT_AVAILABLE, False),
        (ApiError(ErrorCode.FENCED_STATE_EPOCH), ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ApiError(ErrorCode.GROUP_ID_NOT_FOUND), ErrorCode.GROUP_ID_NOT_FOUND, True),
        (OSError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_a_write_that_fails_takes_everything_back(failure: Exception, code: ErrorCode, is_gone: bool) -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        stage.persister.failures.append(failure)
        error = await stage.say(Acknowledgement.ACCEPT)
        assert error is not None and error.code is code
        assert state_of(led) == [(0, 4, "ACQUIRED", 1)]
        assert (len(stage.partitions) == 0) == is_gone
        if not is_gone:
            assert await stage.say(Acknowledgement.ACCEPT) is None
        else:
            assert (await stage.load()).core is not None

    play(scenario)


def test_a_refusal_needs_no_write() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        error = await stage.say(Acknowledgement.ACCEPT, 3, 9)
        assert error is not None and error.code is ErrorCode.INVALID_REQUEST and not stage.persister.writes
        other = stage.partitions.acknowledge(KEY._replace(partition=7), "ann", [])
        error = await other
        assert error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(scenario)


def test_a_release_wakes_and_an_ended_session_releases() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        before = stage.waiting.wakes
        assert await stage.partitions.release(KEY, "bob") is None
        assert stage.waiting.wakes == before
        assert await stage.partitions.release(KEY, "ann") is None
        assert stage.waiting.wakes == before + 1 and state_of(led) == [(0, 4, "AVAILABLE", 1)]
        stage.partitions.group_is_empty("group")
        assert len(stage.partitions) == 0 and not led.is_scheduled

    play(scenario)


# -- locks ------------------------------------------------------------------------------------------------


def test_locks_time_out_are_written_and_wake() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        before = stage.waiting.wakes
        await stage.pass_time(LOCK_MS - 1)
        assert stage.waiting.wakes == before
        await stage.pass_time(1)
        assert stage.waiting.wakes == before + 1 and state_of(led) == [(0, 4, "AVAILABLE", 1)]
        assert stage.persister.states[KEY].batches == (StateBatch(0, 4, 0, 1),)

    play(scenario)


def test_each_lock_has_its_own_time() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        await stage.pass_time(400)
        stage.acquire(led)
        await stage.pass_time(600)
        assert [state for _, _, state, _ in state_of(led)] == ["AVAILABLE", "ACQUIRED"]
        await stage.pass_time(400)
        assert {state for _, _, state, _ in state_of(led)} == {"AVAILABLE"}

    play(scenario)


def test_a_renewed_lock_is_watched() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        await stage.pass_time(900)
        assert await stage.say(Acknowledgement.RENEW) is None and not stage.persister.writes
        await stage.pass_time(900)
        assert state_of(led) == [(0, 4, "ACQUIRED", 1)]
        await stage.pass_time(100)
        assert state_of(led) == [(0, 4, "AVAILABLE", 1)]

    play(scenario)


def test_a_lock_that_ends_while_its_write_fails_is_not_forgotten() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        stage.persister.may_go_on.clear()
        result = stage.say(Acknowledgement.ACCEPT)
        await stage.pass_time(LOCK_MS)
        assert state_of(led) == [(0, 4, "ACQUIRED", 1)]
        stage.persister.failures.append(ApiError(ErrorCode.NOT_COORDINATOR))
        stage.persister.may_go_on.set()
        assert await result is not None
        await stage.pass_time(1)
        assert state_of(led) == [(0, 4, "AVAILABLE", 1)]

    play(scenario)


def test_a_time_out_that_cannot_be_written_takes_effect_all_the_same() -> None:
    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        stage.persister.failures.append(ApiError(ErrorCode.NOT_COORDINATOR))
        await stage.pass_time(LOCK_MS)
        assert state_of(led) == [(0, 4, "AVAILABLE", 1)] and not stage.persister.writes
        stage.persister.failures.append(ApiError(ErrorCode.FENCED_LEADER_EPOCH))
        stage.acquire(led)
        await stage.pass_time(LOCK_MS)
        assert led.failure is not None and len(stage.partitions) == 0

    play(scenario)


def test_an_acknowledgement_that_is_cancelled_leaves_nothing_behind() -> None:
    """Whoever waits for it may go away; the records must not stay locked for ever."""

    async def scenario(stage: Stage) -> None:
        led = await stage.load()
        stage.acquire(led)
        stage.persister.may_go_on.clear()
        saying = stage.say(Acknowledgement.ACCEPT)
        await settled()
        saying.cancel()
        await settled()
        stage.persister.may_go_on.set()
        await stage.pass_time(LOCK_MS)
        assert state_of(led) == [(0, 4, "AVAILABLE", 1)]

    play(scenario)
