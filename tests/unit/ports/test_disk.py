"""The real disk keeps the promises of the port, and the fake keeps the same ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.ports.disk import Disk
from tidemill.ports.files import Files
from tidemill.testing.files import MemoryFiles

Place = tuple[Files, str]


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    files: Files = Disk() if request.param == "disk" else MemoryFiles()
    root = f"{tmp_path}/root"
    files.make_directory(root)
    return files, root


def test_positioned_vectored_writes(place: Place) -> None:
    files, root = place
    file = files.open(f"{root}/a", create=True)
    assert file.write((b"12", bytearray(b"34"), memoryview(b"56")), 0) == 6
    assert file.write((b"xx",), 2) == 2
    assert file.read(0, 100) == b"12xx56" and file.read(4, 1) == b"5" and file.read(6, 5) == b""
    assert file.size() == files.size(f"{root}/a") == 6
    file.truncate(3)
    file.sync()
    assert files.read_all(f"{root}/a") == b"12x"


def test_open_needs_the_file_unless_told_to_make_it(place: Place) -> None:
    files, root = place
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/missing/a", create=True)


def test_names(place: Place) -> None:
    files, root = place
    files.write_atomic(f"{root}/a", b"1")
    files.write_atomic(f"{root}/b", b"2", sync=False)
    files.rename(f"{root}/a", f"{root}/b")
    assert files.read_all(f"{root}/b") == b"1" and sorted(files.list(root)) == ["b"]
    assert files.exists(f"{root}/b") and not files.exists(f"{root}/a") and files.exists(root)
    files.make_directory(f"{root}/deep/er")
    files.make_directory(f"{root}/deep/er")
    files.write_atomic(f"{root}/deep/er/c", b"3")
    files.sync_directory(root)
    files.remove_tree(f"{root}/deep")
    files.remove(f"{root}/b")
    assert files.list(root) == []
    with pytest.raises(FileNotFoundError):
        files.remove(f"{root}/b")


def test_maps(place: Place) -> None:
    files, root = place
    mapped = files.map(f"{root}/m", 64)
    assert files.size(f"{root}/m") == 64 and len(mapped.buffer) == 64
    files.open(f"{root}/m").write((b"seen",), 8)
    assert bytes(mapped.buffer[8:12]) == b"seen"
    mapped.buffer[0:4] = b"kept"
    mapped.sync()
    mapped.close(12)
    assert files.read_all(f"{root}/m") == b"kept\0\0\0\0seen"


def test_times_and_room(place: Place) -> None:
    files, root = place
    files.write_atomic(f"{root}/a", b"1")
    files.set_modified_ms(f"{root}/a", 1_700_000_000_123)
    assert files.modified_ms(f"{root}/a") == 1_700_000_000_123
    assert files.free_bytes(root) > 1_000_000


def test_a_descriptor_lives_as_long_as_somebody_holds_its_object(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write((b"data",), 0)
    descriptor = file.fileno()
    disk.remove(f"{tmp_path}/a")
    assert os.pread(descriptor, 4, 0) == b"data"
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Disk().open(f"{tmp_path}/a", create=True)
    real: Callable[..., int] = os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, buffers, position: real(descriptor, buffers[0][:3], position)
    )
    assert file.write((b"12345", b"678"), 0) == 8
    assert file.read(0, 10) == b"12345678"
