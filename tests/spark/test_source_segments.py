"""Log files that compaction replaces while they are read: the rest of the range goes over the wire, nothing is lost."""

from __future__ import annotations

import struct
from collections.abc import Generator
from pathlib import Path

import pytest
from log_batches import data_batch

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.source.batches import whole_batches
from tidemill.spark.source.fetching import Fetched
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.planning import ReadTask
from tidemill.spark.source.segments import read_segments

WHERE = TopicPartition("orders", 0)
_ENTRY = struct.Struct(">ii")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two closed segments of ten batches with ten records each, and an active one."""
    found = tmp_path / str(WHERE)
    found.mkdir()
    for base in (0, 100):
        write_log(found, base, range(base, base + 100, 10))
    (found / f"{200:020}.log").touch()
    return found


def write_log(folder: Path, base: int, offsets: range) -> None:
    """A segment with ten records at each of these offsets, and its index."""
    log, index = bytearray(), bytearray()
    for offset in offsets:
        index += _ENTRY.pack(offset - base, len(log))
        log += data_batch(10, offset=offset)
    (folder / f"{base:020}.log").write_bytes(log)
    (folder / f"{base:020}.index").write_bytes(index)


def read(folder: Path, start: int, end: int, *, committed: bool = False) -> tuple[list[int], int]:
    """Where the portions end, and where the wire goes on."""
    task = ReadTask(OffsetRange(WHERE, start, end), "127.0.0.1:1")
    ends: list[int] = []

    def run() -> Generator[Fetched, None, int]:
        reached = yield from read_segments((str(folder.parent),), task, committed)
        ends.append(reached)
        return reached

    portions = [whole_batches(portion.records, -1).next_offset for portion in run()]
    return portions, ends[0]


def test_whole_segments_are_read_up_to_the_active_one(folder: Path) -> None:
    assert read(folder, 0, 300) == ([100, 200], 200)
    assert read(folder, 55, 150) == ([100, 200], 150)


@pytest.mark.parametrize("place", [7, 11, 100_000])
def test_an_index_that_does_not_fit_its_log_ends_the_files(folder: Path, place: int) -> None:
    """In the middle of a batch, and behind the end."""
    (folder / f"{0:020}.index").write_bytes(_ENTRY.pack(50, place))
    assert read(folder, 55, 300) == ([], 55)
    assert read(folder, 0, 300) == ([100, 200], 200)


def test_an_index_that_names_a_later_batch_ends_the_files(folder: Path) -> None:
    later = len(data_batch(10)) * 8
    (folder / f"{0:020}.index").write_bytes(_ENTRY.pack(50, later))
    assert read(folder, 55, 300) == ([], 55)


def test_a_log_of_other_offsets_ends_the_files(folder: Path) -> None:
    (folder / f"{100:020}.log").write_bytes(data_batch(10, offset=4000))
    assert read(folder, 0, 300) == ([100], 100)


@pytest.mark.parametrize("left", [5, 20])
def test_a_torn_batch_ends_the_files_where_it_begins(folder: Path, left: int) -> None:
    path = folder / f"{0:020}.log"
    batch = len(data_batch(10))
    path.write_bytes(path.read_bytes()[: batch * 4 + left])
    assert read(folder, 0, 300) == ([40], 40)


def test_an_index_of_aborted_transactions_that_vanishes_is_not_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / f"{0:020}.txnindex"
    path.touch()
    assert read(folder, 0, 300, committed=True) == ([100, 200], 200)
    content = Path.read_bytes

    def vanish(self: Path) -> bytes:
        if self == path:
            path.unlink()
        return content(self)

    monkeypatch.setattr(Path, "read_bytes", vanish)
    assert read(folder, 0, 300, committed=True) == ([], 0)
