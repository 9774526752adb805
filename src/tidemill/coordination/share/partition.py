"""One partition as a share group sees it: which records are held by whom, and which are done with.

A consumer group gives each partition to one member and remembers one offset. A share group lets many members read the
same partition and remembers a state for each record between two marks:

    ... done ...   | start offset .............. next offset |   never delivered yet ...
                     in flight: available, acquired, acknowledged or archived

State of a record in flight (anything absent is illegal):

    state          event                                   next           delivery count   written
    (new)          acquire                                 acquired       1                no
    (new)          the log has no such offset, or hides it archived       0                no
    available      acquire                                 acquired       + 1              no
    available      the log has it no more, or hides it     archived       same             no
    acquired       ACCEPT                                  acknowledged   same             before the answer
    acquired       REJECT or GAP                           archived       same             before the answer
    acquired       RELEASE, or its member's session ends   available *    same             before the answer
    acquired       its lock times out                      available *    same             at once, nobody waits
    acquired       RENEW                                   acquired       same             no: only the lock moves
    acknowledged   (none)
    archived       (none)

    * archived, if it was delivered as often as the limit allows

The start offset moves over records that are acknowledged or archived, and to the log start offset when the log loses
its oldest records; what lies below it is forgotten, and an acknowledgement for it is accepted without effect.

Writing. An acknowledgement is answered only after it is persisted. Until then its runs wait (`next_state`): nobody
can acquire, acknowledge or time them out. If the write fails they are what they were, and a lock that ended meanwhile
ends now. A time-out waits for nobody: it takes effect at once, because a record that stays locked helps no one; if its
write fails, the next one of that record repairs it, or a restart delivers the record with a count that is one too low.
Acquiring is never written (as in Kafka): after a crash a record that was held is available again.

Bad records. One record that breaks its reader makes the whole batch come back, again and again, until all of it would
be archived. So from `suspect_delivery_count` deliveries on, records are delivered in smaller and smaller parts: a half
of what they were first delivered with, a quarter, ..., and for the last time alone.

Worked example, limit 5, lock 30 s, batches of five records in the log:

    acquire(ann, 10 records)         0..9 acquired by ann, next offset 10
    acknowledge(ann, 0..3 ACCEPT)    written, then committed: start offset 4
    acknowledge(ann, 4 REJECT)       start offset 5
    acquire(bob, 10 records)         10..19 acquired by bob
    30 s later, expire_locks         5..9 available, delivered once
    acquire(bob, 10 records)         5..9 acquired by bob, delivered twice

Loading. What was written comes back as it was; offsets of which nothing was written, between the start offset and the
last batch, are available and never delivered: if the log has no such records the next fetch finds out.

Limits: pure and single threaded. Time and limits are told with each call. At most `max_record_locks` records are in
flight, exceeded by at most one batch of the log because batches are taken whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import groupby

from tidemill.coordination.share.batches import combine
from tidemill.coordination.share.partition_acquire import Acquisition
from tidemill.coordination.share.partition_contract import (
    AcknowledgedRange,
    Acknowledgement,
    AcquiredRange,
    FetchedBatch,
    ShareLimits,
    Transition,
    Wish,
    Write,
    released_state,
    target_state,
)
from tidemill.coordination.share.partition_runs import RecordState, Run, Runs
from tidemill.coordination.share.persister import StateBatch
from tidemill.model.errors import ApiError, ErrorCode

SPARE_LOCKS = 64
NO_CUT = -1
"""Combine everything: what lies below the start offset, the persister forgets."""


class SharePartition:
    def __init__(self, start_offset: int) -> None:
        self.runs = Runs()
        self.next_offset = start_offset
        """The first offset that was never in flight."""
        self._written_start = start_offset
        """Where the partition starts when all writes under way are done, as far as they say so themselves."""
        self._available_hint = start_offset
        """No record below this offset is available."""
        self._locks: list[tuple[int, int, int]] = []
        """A heap of (due, first offset, last offset): one entry for each acquisition or renewal."""

    @classmethod
    def load(cls, start_offset: int, batches: Iterable[StateBatch]) -> SharePartition:
        """As it was written; offsets in between, of which nothing is known, are available."""
        partition = cls(start_offset)
        for batch in sorted(batches, key=lambda batch: batch.first_offset):
            first = max(batch.first_offset, partition.next_offset)
            if first <= batch.last_offset:
                partition.track_until(first, RecordState.AVAILABLE)
                partition.track(Run(first, batch.last_offset, _readable(batch), batch.delivery_count))
        partition.advance_start()
        return partition

    @property
    def start_offset(self) -> int:
        return self.runs.head.first if self.runs else self.next_offset

    @property
    def in_flight(self) -> int:
        return self.next_offset - self.start_offset

    # -- acquiring ------------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """Where to read for the next acquisition: at the first available record, else behind all of them."""
        for run in self.runs.starting_at(self._available_hint):
            if run.state is RecordState.AVAILABLE:
                self._available_hint = run.first
                return run.first
        self._available_hint = self.next_offset
        return self.next_offset

    def can_acquire(self, limits: ShareLimits) -> bool:
        return self.next_fetch_offset < self.next_offset or self.in_flight < limits.max_record_locks

    def acquire(
        self, fetch_offset: int, batches: Iterable[FetchedBatch], wish: Wish, limits: ShareLimits, now_ms: int
    ) -> list[AcquiredRange]:
        """Lock what is available in these batches, which the log gave for `fetch_offset`, in order."""
        due_ms = now_ms + limits.record_lock_duration_ms
        acquired = Acquisition(self, wish, limits, due_ms).take(fetch_offset, batches)
        if acquired:
            self._note_lock(due_ms, acquired[0].first_offset, acquired[-1].last_offset)
        self.advance_start()
        return acquired

    def track(self, run: Run) -> None:
        """A run in flight behind all others."""
        assert run.first == self.next_offset
        self.runs.append(run)
        self.next_offset = run.last + 1

    def track_until(self, offset: int, state: RecordState) -> None:
        """Fill up to this offset, exclusive; what is done with in front of everything needs no run."""
        if offset <= self.next_offset:
            return
        if state.is_final and not self.runs:
            self.next_offset = offset
        else:
            self.track(Run(self.next_offset, offset - 1, state, 0))

    def archive_available(self, first: int, last: int) -> None:
        """The log has these no more, or hides them."""
        for run in self.runs.between(first, last):
            if run.state is RecordState.AVAILABLE:
                for part in self.runs.cut(max(first, run.first), min(last, run.last)):
                    part.become(RecordState.ARCHIVED)

    # -- acknowledging --------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, ranges: Sequence[AcknowledgedRange], limits: ShareLimits, now_ms: int
    ) -> Transition | None:
        """Begin what the member asks for, all of it or nothing; None where there is nothing to persist."""
        parts = []
        previous = -1
        for first, last, word in _parts(ranges, self.start_offset):
            if first <= previous:
                raise _wrong_state(f"offset {first} is acknowledged twice")
            self._require_held(member_id, first, last)
            parts.append((first, last, word))
            previous = last
        changed: list[Run] = []
        for first, last, word in parts:
            if word is Acknowledgement.RENEW:
                self._renew(first, last, now_ms + limits.record_lock_duration_ms)
                continue
            for run in self.runs.cut(first, last):
                run.next_state = target_state(word, run.delivery_count, limits)
                changed.append(run)
        return self._transition(changed)

    def _require_held(self, member_id: str, first: int, last: int) -> None:
        if not self.runs:
            raise _wrong_state("no record of this partition is in flight")
        if last >= self.next_offset:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"offset {last} was never delivered")
        for run in self.runs.between(first, last):
            if run.state is not RecordState.ACQUIRED:
                raise _wrong_state(f"offset {max(first, run.first)} is not acquired")
            if run.member_id != member_id:
                raise _wrong_state(f"offset {max(first, run.first)} is held by another member")
            if run.next_state is not None:
                raise _wrong_state(f"offset {max(first, run.first)} is being acknowledged already")

    def _renew(self, first: int, last: int, due_ms: int) -> None:
        for run in self.runs.cut(first, last):
            run.lock_due_ms = due_ms
        self._note_lock(due_ms, first, last)

    def release_member(self, member_id: str, limits: ShareLimits) -> Transition | None:
        """The member's session is over: what it still holds goes to others."""
        changed = [
            run
            for run in self.runs
            if run.state is RecordState.ACQUIRED and run.member_id == member_id and run.next_state is None
        ]
        for run in changed:
            run.next_state = released_state(run.delivery_count, limits)
        return self._transition(changed)

    def _transition(self, changed: list[Run]) -> Transition | None:
        return Transition(tuple(changed), self._write_of(changed)) if changed else None

    def commit(self, transition: Transition) -> None:
        """The write is durable."""
        for run in transition.runs:
            assert run.next_state is not None
            run.become(run.next_state)
            self._note_available(run)
        self.advance_start()
        if self.runs:
            self.runs.join_final(transition.runs[0].first, transition.runs[-1].last)

    def roll_back(self, transition: Transition) -> None:
        """The write failed: everything is as before, and a lock that ended meanwhile is looked at again."""
        for run in transition.runs:
            run.next_state = None
            self._note_lock(run.lock_due_ms, run.first, run.last)

    # -- locks ----------------------------------------------------------------------------------------

    @property
    def earliest_lock_ms(self) -> int | None:
        """When `expire_locks` may have something to do."""
        return self._locks[0][0] if self._locks else None

    def _note_lock(self, due_ms: int, first: int, last: int) -> None:
        """Locks that ended before their time stay in the heap; once they are the most of it, they go."""
        heapq.heappush(self._locks, (due_ms, first, last))
        if len(self._locks) > SPARE_LOCKS + 2 * len(self.runs):
            held = [run for run in self.runs if run.state is RecordState.ACQUIRED]
            self._locks = [(run.lock_due_ms, run.first, run.last) for run in held]
            heapq.heapify(self._locks)

    def expire_locks(self, limits: ShareLimits, now_ms: int) -> Write | None:
        """Take back what was held too long; what to persist, if anything was."""
        expired: list[Run] = []
        while self._locks and self._locks[0][0] <= now_ms:
            due_ms, first, last = heapq.heappop(self._locks)
            for run in self.runs.between(first, last):
                if run.lock_due_ms == due_ms and run.next_state is None:
                    run.become(released_state(run.delivery_count, limits))
                    self._note_available(run)
                    expired.append(run)
        if not expired:
            return None
        write = self._write_of(expired)
        self.advance_start()
        return write

    # -- the edges ------------------------------------------------------------------------------------

    def move_log_start(self, offset: int) -> None:
        """The log begins here now: what lies before is gone, whoever held it."""
        self.runs.drop_before(offset)
        self.next_offset = max(self.next_offset, offset)
        self.advance_start()

    def advance_start(self) -> None:
        """Forget records that are done with, as long as all before them are."""
        for run in self.runs:
            if not run.state.is_final:
                self.runs.drop_before(run.first)
                return
        self.runs.drop_before(self.next_offset)

    def _note_available(self, run: Run) -> None:
        if run.state is RecordState.AVAILABLE:
            self._available_hint = min(self._available_hint, run.first)

    # -- what is written ------------------------------------------------------------------------------

    def _write_of(self, changed: Sequence[Run]) -> Write:
        """The start offset is the one when this write, and no other one under way, is done.

        To start behind records whose write fails would lose them. The count only tells people how far the group is:
        it takes for granted that the writes under way are done, because no later one may come to correct it.
        """
        own = set(map(id, changed))
        start = self.next_offset
        for run in self.runs:
            state = run.next_state if id(run) in own and run.next_state is not None else run.state
            if not state.is_final:
                start = run.first
                break
        self._written_start = max(self._written_start, start)
        complete = sum(
            run.last + 1 - max(run.first, self._written_start)
            for run in self.runs
            if run.last >= self._written_start and _state_when_written(run).is_final
        )
        return Write(start, combine(map(_state_batch, changed), NO_CUT), complete)


def _state_batch(run: Run) -> StateBatch:
    return StateBatch(run.first, run.last, int(_state_when_written(run)), run.delivery_count)


def _state_when_written(run: Run) -> RecordState:
    return run.state if run.next_state is None else run.next_state


def _parts(
    ranges: Sequence[AcknowledgedRange], start_offset: int
) -> Iterable[tuple[int, int, Acknowledgement]]:
    """(first, last, word) for each stretch of one word, without what lies below the start."""
    for first, last, words in ranges:
        if len(words) == 1:
            stretches = [(words[0], last - first + 1)]
        else:
            stretches = [(word, len(list(group))) for word, group in groupby(words)]
        for word, size in stretches:
            if first + size > start_offset:
                yield max(first, start_offset), first + size - 1, word
            first += size


def _readable(batch: StateBatch) -> RecordState:
    """Acquired records are never written; should one be found, nobody holds it."""
    state = RecordState(batch.delivery_state)
    return RecordState.AVAILABLE if state is RecordState.ACQUIRED else state


def _wrong_state(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD_STATE, message)
