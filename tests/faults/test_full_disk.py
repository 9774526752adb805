"""A full disk: writes are refused with an error that says so, reads go on, and so do writes when there is room.

The disk is a small tmpfs. Where mounting is not allowed the limit of the process's file size stands in for it.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from log_files import read_values
from raw import batch_of, produce

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient

DISK_BYTES = 48 * 1024 * 1024
BALLAST_BYTES = 24 * 1024 * 1024
MESSAGE = b"x" * 500_000
TOPIC = "full"


class SmallDisk(Protocol):
    path: Path

    def fill(self, broker: SubprocessBroker) -> None:
        """Take away room."""

    def free(self, broker: SubprocessBroker) -> None:
        """Give it back."""


class Tmpfs:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, broker: SubprocessBroker) -> None:
        self._ballast.write_bytes(bytes(BALLAST_BYTES))

    def free(self, broker: SubprocessBroker) -> None:
        self._ballast.unlink()


class FileSizeLimit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, broker: SubprocessBroker) -> None:
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (BALLAST_BYTES, hard))

    def free(self, broker: SubprocessBroker) -> None:
        if not broker.is_running:
            return
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    options = f"size={DISK_BYTES}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True)
    if mounted.returncode != 0:
        yield FileSizeLimit(path)
        return
    try:
        yield Tmpfs(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as made:
        yield made


def fill_up(connection: WireClient) -> tuple[int, int]:
    """Write until refused: (messages written, error)."""
    for count in range(1_000):
        error = produce(connection, TOPIC, batch_of(MESSAGE)).error_code
        if error:
            return count, error
    raise AssertionError("the disk never became full")


def write_when_there_is_room(connection: WireClient) -> int:
    deadline = time.monotonic() + 15
    while True:
        part = produce(connection, TOPIC, batch_of(b"after"))
        if part.error_code == 0:
            offset: int = part.base_offset
            return offset
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert time.monotonic() < deadline, "there is room, and writes are still refused"
        time.sleep(0.05)


def test_a_full_disk_is_refused_cleanly_and_recovered_from(disk: SmallDisk) -> None:
    settings = {"log.segment.bytes": str(8 * 1024 * 1024)}
    with SubprocessBroker(data_dir=disk.path / "data", settings=settings) as broker:
        broker.create_topic(TOPIC)
        disk.fill(broker)
        with WireClient(broker.bootstrap) as connection:
            count, error = fill_up(connection)
            assert error == ErrorCode.KAFKA_STORAGE_ERROR
            assert count > 3
            for _ in range(5):
                again = produce(connection, TOPIC, batch_of(MESSAGE)).error_code
                assert again == ErrorCode.KAFKA_STORAGE_ERROR
            assert read_values(broker.bootstrap, TOPIC) == [MESSAGE] * count
            disk.free(broker)
            assert write_when_there_is_room(connection) == count
        assert read_values(broker.bootstrap, TOPIC) == [MESSAGE] * count + [b"after"]
        broker.kill()
        broker.restart()
        assert read_values(broker.bootstrap, TOPIC) == [MESSAGE] * count + [b"after"]


def test_a_kill_while_the_disk_is_full(disk: SmallDisk) -> None:
    """A write that failed half-way leaves nothing that the recovery could take for data."""
    with SubprocessBroker(data_dir=disk.path / "data") as broker:
        broker.create_topic(TOPIC)
        disk.fill(broker)
        with WireClient(broker.bootstrap) as connection:
            count, _ = fill_up(connection)
        broker.kill()
        disk.free(broker)
        broker.restart()
        assert read_values(broker.bootstrap, TOPIC) == [MESSAGE] * count
        with WireClient(broker.bootstrap) as connection:
            assert write_when_there_is_room(connection) == count
