"""Files of the log as Apache Kafka's own tool reads them: `DumpLogSegments` with its checks.

The files are written by the log alone, so that odd cases (timestamps out of order, aborted transactions) are there.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from kafka_jars import java_command
from log_batches import append, data_batch, marker_batch, producer_batch

from tidemill.ports.disk import Disk
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log

CONFIG = LogConfig(segment_bytes=60_000, index_interval_bytes=1000, segment_index_bytes=1000)
END = 420


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log with several segments, timestamps out of order, producers and an aborted transaction."""
    path = tmp_path_factory.mktemp("data") / "orders-0"
    log = Log.open(Disk(), str(path), CONFIG, topic_id=bytes(range(16)))
    for place in range(100):
        timestamp = 1_700_000_000_000 + (place * 37) % 50
        append(log, data_batch(2, timestamp=timestamp, size=200), epoch=place // 40)
        append(log, producer_batch(7, 2 * place, 2, timestamp=timestamp, size=100), epoch=place // 40)
    append(log, producer_batch(8, 0, 9, transactional=True), epoch=2)
    append(log, producer_batch(9, 0, 9, transactional=True), epoch=2)
    append(log, marker_batch(8, commit=False, coordinator_epoch=3), epoch=2)
    append(log, marker_batch(9, commit=True, coordinator_epoch=3), epoch=2)
    assert log.log_end_offset == END
    log.close()
    return path


@pytest.fixture(scope="module")
def dump(directory: Path) -> str:
    kinds = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot")
    files = ",".join(str(path) for kind in kinds for path in sorted(directory.glob(kind)))
    command = java_command("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_batches_and_indexes_agree_in_kafkas_eyes(dump: str, directory: Path) -> None:
    for complaint in (
        "mismatch",
        "Mismatch",
        "Exception",
        "isvalid: false",
        "out of order",
        "not found",
        "corrupt",
    ):
        assert complaint not in dump
    assert len(list(directory.glob("*.log"))) >= 2
    assert len(re.findall(r"^baseOffset: ", dump, re.MULTILINE)) == 204
    assert dump.count("isvalid: true") >= 204
    assert len(re.findall(r"^offset: \d+ position: \d+", dump, re.MULTILINE)) > 40
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", dump, re.MULTILINE)) > 2


def test_transactions_and_producers_are_read(dump: str) -> None:
    assert "producerId: 8 firstOffset: 400 lastOffset: 418 lastStableOffset: 409" in dump
    last = r"producerId: 7 producerEpoch: 0 .*lastTimestamp: \d+ .*firstSequence: 198 lastSequence: 199"
    assert re.search(last, dump)
    ended = (
        r"producerId: 8 producerEpoch: 0 coordinatorEpoch: 3 currentTxnFirstOffset: (None|OptionalLong.empty)"
    )
    assert re.search(ended, dump)


def test_indexes_pass_the_sanity_check(directory: Path, dump: str) -> None:
    files = ",".join(str(path) for path in sorted(directory.glob("*index")) if path.suffix != ".txnindex")
    command = java_command("org.apache.kafka.tools.DumpLogSegments", "--index-sanity-check", "--files", files)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("passed sanity check") == files.count(",") + 1
    assert "Exception" not in done.stderr and dump


def test_sizes_are_whole_entries(directory: Path) -> None:
    for kind, size in (("index", 8), ("timeindex", 12), ("txnindex", 34)):
        for path in directory.glob(f"*.{kind}"):
            assert path.stat().st_size % size == 0
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n1 160\n2 320\n"
    assert (directory / f"{END:020d}.snapshot").exists()
