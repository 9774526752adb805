"""The runtime of a coordinator: it drives the cores of one internal topic, one core for each partition led here.

A request takes this way; everything up to the wait happens in one go, so no two requests of a shard interleave:

    submit --> core decides --> append one batch --> replay --> set timers --> wait for the commit --> replies

    runtime.submit(partition_for("orders", 50), lambda core, token, now_ms: core.heartbeat(...), respond)

`respond` is called once: with the response, or with an `ApiError`. A core may keep the token and answer with the
outcome of a later event (a join waits for the other members); such a reply finds its way by the token.

A shard's life, and what changes it (anything else is illegal):

    (none)   --become_leader-->  loading      a log that is empty is loaded at once
    loading  --end of log-->     active
    loading  --damage-->         failed       answers NOT_COORDINATOR until the next leader epoch
    active   --replay failed-->  loading      the log is right and the memory is not
    any      --resign-->         (none)       everybody who waits is told NOT_COORDINATOR

Loading replays the log from its start through the same `replay` as live traffic, a few hundred records at a time on
the timing wheel, one shard after the other: the event loop serves clients in between.

Reads answer what is committed: an outcome without records waits until the last write of its shard is committed.

Time: cores see the wall clock, because it goes into records. Timers run on the monotonic clock: a due time is taken as
a distance from now, so setting the wall clock expires nobody. A session is put off with every heartbeat and hardly ever
due: a timer that is put off stays where it is in the wheel, and moves when its old time comes.

Limits: no batching of several outcomes in one write. If the commit of a batch does not come in time the client gets
an error although the change may still come true; clients repeat their requests, and cores take repetitions well.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from tidemill.coordination.core import (
    CancelTimer,
    CoordinatorCore,
    CoordinatorRecord,
    Outcome,
    Reply,
    SetTimer,
)
from tidemill.coordination.record_codec import (
    EndOfTransaction,
    Entry,
    LoggedRecord,
    Producer,
    RecordTypes,
    encode_marker,
    encode_records,
    read_batches,
)
from tidemill.coordination.shard_timers import Reminder, ShardTimer
from tidemill.model.errors import ApiError, CorruptLog, ErrorCode
from tidemill.model.ids import NO_PRODUCER_ID
from tidemill.ports.clock import Clock
from tidemill.timing.wheel import TimingWheel

logger = logging.getLogger(__name__)

LOAD_BYTES = 256 * 1024
RECORDS_PER_STEP = 300
RETRY_DELAY_MS = 500
"""After an append that failed: a timer's work is tried again."""

