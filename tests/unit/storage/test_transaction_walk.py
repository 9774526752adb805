"""The index of aborted transactions after a clean stop: whatever happened to it, readers learn what was aborted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_batches import append, data_batch, marker_batch, open_log, producer_batch

from tidemill.model.errors import ApiError
from tidemill.storage import transaction_walk
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.storage.log_read import CommittedSlice
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import BatchHeader, iterate_headers

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200)
MOST_BYTES = 300
PRODUCERS = (7, 8, 9)
Fates = dict[int, bool]
"""Offset of a transactional batch -> whether it was aborted."""
STEPS = st.lists(st.tuples(st.sampled_from(PRODUCERS), st.sampled_from("dddca")), min_size=5, max_size=60)


class Writer:
    """Writes plain and transactional batches, and remembers which of them were aborted."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.aborted: Fates = {}
        self._open: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}

    def data(self, producer: int) -> None:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + 2
        offset = append(self.log, producer_batch(producer, sequence, 2, transactional=True)).first_offset
        self._open.setdefault(producer, []).append(offset)

    def end(self, producer: int, *, commit: bool) -> None:
        append(self.log, marker_batch(producer, commit=commit))
        for offset in self._open.pop(producer, []):
            self.aborted[offset] = not commit

    def plain(self) -> None:
        append(self.log, data_batch(3))

    def play(self, steps: list[tuple[int, str]]) -> None:
        for producer, kind in steps:
            if kind == "d":
                self.data(producer)
                self.plain()
            else:
                self.end(producer, commit=kind == "c")
            self.log.flush()
        for producer in list(self._open):
            self.end(producer, commit=False)


def written(steps: list[tuple[int, str]]) -> tuple[MemoryFiles, Fates]:
    files = MemoryFiles()
    writer = Writer(open_log(files, CONFIG))
    writer.play(steps)
    writer.log.close()
    return files, writer.aborted


def reopen(files: MemoryFiles) -> Log:
    end = max(int(path[-29:-9]) for path in files.paths() if path.endswith(".snapshot"))
    log = open_log(files, CONFIG, clean_shutdown=True, recovery_point=end)
    log.update_high_watermark(log.log_end_offset)
    return log


def indexes(files: MemoryFiles) -> list[str]:
    return [path for path in files.paths() if path.endswith(".txnindex") and files.size(path)]


def ask(log: Log, offset: int) -> CommittedSlice:
    """Ask as often as it takes; it must not take for ever."""
    records = log.read(offset, MOST_BYTES, log.log_end_offset)
    assert records is not None
    for _ in range(200):
        found = log.committed(records, offset, log.log_end_offset)
        if found is not None:
            return found
    raise AssertionError("never known")


def batches(found: CommittedSlice) -> Iterator[BatchHeader]:
    data = found.records.file.read(found.records.position, found.records.length)
    return (header for _, header in iterate_headers(data) if not header.is_control)


