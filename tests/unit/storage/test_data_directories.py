"""Which copy of a partition is the right one, and which partitions a failed directory has taken along."""

from __future__ import annotations

import errno
from typing import Any

from log_batches import append_values, read_records

from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.storage.config import LogConfig
from tidemill.storage.manager import LogManager, WantedLog
from tidemill.testing.files import MemoryFiles

ONE, TWO = "/disk1", "/disk2"
ORDERS = TopicPartition("orders", 0)
TOPIC_ID, OTHER_ID = bytes(range(16)), bytes(15) + b"x"


def boot(files: MemoryFiles, **options: Any) -> LogManager:
    manager = LogManager(files, SeededRandomness(7), (ONE, TWO), lambda topic: LogConfig())
    manager.start(1, "c", 0, **options)
    return manager


def stray_in(files: MemoryFiles, path: str) -> bool:
    return any(name.endswith("-stray") for name in files.list(path))


def test_of_two_copies_the_metadata_knows_the_right_one() -> None:
    """A directory that was away comes back with a partition that was made again elsewhere meanwhile."""
    for right in (0, 1):
        files = MemoryFiles()
        manager = boot(files)
        for directory in manager.directories:
            log = manager.create(ORDERS, TOPIC_ID, 0, directory.directory_id)
            append_values(log, directory.path.encode())
            manager.logs.pop(ORDERS)
        wanted = WantedLog(ORDERS, TOPIC_ID, manager.directories[right].directory_id)
        again = boot(files, wanted=lambda where, wanted=wanted: wanted)
        assert read_records(again.require(ORDERS)) == [(0, (ONE, TWO)[right].encode())]
        assert not again.quarantined
        assert [stray_in(files, ONE), stray_in(files, TWO)] == [right == 1, right == 0]


def test_a_copy_of_a_deleted_topic_of_that_name_is_kept_and_not_served() -> None:
    files = MemoryFiles()
    manager = boot(files)
    first, second = manager.directories
    manager.create(ORDERS, TOPIC_ID, 0, first.directory_id)
    here = WantedLog(ORDERS, OTHER_ID, first.directory_id)
    assert boot(files, wanted=lambda where: here).get(ORDERS) is not None, "its id may be damaged: who knows"
    elsewhere = WantedLog(ORDERS, OTHER_ID, second.directory_id)
    assert boot(files, wanted=lambda where: elsewhere).get(ORDERS) is None
    assert stray_in(files, ONE)


def test_only_partitions_of_a_failed_directory_are_lost() -> None:
    files = MemoryFiles()
    first, second = boot(files).directories
    manager = boot(files, unusable={TWO: OSError(errno.EIO, "broken")})
    manager.note_lost(
        {
            TopicPartition("here", 0): first.directory_id,
            TopicPartition("there", 0): second.directory_id,
            TopicPartition("unsaid", 0): bytes(16),
        }
    )
    assert sorted(each.topic for each in manager.offline) == ["there", "unsaid"]
