"""The share partitions that this broker leads: loaded when a member first reads them, kept while the group has members.

State of one (anything absent is illegal):

    loading   the state is being read          active    core set: its records are delivered
    loading   the read failed                  gone      whoever waits gets the error; the next request loads again
    active    a write was fenced, the group    gone      the same; what it held comes from the log and the state again
              or the topic is gone, its last
              session ended, or we lead no more

The core (`coordination.share.partition`) decides; this module reads and writes its state through the persister, sets
one timer for the earliest lock, and wakes the fetches that wait whenever something may have become available: a load,
a commit, a release, a time-out.

Limits: a partition belongs to its group while the group has a session here, so memory is bounded by sessions times
partitions, and within a partition by `share.partition.max.record.locks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from tidemill.api.share_group_settings import ShareGroupSettings
from tidemill.coordination.share.partition import SharePartition
from tidemill.coordination.share.partition_contract import AcknowledgedRange, Transition, Write
from tidemill.coordination.share.persister import SharePartitionKey, SharePersister, StateWrite
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.timing.purgatory import Purgatory
from tidemill.timing.wheel import TimerTask, TimingWheel

logger = logging.getLogger(__name__)

Settings = Callable[[str], ShareGroupSettings]
"""Of a group, by its id, as they are now."""
InitialOffset = Callable[[TopicPartition, ShareGroupSettings], Awaitable[int]]
"""Where a group begins that never read this partition."""
Result = asyncio.Future[ApiError | None]

_TRY_AGAIN = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_FENCED = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_LOST = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class LedPartition(TimerTask):
    """One share partition and the timer of its earliest lock."""

    __slots__ = ("_expire_locks", "core", "failure", "key", "leader_epoch", "state_epoch", "where")

    def __init__(
        self,
        key: SharePartitionKey,
        where: TopicPartition,
        leader_epoch: int,
        expire_locks: Callable[[LedPartition], None],
    ) -> None:
        super().__init__()
        self.key = key
        self.where = where
        self.leader_epoch = leader_epoch
        self.state_epoch = 0
        self.core: SharePartition | None = None
        self.failure: ApiError | None = None
        """Why it is gone."""
        self._expire_locks = expire_locks

    def expire(self) -> None:
        self._expire_locks(self)


class SharePartitions:
    def __init__(
        self,
        persister: SharePersister,
        purgatory: Purgatory,
        wheel: TimingWheel,
        clock: Clock,
        settings: Settings,
        initial_offset: InitialOffset,
    ) -> None:
        self._persister = persister
        self._purgatory = purgatory
        self._wheel = wheel
        self._clock = clock
        self.settings = settings
        self._initial_offset = initial_offset
        self._led: dict[SharePartitionKey, LedPartition] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._led)

    # -- coming and going -----------------------------------------------------------------------------

    def find(self, key: SharePartitionKey, where: TopicPartition, leader_epoch: int) -> LedPartition:
        """The partition, loaded or on its way; one of an earlier time of leadership is given up first."""
        led = self._led.get(key)
        if led is not None and led.leader_epoch != leader_epoch:
            self._give_up(led, ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            led = None
        if led is None:
            led = self._led[key] = LedPartition(key, where, leader_epoch, self._expire_locks)
            self._spawn(self._load(led))
        return led

    async def _load(self, led: LedPartition) -> None:
        try:
            state = await self._persister.read(led.key, led.leader_epoch)
            start = state.start_offset
            if start < 0:
                start = await self._initial_offset(led.where, self.settings(led.key.group_id))
            led.state_epoch = state.state_epoch
            led.core = SharePartition.load(start, state.batches)
        except Exception as error:
            self._give_up(led, _for_the_client(error, f"cannot load {led.key}"))
        self._wake(led)

    def _give_up(self, led: LedPartition, error: ApiError) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]
        led.failure = error
        led.cancel()
        self._wake(led)

    def partitions_changed(
        self, changed: Iterable[TopicPartition], is_led: Callable[[LedPartition], bool]
    ) -> None:
        """Some have another leader, or are gone: members find out with their next request."""
        names = set(changed)
        for led in [led for led in self._led.values() if led.where in names and not is_led(led)]:
            self._give_up(led, ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def group_is_empty(self, group_id: str) -> None:
        """No session is left: nothing is held, and the state is written."""
        for led in [led for led in self._led.values() if led.key.group_id == group_id]:
            self._give_up(led, ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- what members say -----------------------------------------------------------------------------

    def acknowledge(
        self, key: SharePartitionKey, member_id: str, ranges: Sequence[AcknowledgedRange]
    ) -> Result:
        """Takes effect now for everybody else; the result is there when it is durable, or was taken back."""
        led = self._led.get(key)
        if led is None or led.core is None:
            return _done(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        limits = self.settings(key.group_id).limits
        try:
            transition = led.core.acknowledge(member_id, ranges, limits, self._clock.monotonic_ms())
        except ApiError as error:
            return _done(error)
        self.watch_locks(led)
        return self._spawn(self._finish(led, led.core, transition)) if transition else _done(None)

    def release(self, key: SharePartitionKey, member_id: str) -> Result:
        """The member's session is over."""
        led = self._led.get(key)
        if led is None or led.core is None:
            return _done(None)
        transition = led.core.release_member(member_id, self.settings(key.group_id).limits)
        return self._spawn(self._finish(led, led.core, transition)) if transition else _done(None)

    async def _finish(
        self, led: LedPartition, core: SharePartition, transition: Transition
    ) -> ApiError | None:
        try:
            await self._write(led, transition.write)
        except asyncio.CancelledError:
            core.roll_back(transition)
            raise
        except Exception as error:
            core.roll_back(transition)
            failure = self._write_failed(led, error)
            self.watch_locks(led)
            return failure
        core.commit(transition)
        self._wake(led)
        return None

    async def _write(self, led: LedPartition, write: Write) -> None:
        change = StateWrite(
            led.state_epoch,
            led.leader_epoch,
            write.start_offset,
            write.batches,
            write.delivery_complete_count,
        )
        await self._persister.write(led.key, change)

    def _write_failed(self, led: LedPartition, error: Exception) -> ApiError:
        failure = _for_the_client(error, f"cannot write the state of {led.key}")
        if failure.code in _LOST:
            self._give_up(led, failure)
        return failure

    # -- locks ----------------------------------------------------------------------------------------

    def watch_locks(self, led: LedPartition) -> None:
        """Set the timer to the earliest lock."""
        due_ms = led.core.earliest_lock_ms if led.core is not None and led.failure is None else None
        if due_ms is not None and (not led.is_scheduled or due_ms < led.due_ms):
            self._wheel.add(led, due_ms)

    def _expire_locks(self, led: LedPartition) -> None:
        assert led.core is not None
        limits = self.settings(led.key.group_id).limits
        write = led.core.expire_locks(limits, self._clock.monotonic_ms())
        self.watch_locks(led)
        if write is not None:
            self._spawn(self._note_expired(led, write))
            self._wake(led)

    async def _note_expired(self, led: LedPartition, write: Write) -> None:
        try:
            await self._write(led, write)
        except Exception as error:
            self._write_failed(led, error)

    # -- the loop -------------------------------------------------------------------------------------

    def _wake(self, led: LedPartition) -> None:
        self._purgatory.check_and_complete(led.key)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """On its own: a client that goes away stops no write."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _done(error: ApiError | None) -> Result:
    result: Result = asyncio.get_running_loop().create_future()
    result.set_result(error)
    return result


def _for_the_client(error: Exception, what: str) -> ApiError:
    """Errors of the state coordinator in the words that share consumers know (as Kafka translates them)."""
    if not isinstance(error, ApiError):
        logger.error("%s", what, exc_info=error)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if error.code in _TRY_AGAIN:
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if error.code in _FENCED:
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code in (*_LOST, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        return error
    logger.info("%s: %s %s", what, error.code.name, error.message)
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
