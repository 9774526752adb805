"""The next segment's file lies ready before the roll, and nothing depends on it."""

from __future__ import annotations

import errno
from pathlib import Path

from log_batches import DIRECTORY, append, data_batch, open_log, producer_batch, read_records

from tidemill.ports.disk import Disk
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.storage.next_segment import NEXT_SEGMENT
from tidemill.testing.files import MemoryFiles

SMALL = LogConfig(segment_bytes=800)
READY = f"{DIRECTORY}/{NEXT_SEGMENT}"


def prepare(log: Log) -> bool:
    """What the housekeeping does; whether there was anything to do."""
    job = log.begin_next_segment()
    if job is None:
        return False
    job.run()
    log.complete_next_segment(job)
    return True


def half_full(files: MemoryFiles | Disk, **options: str) -> Log:
    log = open_log(files, SMALL, **options)
    while log.segments[-1].size <= 400:
        append(log, data_batch(3))
    return log


def test_it_is_made_when_the_active_one_is_half_full_and_taken_by_the_roll() -> None:
    log = open_log(MemoryFiles(), SMALL)
    append(log, data_batch(3))
    assert not prepare(log)
    log = half_full(files := MemoryFiles())
    assert prepare(log) and files.exists(READY)
    assert not prepare(log), "it lies ready already"
    while len(log.segments) == 1:
        append(log, data_batch(3))
    assert not files.exists(READY)
    assert [offset for offset, *_ in read_records(log)] == list(range(log.log_end_offset))


def test_a_roll_opens_no_new_file_if_one_lies_ready(tmp_path: Path) -> None:
    log = half_full(Disk(), directory=str(tmp_path / "orders-0"))
    assert prepare(log)
    inode = (tmp_path / "orders-0" / NEXT_SEGMENT).stat().st_ino
    log.roll()
    assert Path(log.segments[-1].path(".log")).stat().st_ino == inode
    append(log, data_batch(3))
    assert read_records(log)[-1][0] == log.log_end_offset - 1


def test_without_it_the_roll_makes_its_own() -> None:
    log = half_full(MemoryFiles())
    prepare(log)
    log._files.remove(READY)
    log.roll()
    append(log, data_batch(3))
    assert len(log.segments) == 2 and log._files.exists(log.segments[-1].path(".log"))


def test_a_full_disk_is_no_failure() -> None:
    files = MemoryFiles()
    log = half_full(files)
    files.fail("open", error=errno.ENOSPC, path=READY)
    assert prepare(log)
    assert prepare(log), "tried again"
    log.roll()
    assert not log.is_offline


def test_leftovers_of_a_kill_are_removed_at_the_start_and_by_a_clean_end() -> None:
    killed = half_full(MemoryFiles())
    prepare(killed)
    again = open_log(killed._files, SMALL)
    assert not again._files.exists(READY) and again.log_end_offset == killed.log_end_offset
    prepare(again)
    again.close()
    assert not again._files.exists(READY)


def test_the_snapshot_of_a_roll_is_written_by_the_next_flush() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, producer_batch(7, 0))
    log.roll()
    append(log, producer_batch(7, 1))
    snapshot = f"{DIRECTORY}/{1:020d}.snapshot"
    assert not files.exists(snapshot)
    log.flush()
    assert files.exists(snapshot)
    assert append(open_log(files), producer_batch(7, 1)).is_duplicate


def test_a_snapshot_of_what_was_truncated_meanwhile_is_not_taken_over() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, producer_batch(7, 0))
    append(log, producer_batch(7, 1))
    log.roll()
    append(log, producer_batch(7, 2))
    job = log.begin_flush()
    assert job is not None
    log.truncate_to(1)
    job.run()
    log.complete_flush(job)
    assert not [path for path in files.paths() if path.endswith(".snapshot")]
    append(log, producer_batch(8, 0))
    assert not append(open_log(files), producer_batch(7, 1)).is_duplicate