_CODE_FOR_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a failure of the log is called towards clients of a coordinator; they know what to do about these."""


class CoordinatorLog(Protocol):
    """The port to the internal topic; `replication` implements it."""

    def bounds(self, index: int) -> tuple[int, int]: ...

    def read(self, index: int, offset: int, max_bytes: int) -> bytes: ...

    def append(
        self, index: int, batch: bytearray, leader_epoch: int, now_ms: int, transaction_version: int = 0
    ) -> int: ...

    def when_committed(
        self, index: int, end_offset: int, due_ms: int, respond: Callable[[ApiError | None], None]
    ) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeSettings:
    record_types: RecordTypes
    compression: int = 0
    commit_timeout_ms: int = 5_000


Respond = Callable[[Any], None]
C = TypeVar("C", bound=CoordinatorCore)
Call = Callable[[C, Hashable, int], Outcome]


class PendingReply:
    """The token of one request: it is answered once, whoever tries again later."""

    __slots__ = ("_respond", "is_open", "waits_among")

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.is_open = True
        self.waits_among: set[PendingReply] | None = None
        """Where whoever ends the wait of all finds it, if it is not answered on the spot."""

    def resolve(self, response: Any) -> None:
        if self.is_open:
            self.is_open = False
            if self.waits_among is not None:
                self.waits_among.remove(self)
            self._respond(response)


class ShardState(enum.Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class Shard(Generic[C]):
    """One partition of the internal topic: a core, its timers, and who waits for it."""

    def __init__(self, runtime: CoordinatorRuntime[C], index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.state = ShardState.LOADING
        self.core = runtime.make_core(index)
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._waiting: set[PendingReply] = set()
        self._timers: dict[Hashable, ShardTimer] = {}
        self._written_end = 0
        self._committed_end = 0
        """As far as we have heard."""
        self._steps = self._replay_log()

    # -- loading --------------------------------------------------------------------------------------

    def load_some(self) -> bool:
        """Replay the next records; whether the end of loading was reached."""
        try:
            if sum(1 for _ in islice(self._steps, RECORDS_PER_STEP)) == RECORDS_PER_STEP:
                return False
            self.state = ShardState.ACTIVE
            self.perform(lambda core, _, now_ms: core.on_loaded(now_ms), None)
        except Exception:
            logger.exception("%s-%d cannot be loaded", self._runtime.topic, self.index)
            self.close(ShardState.FAILED)
        return True

    def _replay_log(self) -> Iterator[None]:
        """Replay the whole log; pauses after each entry."""
        offset, end = self._log.bounds(self.index)
        while offset < end:
            data, before = self._log.read(self.index, offset, LOAD_BYTES), offset
            for batch in read_batches(data, self._runtime.settings.record_types):
                for entry in batch.entries:
                    self._replay(entry)
                    yield
                offset = batch.last_offset + 1
            if offset == before:
                raise CorruptLog(f"{self._runtime.topic}-{self.index} cannot be read at offset {offset}")
        self._written_end = end

    def _replay(self, entry: Entry) -> None:
        if isinstance(entry, LoggedRecord):
            self.core.replay(entry.record, entry.offset, entry.producer_id)
        else:
            self._replay_end_of_transaction(entry)

    def _replay_end_of_transaction(self, end: EndOfTransaction) -> None:
        replay = getattr(self.core, "replay_end_of_transaction", None)
        if replay is not None:
            replay(end.producer_id, end.is_commit)

    # -- requests -------------------------------------------------------------------------------------

    def let_wait(self, token: PendingReply) -> None:
        self._waiting.add(token)
        token.waits_among = self._waiting

    def tell(self, news: Callable[[C, int], Outcome]) -> None:
        self.perform(lambda core, _, now_ms: news(core, now_ms), None)

    def end_transaction(
        self,
        producer: Producer,
        is_commit: bool,
        coordinator_epoch: int,
        respond: Respond,
        transaction_version: int,
    ) -> None:
        """Write the marker, let the core know, answer None once it is committed."""
        token = PendingReply(respond)
        self.let_wait(token)
        now_ms = self._clock.wall_ms()
        try:
            marker = encode_marker(producer, is_commit, coordinator_epoch, now_ms)
            end_offset = self._log.append(self.index, marker, self.leader_epoch, now_ms, transaction_version)
        except ApiError as error:
            token.resolve(_for_clients(error))
            return
        self._written_end = end_offset
        self._replay_or_reload([EndOfTransaction(*producer, is_commit, end_offset - 1)])
        self._when_committed([Reply(token, None)])

    def perform(self, call: Call[C], token: PendingReply | None, producer: Producer | None = None) -> bool:
        """Let the core decide and carry its outcome out; False if nothing could be written."""
        now_ms = self._clock.wall_ms()
        try:
            outcome = call(self.core, token, now_ms)
        except ApiError as error:
            _resolve(token, error)
            return True
        except Exception:
            logger.exception("%s-%d failed on a request", self._runtime.topic, self.index)
            _resolve(token, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return True
        if outcome.timers:
            self._set_timers(outcome.timers, now_ms)
        if outcome.records:
            try:
                self._write(outcome.records, now_ms, producer)
            except ApiError as error:
                self._fail(outcome, token, _for_clients(error))
                return False
            except Exception:
                logger.exception("%s-%d cannot write what was decided", self._runtime.topic, self.index)
                self._fail(outcome, token, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
                return True  # what cannot be encoded now never will be
            if self.state is ShardState.FAILED:  # it could not be replayed; everybody who waits was told, too
                _resolve(token, ApiError(ErrorCode.NOT_COORDINATOR))
        if outcome.replies:
            self._when_committed(outcome.replies)
        return True

    def _fail(self, outcome: Outcome, token: PendingReply | None, failure: ApiError) -> None:
        for reply in outcome.replies:
            _resolve(reply.token, failure)
        _resolve(token, failure)

    def _write(self, records: list[CoordinatorRecord], now_ms: int, producer: Producer | None) -> None:
        batch = encode_records(records, now_ms, self._runtime.settings.compression, producer)
        self._written_end = self._log.append(self.index, batch, self.leader_epoch, now_ms)
        producer_id = producer.producer_id if producer else NO_PRODUCER_ID
        first = self._written_end - len(records)
        self._replay_or_reload(
            [LoggedRecord(record, offset, producer_id) for offset, record in enumerate(records, first)]
        )

    def _replay_or_reload(self, entries: list[Entry]) -> None:
        """What is in the log counts: a core that cannot replay it is built anew from the log."""
        try:
            for entry in entries:
                self._replay(entry)
        except Exception:
            logger.exception("%s-%d is loaded again", self._runtime.topic, self.index)
            self._runtime.reload(self)

    def _when_committed(self, replies: list[Reply]) -> None:
        """Send the replies once the records of their outcome, and all before them, count."""
        end_offset = self._written_end
        if end_offset <= self._committed_end:
            for token, response in replies:
                if isinstance(token, PendingReply):
                    token.resolve(response)
            return

        def finish(failure: ApiError | None) -> None:
            if failure is None:
                self._committed_end = max(self._committed_end, end_offset)
            for token, response in replies:
                _resolve(token, response if failure is None else _for_clients(failure))

        due_ms = self._clock.monotonic_ms() + self._runtime.settings.commit_timeout_ms
        self._log.when_committed(self.index, end_offset, due_ms, finish)

    # -- timers ---------------------------------------------------------------------------------------

    def _set_timers(self, changes: list[SetTimer | CancelTimer], now_ms: int) -> None:
        wall_ahead_ms = now_ms - self._clock.monotonic_ms()
        for change in changes:
            key = change.key
            if isinstance(change, CancelTimer):
                timer = self._timers.pop(key, None)
                if timer is not None:
                    timer.cancel()
                continue
            timer = self._timers.get(key)
            if timer is None:
                timer = self._timers[key] = ShardTimer(self.on_timer, key)
            due_ms = change.due_ms
            timer.due_wall_ms = due_ms
            timer.wanted_ms = wanted_ms = (due_ms if due_ms > now_ms else now_ms) - wall_ahead_ms
            if wanted_ms < timer.due_ms:
                self._runtime.wheel.add(timer, wanted_ms)

    def on_timer(self, timer: ShardTimer) -> None:
        """It is due on the monotonic clock, whatever the wall clock says by now, unless it was put off."""
        if timer.due_ms < timer.wanted_ms:
            self._runtime.wheel.add(timer, timer.wanted_ms)
            return
        del self._timers[timer.key]
        done = self.perform(
            lambda core, _, now_ms: core.on_timer(timer.key, max(now_ms, timer.due_wall_ms)), None
        )
        if not done and self.state is ShardState.ACTIVE and timer.key not in self._timers:
            now_ms = self._clock.wall_ms()
            self._set_timers([SetTimer(timer.key, now_ms + RETRY_DELAY_MS)], now_ms)

    def close(self, state: ShardState) -> None:
        self.state = state
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for token in tuple(self._waiting):
            token.resolve(ApiError(ErrorCode.NOT_COORDINATOR))


class CoordinatorRuntime(Generic[C]):
    """All shards of one internal topic on this broker. All calls come from the event loop."""

    def __init__(
        self,
        topic: str,
        make_core: Callable[[int], C],
        log: CoordinatorLog,
        wheel: TimingWheel,
        clock: Clock,
        settings: RuntimeSettings,
    ) -> None:
        self.topic = topic
        self.make_core = make_core
        self.log = log
        self.wheel = wheel
        self.clock = clock
        self.settings = settings
        self._shards: dict[int, Shard[C]] = {}
        self._to_load: deque[Shard[C]] = deque()
        self._loading = Reminder(self.load_some)

    # -- leadership -----------------------------------------------------------------------------------

    def become_leader(self, index: int, leader_epoch: int) -> None:
        """Load the partition, unless it is there already; a new epoch alone changes nothing in its state."""
        shard = self._shards.get(index)
        if shard is not None and shard.state is not ShardState.FAILED:
            shard.leader_epoch = leader_epoch
            return
        self._load(index, leader_epoch)

    def resign(self, index: int) -> None:
        """Another broker leads the partition, or it is gone."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close(ShardState.FAILED)

    def reload(self, shard: Shard[C]) -> None:
        shard.close(ShardState.FAILED)
        self._load(shard.index, shard.leader_epoch)

    def stop(self) -> None:
        """Everybody who waits is told to look for another coordinator."""
        self._loading.cancel()
        self._to_load.clear()
        for index in tuple(self._shards):
            self.resign(index)

    def _load(self, index: int, leader_epoch: int) -> None:
        shard = self._shards[index] = Shard(self, index, leader_epoch)
        start_offset, end_offset = self.log.bounds(index)
        if start_offset == end_offset:
            shard.load_some()
            return
        self._to_load.append(shard)
        if not self._loading.is_scheduled:
            self.wheel.add(self._loading, self.clock.monotonic_ms())

    def load_some(self) -> None:
        """One step of the shard that is first in the line."""
        shard = self._to_load[0]
        if self._shards.get(shard.index) is not shard or shard.load_some():
            self._to_load.popleft()
        if self._to_load:
            self.wheel.add(self._loading, self.clock.monotonic_ms())

    # -- requests -------------------------------------------------------------------------------------

    def submit(self, index: int, call: Call[C], respond: Respond, producer: Producer | None = None) -> None:
        """Run `call` on the core of this partition; `respond` gets its reply, or an `ApiError`."""
        shard = self._shards.get(index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            respond(_why_not(shard))
            return
        token = PendingReply(respond)
        shard.perform(call, token, producer)
        if token.is_open:
            shard.let_wait(token)

    def end_transaction(
        self,
        index: int,
        producer: Producer,
        is_commit: bool,
        coordinator_epoch: int,
        respond: Respond,
        transaction_version: int = 0,
    ) -> None:
        """Write a transaction's marker to this partition; `respond` gets None or an `ApiError`.

        The log refuses a marker of version 2 that comes after the next transaction has begun.
        """
        shard = self._shards.get(index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            respond(_why_not(shard))
        else:
            shard.end_transaction(producer, is_commit, coordinator_epoch, respond, transaction_version)

    def tell_all(self, news: Callable[[C, int], Outcome]) -> None:
        """Something happened that concerns every active shard, and nobody waits for an answer."""
        for shard in tuple(self._shards.values()):
            if shard.state is ShardState.ACTIVE:
                shard.tell(news)

    @property
    def led_partitions(self) -> list[int]:
        """Partitions that this broker coordinates, those that are loading included."""
        return sorted(index for index, shard in self._shards.items() if shard.state is not ShardState.FAILED)

    @property
    def is_loading(self) -> bool:
        return bool(self._to_load)


def _why_not(shard: Shard[Any] | None) -> ApiError:
    """What a client is told of a shard that is not active."""
    is_loading = shard is not None and shard.state is ShardState.LOADING
    return ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NOT_COORDINATOR)


def _resolve(token: Hashable, response: Any) -> None:
    if isinstance(token, PendingReply):
        token.resolve(response)


def _for_clients(error: ApiError) -> ApiError:
    code = _CODE_FOR_CLIENTS.get(error.code)
    return error if code is None else ApiError(code, error.message)
