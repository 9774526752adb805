"""Leader epochs: the file, the answers that truncation relies on, and repair from the batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, append, data_batch, open_log

from tidemill.storage.leader_epochs import (
    CorruptEpochs,
    EpochEntry,
    LeaderEpochs,
    parse_checkpoint,
    render_checkpoint,
)
from tidemill.testing.files import MemoryFiles

PATH = f"{DIRECTORY}/leader-epoch-checkpoint"


def epochs_with(*entries: tuple[int, int]) -> LeaderEpochs:
    files = MemoryFiles()
    files.make_directory("/data")
    epochs = LeaderEpochs(files, "/data")
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_the_file_is_kafkas() -> None:
    assert render_checkpoint([EpochEntry(0, 0), EpochEntry(3, 120)]) == b"0\n2\n0 0\n3 120\n"
    assert parse_checkpoint(b"0\n2\n0 0\n3 120\n") == [(0, 0), (3, 120)]
    assert parse_checkpoint(b"0\n0\n") == []


@pytest.mark.parametrize(
    "data",
    [b"", b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 0", b"0\n1\n0\n", b"0\n1\nx 0\n", b"0\n2\n3 0\n2 9\n",
     b"0\n2\n1 9\n2 9\n",
     b"0\n1\n-1 0\n", b"\xff\n0\n", b"0\n1\n1 2 3\n"],
)  # fmt: skip
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptEpochs):
        parse_checkpoint(data)


def test_where_an_epoch_ends() -> None:
    epochs = epochs_with((2, 10), (4, 20), (7, 30))
    assert epochs.end_offset_for(7, 55) == (7, 55)
    assert epochs.end_offset_for(4, 55) == (4, 30)
    assert epochs.end_offset_for(5, 55) == (4, 30)
    assert epochs.end_offset_for(1, 55) == (1, 10)
    assert epochs.end_offset_for(8, 55) == (-1, -1)
    assert epochs.end_offset_for(-1, 55) == (-1, -1)
    assert epochs_with().end_offset_for(0, 55) == (-1, -1)


def test_a_later_epoch_takes_over_ranges_nobody_wrote() -> None:
    assert epochs_with((1, 10), (2, 10)).entries == ((2, 10),)
    assert epochs_with((1, 10), (5, 20), (3, 15)).entries == ((1, 10), (3, 15))
    assert epochs_with((1, 10), (1, 30)).entries == ((1, 10),)


def test_cutting_at_both_ends() -> None:
    epochs = epochs_with((1, 10), (2, 20), (3, 30))
    epochs.truncate_from_end(30)
    assert epochs.entries == ((1, 10), (2, 20)) and epochs.latest_epoch == 2
    epochs.truncate_from_start(25)
    assert epochs.entries == ((2, 25),)
    epochs.truncate_from_start(5)
    assert epochs.entries == ((2, 25),)
    epochs.clear()
    assert epochs.latest_epoch == -1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=12))
def test_epochs_and_offsets_always_ascend_and_the_file_agrees(assignments: list[tuple[int, int]]) -> None:
    epochs = epochs_with(*assignments)
    entries = epochs.entries
    assert list(entries) == sorted(set(entries))
    assert [entry.start_offset for entry in entries] == sorted({entry.start_offset for entry in entries})
    again = LeaderEpochs(epochs._files, "/data")
    again.load()
    assert again.entries == entries


def test_a_refused_write_changes_nothing() -> None:
    epochs = epochs_with((1, 10))
    epochs._files.fail("write_atomic")  # type: ignore[attr-defined]
    with pytest.raises(OSError):
        epochs.assign(2, 20)
    assert epochs.entries == ((1, 10),)


# -- in a log ------------------------------------------------------------------------------------------


def log_of_three_epochs(files: MemoryFiles) -> None:
    log = open_log(files)
    for epoch, batches in ((0, 3), (3, 2), (12, 4)):
        for _ in range(batches):
            append(log, data_batch(10), epoch)
    log.close()


@pytest.mark.parametrize(
    "damage",
    [b"", b"garbage", b"0\n3\n0 0\n2 30\n12 50\n", b"0\n3\n0 0\n3 31\n12 50\n", b"0\n3\n0 0\n3 30\n12 60\n",
     b"0\n1\n12 50\n",
     b"0\n2\n0 0\n3 30\n", b"0\n3\n0 0\n3 20\n12 50\n", b"0\n3\n0 0\n3 30\n13 50\n"],
)  # fmt: skip
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_contradicts_the_batches_is_rebuilt(damage: bytes, clean: bool) -> None:
    files = MemoryFiles()
    log_of_three_epochs(files)
    assert files.read_all(PATH) == b"0\n3\n0 0\n3 30\n12 50\n"
    files.write_atomic(PATH, damage)
    log = open_log(files, clean_shutdown=clean, recovery_point=90)
    assert [log.end_offset_for_epoch(epoch) for epoch in (0, 2, 3, 12)] == [
        (0, 30),
        (0, 30),
        (3, 50),
        (12, 90),
    ]
    assert files.read_all(PATH) == b"0\n3\n0 0\n3 30\n12 50\n"


def test_a_missing_file_is_rebuilt() -> None:
    files = MemoryFiles()
    log_of_three_epochs(files)
    files.remove(PATH)
    assert open_log(files, clean_shutdown=True, recovery_point=90).end_offset_for_epoch(3) == (3, 50)
