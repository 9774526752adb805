"""Offset, time and transaction index against lists that do the same slowly."""

from __future__ import annotations

import struct
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.ports.files import Files
from tidemill.storage.offset_index import OffsetIndex
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.sparse_index import CorruptIndex, SparseIndex
from tidemill.storage.time_index import TimeIndex
from tidemill.storage.transaction_index import AbortedTransaction, TransactionIndex, collect
from tidemill.testing.files import MemoryFiles

BASE = 1000
PATH = "/i"


def offset_index(files: Files, max_bytes: int = 8 * 4096) -> OffsetIndex:
    return OffsetIndex(files, OpenFiles(4), PATH, BASE, max_bytes)


def time_index(files: Files, max_bytes: int = 12 * 4096) -> TimeIndex:
    return TimeIndex(files, OpenFiles(4), PATH, BASE, max_bytes)


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=60)


def entries_of(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Strictly increasing (offset, position) from increments."""
    offset, position, entries = BASE - 1, -1, []
    for more_offsets, more_bytes in pairs:
        offset, position = offset + more_offsets, position + more_bytes
        entries.append((offset, position))
    return entries


@given(steps, st.lists(st.integers(BASE - 10, BASE + 3200), max_size=20))
def test_offset_lookup_finds_the_last_entry_at_or_below(
    pairs: list[tuple[int, int]], targets: list[int]
) -> None:
    index, entries = offset_index(MemoryFiles()), entries_of(pairs)
    for offset, position in entries:
        index.append(offset, position)
    for target in targets:
        slot = bisect_right([offset for offset, _ in entries], target) - 1
        assert index.lookup(target) == (entries[slot] if slot >= 0 else None)
        found = next((entry for entry in entries if entry[1] >= target), None)
        assert index.first_at_or_after_position(target) == found


@given(steps, st.integers(BASE - 10, BASE + 3200))
def test_offset_truncation_drops_what_is_at_or_above(pairs: list[tuple[int, int]], offset: int) -> None:
    files = MemoryFiles()
    index, entries = offset_index(files), entries_of(pairs)
    for entry in entries:
        index.append(*entry)
    index.truncate_to(offset)
    kept = [entry for entry in entries if entry[0] < offset]
    assert [index.entry(slot) for slot in range(index.count)] == kept
    index.append(BASE + 9000, 9_000_000)
    index.seal()
    packed = b"".join(
        struct.pack(">ii", entry - BASE, place) for entry, place in [*kept, (BASE + 9000, 9_000_000)]
    )
    assert files.read_all(PATH) == packed


@settings(max_examples=20)
@given(st.integers(1025, 2000), st.data())
def test_the_warm_section_and_the_rest_agree(count: int, data: st.DataObject) -> None:
    index = offset_index(MemoryFiles())
    for place in range(count):
        index.append(BASE + 10 * place + 9, 5000 * place)
    for _ in range(10):
        target = data.draw(st.integers(BASE, BASE + 10 * count))
        slot = (target - BASE + 1) // 10 - 1
        assert index.lookup(target) == (index.entry(slot) if slot >= 0 else None)


@given(steps, st.lists(st.integers(0, 3200), max_size=10), st.integers(BASE - 10, BASE + 3200))
def test_time_index(pairs: list[tuple[int, int]], targets: list[int], cut: int) -> None:
    index = time_index(MemoryFiles())
    entries: list[tuple[int, int]] = []
    for offset, timestamp in entries_of(pairs):
        index.maybe_append(timestamp, offset)
        entries.append((timestamp, offset))
        index.maybe_append(timestamp - 1, offset + 1)
    for target in targets:
        slot = bisect_right([timestamp for timestamp, _ in entries], target) - 1
        assert index.lookup(target) == (entries[slot] if slot >= 0 else None)
    index.truncate_to(cut)
    assert [index.entry(slot) for slot in range(index.count)] == [
        entry for entry in entries if entry[1] < cut
    ]


def test_nothing_is_made_before_the_first_entry() -> None:
    files = MemoryFiles()
    index = offset_index(files)
    assert index.lookup(BASE) is None and index.last_entry() is None and not files.exists(PATH)
    index.append(BASE + 5, 0)
    assert files.size(PATH) == 8


def test_a_growing_index_is_mapped_at_its_full_size_and_sealed_to_its_entries() -> None:
    files = MemoryFiles()
    index = offset_index(files, max_bytes=8 * 100 + 7)
    index.append(BASE + 5, 0)
    assert index.capacity == 100 and index.lookup(BASE + 5) == (BASE + 5, 0)
    assert files.size(PATH) == 800
    index.append(BASE + 9, 70)
    assert index.lookup(BASE + 9) == (BASE + 9, 70)
    index.seal()
    assert files.size(PATH) == 16
    assert index.lookup(BASE + 7) == (BASE + 5, 0)
    index.append(BASE + 12, 90)
    assert index.lookup(BASE + 12) == (BASE + 12, 90)


def test_the_time_index_keeps_a_slot_for_the_seal() -> None:
    index = time_index(MemoryFiles(), max_bytes=36)
    index.maybe_append(1, BASE)
    assert not index.is_full
    index.maybe_append(2, BASE + 1)
    assert index.is_full
    index.maybe_append(3, BASE + 2)
    index.maybe_append(4, BASE + 3)
    assert index.count == 3


def test_a_refused_write_leaves_the_slot_free() -> None:
    files = MemoryFiles()
    index = offset_index(files)
    files.fail("write")
    with pytest.raises(OSError):
        index.append(BASE, 0)
    assert index.count == 0
    index.append(BASE, 0)
    assert index.lookup(BASE) == (BASE, 0)


def test_released_handles_are_opened_again() -> None:
    index = offset_index(MemoryFiles())
    index.append(BASE, 0)
    assert index.lookup(BASE) == (BASE, 0)
    index.release()
    index.append(BASE + 1, 10)
    index.release()
    assert index.lookup(BASE + 1) == (BASE + 1, 10)


def loaded(make: type[SparseIndex], data: bytes) -> SparseIndex:
    files = MemoryFiles()
    files.write_atomic(PATH, data)
    index = make(files, OpenFiles(), PATH, BASE, 4096)
    index.load()
    return index


@pytest.mark.parametrize("size", [0, 8, 80])
def test_whole_entries_load(size: int) -> None:
    assert loaded(OffsetIndex, bytes(size)).count == size // 8


@pytest.mark.parametrize("size", [1, 7, 9])
def test_broken_sizes_are_refused(size: int) -> None:
    with pytest.raises(CorruptIndex):
        loaded(OffsetIndex, bytes(size))


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0), (0, 100)],
        [(5, 100), (3, 200)],
        [(1, 100), (2, 100)],
        [(1, 0), (2, 5000)],
        [(1, 0), (50, 100)],
        [(-1, 0)],
        [(0, -5)],
        [(1, 10), (0, 0)],
    ],
)
def test_impossible_offset_entries_are_refused(entries: list[tuple[int, int]]) -> None:
    index = loaded(OffsetIndex, b"".join(struct.pack(">ii", *entry) for entry in entries))
    with pytest.raises(CorruptIndex):
        index.check(next_offset=BASE + 50, log_size=5000)


@pytest.mark.parametrize("entries", [[(5, 1), (5, 2)], [(5, 2), (6, 2)], [(5, 1), (9, 50)], [(-7, 1)]])
def test_impossible_time_entries_are_refused(entries: list[tuple[int, int]]) -> None:
    index = loaded(TimeIndex, b"".join(struct.pack(">qi", *entry) for entry in entries))
    with pytest.raises(CorruptIndex):
        index.check(next_offset=BASE + 50, log_size=5000)


def test_possible_entries_pass() -> None:
    index = loaded(OffsetIndex, struct.pack(">iiii", 3, 0, 49, 4999))
    index.check(next_offset=BASE + 50, log_size=5000)
    assert index.is_checked


# -- aborted transactions ------------------------------------------------------------------------------


def transaction_index(files: Files) -> TransactionIndex:
    return TransactionIndex(files, PATH, BASE)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40), st.integers(0, 40), st.integers(0, 40)
)
def test_collect_finds_all_that_touch_the_range(
    steps: list[tuple[int, bool]], start: int, length: int
) -> None:
    """Producers write at successive offsets or end their transaction; each end is an abort."""
    files = MemoryFiles()
    index = TransactionIndex(files, PATH, 0)
    is_open: dict[int, int] = {}
    entries = []
    for offset, (producer, ends) in enumerate(steps):
        if ends and producer in is_open:
            first = is_open.pop(producer)
            entries.append(AbortedTransaction(producer, first, offset, min([*is_open.values(), offset + 1])))
            index.append(entries[-1])
        else:
            is_open.setdefault(producer, offset)
    end = start + length
    touching = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < end]
    found, _ = collect(TransactionIndex(files, PATH, 0).entries, start, end)
    assert found == touching


def test_collect_stops_where_later_aborts_cannot_touch() -> None:
    index = transaction_index(MemoryFiles())
    index.append(AbortedTransaction(1, 1000, 1010, 1011))
    index.append(AbortedTransaction(2, 1020, 1030, 1031))
    assert collect(index.entries, 1000, 1011) == ([AbortedTransaction(1, 1000, 1010, 1011)], True)
    assert collect(index.entries, 1000, 1015) == ([AbortedTransaction(1, 1000, 1010, 1011)], True)
    assert len(collect(index.entries, 1000, 2000)[0]) == 2


def test_the_bytes_of_a_transaction_index() -> None:
    files = MemoryFiles()
    index = transaction_index(files)
    assert index.entries == [] and not files.exists(PATH)
    index.append(AbortedTransaction(7, 1010, 1020, 1012))
    index.append(AbortedTransaction(8, 1012, 1025, 1026))
    assert files.read_all(PATH) == struct.pack(">hqqqqhqqqq", 0, 7, 1010, 1020, 1012, 0, 8, 1012, 1025, 1026)
    index.truncate_to(1025)
    assert files.size(PATH) == 34 and len(transaction_index(files).entries) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"\1" + data[1:], lambda data: data * 2]
)
def test_damaged_transaction_indexes_are_refused(damage: object) -> None:
    files = MemoryFiles()
    transaction_index(files).append(AbortedTransaction(7, 1010, 1020, 1012))
    files.write_atomic(PATH, damage(files.read_all(PATH)))  # type: ignore[operator]
    with pytest.raises(CorruptIndex):
        _ = transaction_index(files).entries


def test_a_torn_append_is_cut_back() -> None:
    files = MemoryFiles()
    index = transaction_index(files)
    index.append(AbortedTransaction(7, 1010, 1020, 1012))
    files.fail("write")
    with pytest.raises(OSError):
        index.append(AbortedTransaction(8, 1012, 1025, 1026))
    assert files.size(PATH) == 34
