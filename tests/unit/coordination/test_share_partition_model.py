"""A share partition against a dictionary: offset -> [state, delivery count, member]."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from share_transcript import LOCK_MS, ShareTranscript

from tidemill.coordination.share.partition_contract import (
    AcknowledgedRange,
    Acknowledgement,
    ShareLimits,
    Wish,
    released_state,
    target_state,
)
from tidemill.coordination.share.partition_runs import RecordState
from tidemill.model.errors import ApiError

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
LIMITS = ShareLimits(LOCK_MS, delivery_count_limit=4, max_record_locks=30)
END = 120
members = st.sampled_from(["ann", "bob", "cid"])
offsets = st.integers(0, END - 1)
words = st.sampled_from(list(Acknowledgement))


class ShareMachine(RuleBasedStateMachine):
    """The model knows nothing of runs, heaps or hints: each offset for itself, looked at one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.share = ShareTranscript(batch=6, end=END, limits=LIMITS)
        self.model: dict[int, tuple[RecordState, int, str]] = {}
        self.due: dict[int, int] = {}
        self.done_below = 0
        self.log_start = 0

    def _state(self, offset: int) -> tuple[RecordState, int, str]:
        return self.model.get(offset, (AVAILABLE, 0, ""))

    @rule(member=members, records=st.integers(1, 20), is_exact=st.booleans(), batch_size=st.integers(1, 12))
    def acquire(self, member: str, records: int, is_exact: bool, batch_size: int) -> None:
        partition = self.share.partition
        wish = Wish(member, records, batch_size, is_exact)
        fetched = [batch for batch in self.share.batches if batch.last_offset >= partition.next_fetch_offset]
        got = partition.acquire(partition.next_fetch_offset, fetched, wish, LIMITS, self.share.now_ms)
        taken = [
            (offset, each.delivery_count)
            for each in got
            for offset in range(each.first_offset, each.last_offset + 1)
        ]
        for offset, count in taken:
            state, before, _ = self._state(offset)
            assert state is AVAILABLE and count == before + 1 and offset >= self.done_below
            self.model[offset] = (ACQUIRED, count, member)
            self.due[offset] = self.share.now_ms + LOCK_MS
        assert not is_exact or len(taken) <= records
        free = [offset for offset in range(self.done_below, END) if self._state(offset)[0] is AVAILABLE]
        has_room = partition.in_flight < LIMITS.max_record_locks or any(
            offset < partition.next_offset for offset in free
        )
        if free and has_room and not taken:
            raise AssertionError(f"nothing of {free} was given")
        if taken:
            assert taken[0][0] == min([*free, taken[0][0]]), "the oldest record comes first"

    @rule(
        member=members, first=offsets, said=st.lists(words, min_size=1, max_size=8), is_one_word=st.booleans()
    )
    def acknowledge(self, member: str, first: int, said: list[Acknowledgement], is_one_word: bool) -> None:
        last = min(END - 1, first + len(said) - 1)
        said = said[: last - first + 1]
        spoken = tuple(said[:1] if is_one_word else said)
        concerned = range(max(first, self.share.partition.start_offset), last + 1)
        is_right = all(self._state(offset)[::2] == (ACQUIRED, member) for offset in concerned)
        try:
            transition = self.share.partition.acknowledge(
                member, [AcknowledgedRange(first, last, spoken)], LIMITS, self.share.now_ms
            )
        except ApiError:
            assert not is_right
            return
        assert is_right
        self.share.finish(transition)
        for offset in concerned:
            self._settle(offset, spoken[0] if len(spoken) == 1 else spoken[offset - first])

    def _settle(self, offset: int, word: Acknowledgement) -> None:
        count = self.model[offset][1]
        if word is Acknowledgement.RENEW:
            self.due[offset] = self.share.now_ms + LOCK_MS
        else:
            self.model[offset] = (target_state(word, count, LIMITS), count, "")

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.share.release(member)
        for offset, (_state, count, holder) in self.model.items():
            if holder == member:
                self.model[offset] = (released_state(count, LIMITS), count, "")

    @rule(milliseconds=st.sampled_from([1, LOCK_MS // 3, LOCK_MS]))
    def wait(self, milliseconds: int) -> None:
        self.share.wait(milliseconds)
        for offset, (state, count, _) in self.model.items():
            if state is ACQUIRED and self.due[offset] <= self.share.now_ms:
                self.model[offset] = (released_state(count, LIMITS), count, "")

    @rule()
    def crash(self) -> None:
        """Deliveries that nobody settled are forgotten with their locks."""
        written = self.share.written
        self.share.reload()
        self.share.partition.move_log_start(self.log_start)
        for offset, (state, _, _) in self.model.items():
            if not state.is_final:
                count = written[offset].delivery_count if offset in written else 0
                self.model[offset] = (AVAILABLE, count, "")

    @rule(offset=offsets)
    def cut_log(self, offset: int) -> None:
        if offset <= self.share.partition.start_offset + 10:
            self.log_start = max(self.log_start, offset)
            self.share.partition.move_log_start(offset)
            for gone in range(self.done_below, offset):
                if not self._state(gone)[0].is_final:
                    self.model[gone] = (RecordState.ARCHIVED, self._state(gone)[1], "")

    @invariant()
    def everything_agrees(self) -> None:
        partition = self.share.partition
        while self._state(self.done_below)[0].is_final:
            self.done_below += 1
        assert partition.start_offset == self.done_below
        held = {}
        for run in partition.runs:
            for offset in range(run.first, run.last + 1):
                held[offset] = (run.state, run.delivery_count, run.member_id)
        for offset in range(self.done_below, END):
            assert held.get(offset, (AVAILABLE, 0, "")) == self._state(offset), offset


TestShareMachine = ShareMachine.TestCase
TestShareMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