def is_hidden(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def check_reading(log: Log, fates: Fates, start: int = 0) -> None:
    """From `start` to the end, every transactional batch is hidden if it was aborted, and only then."""
    offset = start
    while offset < log.log_end_offset:
        found = ask(log, offset)
        for header in batches(found):
            if header.is_transactional:
                assert is_hidden(header, found.aborted) == fates[header.base_offset], header
        data = found.records.file.read(found.records.position, found.records.length)
        offset = max(header.last_offset for _, header in iterate_headers(data)) + 1


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches each, at most."""
    monkeypatch.setattr(transaction_walk, "STEP_BATCHES", 2)
    monkeypatch.setattr(transaction_walk, "CHUNK_BYTES", 150)


@pytest.mark.usefixtures("small_steps")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.data())
def test_no_damage_to_the_indexes_shows_aborted_records(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    files, fates = written(steps)
    for path in indexes(files):
        damage = data.draw(st.sampled_from(("none", "flip", "tear", "empty", "remove")))
        if damage == "flip":
            files.flip_bit(path, data.draw(st.integers(0, 8 * files.size(path) - 1)))
        elif damage == "tear":
            files.tear(path, data.draw(st.integers(0, files.size(path) - 1)))
        elif damage == "empty":
            files.write_atomic(path, b"")
        elif damage == "remove":
            files.remove(path)
    if data.draw(st.booleans()):
        for path in [path for path in files.paths() if path.endswith(".snapshot")][:-1]:
            files.remove(path)
    log = reopen(files)
    starts = data.draw(st.lists(st.sampled_from([0, *fates]), max_size=3)) if fates else []
    for start in starts:
        check_reading(log, fates, start)
    check_reading(log, fates)


@settings(max_examples=60)
@given(STEPS)
def test_the_files_are_repaired_and_sound_ones_are_left_alone(steps: list[tuple[int, str]]) -> None:
    files, fates = written(steps)
    before = {path: files.read_all(path) for path in indexes(files)}
    log = reopen(files)
    check_reading(log, fates)
    log.aborted_transactions(0, log.log_end_offset)
    assert {path: files.read_all(path) for path in indexes(files)} == before
    for path in before:
        files.flip_bit(path, 8 * 17 + 7)
    again = reopen(files)
    assert again.aborted_transactions(0, again.log_end_offset) == log.aborted_transactions(
        0, log.log_end_offset
    )
    assert {path: files.read_all(path) for path in before} == before


@pytest.mark.parametrize("shift", [1, 4, -4])
@pytest.mark.parametrize("field", ["first offset", "last stable offset"])
def test_an_entry_that_only_looks_right_is_corrected(field: str, shift: int) -> None:
    """Producer, marker and order are as they should be; only where it begins is not."""
    files, fates = written([(7, "d"), (7, "c"), (7, "d"), (8, "d"), (7, "d"), (7, "a"), (8, "c")])
    (path,) = indexes(files)
    data = bytearray(files.read_all(path))
    place = 10 if field == "first offset" else 26
    value = int.from_bytes(data[place : place + 8], "big") + shift
    data[place : place + 8] = value.to_bytes(8, "big")
    files.write_atomic(path, bytes(data))
    check_reading(reopen(files), fates)


def test_a_log_without_transactions_is_never_walked() -> None:
    files = MemoryFiles()
    writer = Writer(open_log(files, CONFIG))
    for _ in range(30):
        writer.plain()
    writer.log.close()
    log = reopen(files)
    writer.log = log
    check_reading(log, {})
    writer.plain()
    check_reading(log, {}, log.log_end_offset - 3)
    assert not log._walks


@pytest.mark.usefixtures("small_steps")
def test_aborts_that_follow_the_start_need_no_walk() -> None:
    """The index of the segment that is written on is not checked yet, and its file is damaged."""
    files, fates = written([(7, "d"), (7, "a")])
    (path,) = indexes(files)
    files.tear(path, 20)
    log = reopen(files)
    end = log.log_end_offset
    writer = Writer(log)
    writer._sequences = {8: 0}
    writer.data(8)
    writer.end(8, commit=False)
    log.update_high_watermark(log.log_end_offset)
    check_reading(log, writer.aborted, end)
    assert not log._walks
    check_reading(log, fates | writer.aborted)
    assert len(log.segments[-1].transaction_index.entries) == 2


def test_a_marker_that_cannot_be_written_leaves_no_entry() -> None:
    files, _ = written([(7, "d"), (7, "a"), (8, "d"), (8, "a")])
    (path,) = indexes(files)
    before = files.read_all(path)
    log = reopen(files)
    writer = Writer(log)
    writer._sequences = {9: 0}
    writer.data(9)
    files.fail("write", path=f"{log.active_base_offset:020d}.log")
    with pytest.raises(OSError):
        writer.end(9, commit=False)
    assert files.read_all(path) == before and not log.segments[-1].transaction_index.added


@pytest.mark.usefixtures("small_steps")
def test_a_reader_is_told_to_ask_again_while_the_walk_is_under_way() -> None:
    files, fates = written([(7, "d")] * 3 + [(7, "a")])
    log = reopen(files)
    records = log.read(0, MOST_BYTES, log.log_end_offset)
    assert records is not None
    answers = [log.committed(records, 0, log.log_end_offset) for _ in range(6)]
    assert answers[0] is None and answers[-1] is not None
    assert all(fates.values())
    assert [is_hidden(header, answers[-1].aborted) for header in batches(answers[-1])].count(True) >= 1


@pytest.mark.parametrize("is_file_sound", [True, False])
def test_damaged_batches_leave_a_sound_file_believed(is_file_sound: bool) -> None:
    """The marker cannot be read: the file says what it was. Two kinds of damage at once are refused."""
    files, fates = written([(7, "d"), (7, "a")])
    (path,) = indexes(files)
    marker = next(
        (position, header)
        for position, header in iterate_headers(files.read_all(path.replace("txnindex", "log")))
        if header.is_control
    )
    files.flip_bit(path.replace("txnindex", "log"), 8 * (marker[0] + 70))
    if not is_file_sound:
        files.tear(path, 20)
    log = reopen(files)
    if is_file_sound:
        found = ask(log, 0)
        assert [is_hidden(header, found.aborted) for header in batches(found)] == [fates[0], False]
    else:
        with pytest.raises(ApiError):
            ask(log, 0)
