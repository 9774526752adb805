"""The faulty disk of the tests is itself tested: what it claims to lose, it loses, and nothing else."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.ports.randomness import SeededRandomness
from tidemill.testing.files import MemoryFiles


def synced_file(files: MemoryFiles, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.write((data,), 0)
    file.sync()
    files.sync_directory("/")


def test_bytes_survive_a_power_loss_once_synced() -> None:
    files = MemoryFiles()
    synced_file(files, "/a", b"one")
    files.open("/a").write((b"two",), 3)
    assert files.read_all("/a") == b"onetwo"
    files.lose_power()
    assert files.read_all("/a") == b"one"


def test_names_survive_once_their_directory_is_synced() -> None:
    files = MemoryFiles()
    synced_file(files, "/a", b"one")
    files.rename("/a", "/b")
    files.open("/c", create=True).sync()
    files.lose_power()
    assert files.paths() == ["/a"]
    files.rename("/a", "/b")
    files.sync_directory("/")
    files.lose_power()
    assert files.paths() == ["/b"]


def test_removed_names_come_back_unless_the_directory_is_synced() -> None:
    files = MemoryFiles()
    synced_file(files, "/a", b"one")
    files.remove("/a")
    files.lose_power()
    assert files.read_all("/a") == b"one"


def test_write_atomic_is_all_or_nothing_and_durable() -> None:
    files = MemoryFiles()
    files.write_atomic("/a", b"old")
    files.write_atomic("/a", b"new", sync=False)
    assert files.read_all("/a") == b"new"
    files.lose_power()
    assert files.read_all("/a") == b"old"


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(0, 1 << 30))
def test_random_power_loss_keeps_a_beginning_of_the_writes(writes: list[bytes], seed: int) -> None:
    files = MemoryFiles()
    synced_file(files, "/a", b"synced")
    file = files.open("/a")
    for data in writes:
        file.write((data,), file.size())
    whole = files.read_all("/a")
    files.lose_power(SeededRandomness(seed))
    survived = files.read_all("/a")
    assert survived.startswith(b"synced") and whole.startswith(survived)


def test_a_failing_write_leaves_half_of_its_bytes() -> None:
    files = MemoryFiles()
    file = files.open("/a", create=True)
    files.fail("write", errno.EIO)
    with pytest.raises(OSError):
        file.write((b"12345678",), 0)
    assert files.read_all("/a") == b"1234"
    assert file.write((b"12345678",), 0) == 8


def test_faults_can_be_aimed_at_paths() -> None:
    files = MemoryFiles()
    a, b = files.open("/a", create=True), files.open("/b", create=True)
    files.fail("sync", path="/b", times=2)
    a.sync()
    for _ in range(2):
        with pytest.raises(OSError):
            b.sync()
    b.sync()


def test_a_full_disk_works_again_when_there_is_room() -> None:
    files = MemoryFiles(capacity_bytes=10)
    file = files.open("/a", create=True)
    file.write((b"12345678",), 0)
    with pytest.raises(OSError) as caught:
        file.write((b"12345678",), 8)
    assert caught.value.errno == errno.ENOSPC
    assert files.size("/a") == 10
    file.truncate(0)
    file.write((b"12345678",), 0)


def test_maps_show_what_is_written_and_grow_the_file() -> None:
    files = MemoryFiles()
    mapped = files.map("/a", 16)
    files.open("/a").write((b"abcd",), 0)
    assert bytes(mapped.buffer[:4]) == b"abcd" and files.size("/a") == 16
    mapped.close(4)
    assert files.read_all("/a") == b"abcd"


def test_damage() -> None:
    files = MemoryFiles()
    synced_file(files, "/a", b"\x00\x00")
    files.flip_bit("/a", 9)
    assert files.read_all("/a") == b"\x00\x02"
    files.tear("/a", 1)
    assert files.read_all("/a") == b"\x00"


def test_directories_list_rename_and_go() -> None:
    files = MemoryFiles()
    files.make_directory("/data/t-0")
    synced_file(files, "/data/t-0/x", b"1")
    assert files.list("/data") == ["t-0"] and files.list("/data/t-0") == ["x"]
    files.rename("/data/t-0", "/data/t-0.gone")
    assert files.read_all("/data/t-0.gone/x") == b"1" and not files.exists("/data/t-0")
    files.remove_tree("/data/t-0.gone")
    assert files.list("/data") == [] and files.paths() == []
    with pytest.raises(FileNotFoundError):
        files.open("/nowhere/x", create=True)


def test_an_open_file_outlives_its_name() -> None:
    files = MemoryFiles()
    file = files.open("/a", create=True)
    file.write((b"kept",), 0)
    files.remove("/a")
    assert file.read(0, 4) == b"kept"
    file.close()
    with pytest.raises(OSError):
        file.read(0, 4)
