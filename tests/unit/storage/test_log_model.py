"""A log against a list: random appends, reads, cuts, rolls, restarts and power losses.

The model keeps every batch that was written. Whatever happens, the log holds a beginning of them, at least up to
the recovery point, and reads return exactly those bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from log_batches import DIRECTORY, append, data_batch, offset_for_timestamp, open_log, read_bytes

from tidemill.model.errors import ApiError
from tidemill.ports.randomness import SeededRandomness
from tidemill.storage.config import LogConfig
from tidemill.storage.open_files import OpenFiles
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import iterate_headers

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150, segment_index_bytes=60, retention_ms=1 << 60)


class Written(NamedTuple):
    first_offset: int
    last_offset: int
    data: bytes
    timestamp: int


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.open_files = OpenFiles(3)
        self.batches: list[Written] = []
        self.epoch = 0
        self.recovery_point = 0
        self.start_offset = 0
        self.log = self.open(clean=True)

    def open(self, clean: bool) -> object:
        self.open_files = OpenFiles(3)
        return open_log(
            self.files,
            CONFIG,
            clean_shutdown=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start_offset,
            open_files=self.open_files,
        )

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.start_offset

    # -- writing

    @rule(count=st.integers(1, 4), size=st.integers(0, 200), timestamp=st.integers(0, 5000))
    def append(self, count: int, size: int, timestamp: int) -> None:
        batch = data_batch(count, size=size, timestamp=timestamp)
        info = append(self.log, batch, self.epoch)
        assert info.first_offset == self.end and not info.is_duplicate
        self.batches.append(Written(info.first_offset, info.last_offset, bytes(batch), timestamp))

    @rule(
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        size=st.integers(0, 150),
        cut=st.integers(0, 60),
    )
    def replicate(self, counts: list[int], size: int, cut: int) -> None:
        """What a leader sends: batches with their offsets, and the beginning of one more."""
        data, offset = bytearray(), self.end
        for count in counts:
            batch = data_batch(count, offset=offset, size=size, leader_epoch=self.epoch)
            self.batches.append(Written(offset, offset + count - 1, bytes(batch), 1000))
            data += batch
            offset += count
        self.log.append_as_follower(bytes(data) + bytes(data_batch(1, offset=offset))[:cut])

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.recovery_point = self.log.recovery_point
        assert self.recovery_point == self.end

    # -- cutting

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end + 2))
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.recovery_point = min(self.recovery_point, self.end)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end))
        self.log.update_high_watermark(offset)
        self.log.increase_log_start_offset(offset)
        self.log.delete_old_segments(0)
        self.start_offset = self.log.log_start_offset
        self.batches = [batch for batch in self.batches if batch.last_offset >= self.start_offset]

    @rule(offset=st.integers(0, 300))
    def start_over(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self.batches.clear()
        self.start_offset = offset
        self.recovery_point = min(self.recovery_point, offset)

    # -- restarting

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.recovery_point = self.log.recovery_point
        self.log = self.open(clean=True)

    @rule()
    def kill(self) -> None:
        """Nothing is lost, only nothing is tidy."""
        self.files.kill()
        self.log = self.open(clean=False)

    @rule(seed=st.none() | st.integers(0, 1 << 20))
    def lose_power(self, seed: int | None) -> None:
        self.files.lose_power(SeededRandomness(seed) if seed is not None else None)
        self.log = self.open(clean=False)
        end = self.log.log_end_offset
        assert self.recovery_point <= end, "what was synced is there"
        self.batches = [batch for batch in self.batches if batch.last_offset < end]
        self.epoch = max(self.epoch, self.log.latest_epoch)

    # -- looking

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end))
        limit = data.draw(st.integers(self.start_offset, self.end + 1))
        max_bytes = data.draw(st.sampled_from([0, 50, 400, 10_000]))
        got = read_bytes(self.log, offset, limit, max_bytes)
        visible = [
            batch for batch in self.batches if batch.last_offset >= offset and batch.last_offset < limit
        ]
        if not visible or offset >= limit:
            assert got == b""
            return
        expected = b"".join(batch.data for batch in visible)
        assert expected.startswith(got) and len(got) >= len(visible[0].data)
        assert len(got) <= max(max_bytes, len(visible[0].data))

    @precondition(lambda self: self.batches)
    @rule(timestamp=st.integers(0, 5001))
    def find_timestamp(self, timestamp: int) -> None:
        found = offset_for_timestamp(self.log, timestamp)
        first = next((batch for batch in self.batches if batch.timestamp >= timestamp), None)
        if first is None:
            assert found is None
        else:
            assert found is not None
            assert found[:2] == (first.timestamp, max(first.first_offset, self.start_offset))

    @rule(offset=st.integers(-5, 1000))
    def read_outside(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.end:
            try:
                self.log.read(offset, 100, self.end)
            except ApiError as error:
                assert error.code == 1
            else:
                raise AssertionError("an offset outside the log was answered")

    @invariant()
    def everything_adds_up(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end and log.log_start_offset == self.start_offset
        assert log.size == sum(segment.size for segment in log.segments)
        assert len(self.open_files) <= 3
        data = b"".join(
            self.files.read_all(f"{DIRECTORY}/{segment.base_offset:020d}.log") for segment in log.segments
        )
        expected = b"".join(batch.data for batch in self.batches)
        assert data.endswith(expected)
        epochs = {
            header.leader_epoch: header.base_offset for _, header in reversed(list(iterate_headers(expected)))
        }
        for epoch, start in epochs.items():
            assert log.epoch_for_offset(max(start, self.start_offset)) == epoch


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)


def rolled_after_a_flush() -> LogMachine:
    """The roll wrote the last entry of the time index, which the flush before it did not see."""
    machine = LogMachine()
    machine.replicate(counts=[1], cut=0, size=0)
    machine.flush()
    machine.roll()
    machine.restart()
    machine.find_timestamp(timestamp=0)
    return machine


@pytest.mark.parametrize("seed", range(20))
def test_the_last_entry_of_a_time_index_survives_a_power_loss_right_after_the_roll(seed: int) -> None:
    machine = rolled_after_a_flush()
    machine.lose_power(seed)
    machine.find_timestamp(timestamp=1)


@pytest.mark.parametrize("seed", range(20))
def test_the_last_entry_of_a_time_index_is_synced_by_the_flush_after_the_roll(seed: int) -> None:
    machine = rolled_after_a_flush()
    machine.replicate(counts=[2], cut=0, size=0)
    machine.flush()
    machine.lose_power(seed)
    machine.find_timestamp(timestamp=1)
