"""Offline looks into logs: whole ones give no findings, each kind of damage gives its own."""

from __future__ import annotations

import struct

import pytest

from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.storage.config import LogConfig
from tidemill.storage.inspect import Finding, NotALog, Severity, dump, partitions_in, verify
from tidemill.storage.log import Log
from tidemill.storage.manager import LogManager
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    Record,
    build_batch,
    encode_batch,
    read_header,
)

TOPIC_ID = bytes(range(16))
FIRST = "/data/orders-0/00000000000000000000"


@pytest.fixture
def files() -> MemoryFiles:
    """A data directory with one log: several segments, an aborted transaction, a clean end."""
    files = MemoryFiles()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=100)
    manager = LogManager(files, SeededRandomness(1), ["/data"], lambda topic: config)
    manager.start(1, "c", 1000)
    log = manager.create(TopicPartition("orders", 0), TOPIC_ID, 1000)
    for number in range(20):
        append(log, build_batch([Record(0, 5000 + number, b"key%d" % number, b"value" * 10, (("h", b"1"),))]))
    transactional = {"producer_id": 4, "producer_epoch": 0}
    append(
        log,
        build_batch(
            [Record(0, 6000, b"a", b"b")], attributes=TRANSACTIONAL_MASK, base_sequence=0, **transactional
        ),
    )
    key, value = struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 3)
    append(
        log,
        build_batch(
            [Record(0, 6001, key, value)], attributes=TRANSACTIONAL_MASK | CONTROL_MASK, **transactional
        ),
    )
    append(log, build_batch([Record(0, 6002, b"c", b"d")]))
    manager.close(1)
    return files


def append(log: Log, batch: bytearray) -> None:
    log.append_as_leader(batch, read_header(batch), leader_epoch=2, now_ms=5000)
    log.update_high_watermark(log.log_end_offset)


def findings(files: MemoryFiles) -> list[Finding]:
    return list(verify("/data", files))


def log_files(files: MemoryFiles, suffix: str) -> list[str]:
    return [path for path in files.paths() if path.endswith(suffix)]


def errors(files: MemoryFiles) -> list[Finding]:
    return [finding for finding in findings(files) if finding.severity is Severity.ERROR]


def test_a_whole_log_gives_no_findings(files: MemoryFiles) -> None:
    assert findings(files) == []
    assert len(log_files(files, ".log")) > 2


def test_where_to_look(files: MemoryFiles) -> None:
    assert partitions_in("/data", files) == ["/data/orders-0"]
    assert partitions_in("/data/orders-0/", files) == ["/data/orders-0"]
    with pytest.raises(NotALog, match="does not exist"):
        partitions_in("/nowhere", files)
    files.make_directory("/empty")
    with pytest.raises(NotALog, match="neither segments"):
        partitions_in("/empty", files)


# -- dump ----------------------------------------------------------------------------------------------


def test_dump_of_batches_and_records(files: MemoryFiles) -> None:
    rows = list(dump("/data/orders-0", files, with_records=True))
    batches = [row for row in rows if row["kind"] == "batch"]
    records = [row for row in rows if row["kind"] == "record"]
    assert [row["base_offset"] for row in batches] == list(range(23))
    assert batches[0]["leader_epoch"] == 2 and batches[0]["compression"] == "none"
    assert records[3]["key"] == b"key3" and records[3]["headers"] == (("h", b"1"),)
    assert (records[21]["marker"], records[21]["coordinator_epoch"]) == ("abort", 3)
    few = dump("/data/orders-0", files, start_offset=5, end_offset=8)
    assert [row["base_offset"] for row in few] == [5, 6, 7]


def test_dump_of_the_other_files(files: MemoryFiles) -> None:
    assert next(dump(f"{FIRST}.index", files)) == {"kind": "index", "offset": 1, "position": 127}
    assert next(dump(f"{FIRST}.timeindex", files))["timestamp"] == 5001
    (abort,) = dump(log_files(files, ".txnindex")[0], files)
    assert (abort["producer_id"], abort["first_offset"], abort["last_offset"]) == (4, 20, 21)
    (producer,) = dump(log_files(files, ".snapshot")[-1], files)
    assert (producer["producer_id"], producer["last_offset"]) == (4, 20)
    with pytest.raises(NotALog):
        list(dump("/data/orders-0/00000000000000099999.log", files))


def test_dump_goes_on_after_damage(files: MemoryFiles) -> None:
    files.flip_bit(f"{FIRST}.log", 8 * 80)
    rows = list(dump("/data/orders-0", files))
    assert rows[0]["kind"] == "damage" and "checksum" in rows[0]["reason"]
    assert rows[1]["base_offset"] == 1


# -- verify --------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_one_error_at_its_place(files: MemoryFiles) -> None:
    files.flip_bit(f"{FIRST}.log", 8 * 200)
    (error,) = errors(files)
    assert (error.path, error.position, error.offset) == (f"{FIRST}.log", 127, 1)
    assert "the next whole batch is at position" in error.text
    assert str(error).startswith(f"error: {FIRST}.log (position 127, offset 1): its checksum is wrong")


def test_a_torn_tail_is_a_warning_in_the_last_segment_and_an_error_before(files: MemoryFiles) -> None:
    logs = log_files(files, ".log")
    files.tear(logs[-1], files.size(logs[-1]) - 3)
    assert findings(files)[0][:2] == (Severity.WARNING, logs[-1])
    files.tear(logs[0], files.size(logs[0]) - 3)
    assert [each.path for each in errors(files)] == [logs[0]]


def test_indexes_that_lie_are_warnings(files: MemoryFiles) -> None:
    files.write_atomic(f"{FIRST}.index", struct.pack(">iiii", 1, 128, 3, 381))
    (warning,) = findings(files)
    assert warning.severity is Severity.WARNING and "where no batch begins" in warning.text
    files.write_atomic(f"{FIRST}.index", struct.pack(">ii", 2, 127) + bytes(80))
    assert "names offset 2, but that batch ends at 1" in findings(files)[0].text
    files.write_atomic(f"{FIRST}.index", struct.pack(">ii", 500, 50_000))
    assert "beyond the log" in findings(files)[0].text
    files.write_atomic(f"{FIRST}.index", b"123")
    assert "no whole number" in findings(files)[0].text
    files.remove(f"{FIRST}.index")
    assert "missing" in findings(files)[0].text


def test_a_running_broker_has_no_index_of_its_active_segment_yet() -> None:
    files = MemoryFiles()
    append(Log.open(files, "/data/orders-0", LogConfig()), build_batch([Record(0, 5000, None, b"a")]))
    found = findings(files)
    assert len(found) == 2 and all(each.severity is Severity.NOTE for each in found)


def test_a_time_index_that_lies_is_a_warning(files: MemoryFiles) -> None:
    files.write_atomic(f"{FIRST}.timeindex", struct.pack(">qiqi", 5001, 1, 5000, 2))
    texts = [each.text for each in findings(files)]
    assert any("entries must grow" in text for text in texts)
    assert any("says 5000 at offset 2, the batches say 5002" in text for text in texts)


def test_a_missing_abort_is_an_error(files: MemoryFiles) -> None:
    path = log_files(files, ".txnindex")[0]
    files.write_atomic(path, struct.pack(">hqqqq", 0, 4, 20, 99, 20))
    texts = [each.text for each in errors(files)]
    assert any("would be served as committed" in text for text in texts)
    assert any("no abort marker" in text for text in texts)
    files.write_atomic(path, struct.pack(">hqqqq", 0, 5, 20, 21, 20) + b"x")
    texts = [each.text for each in errors(files)]
    assert any("names producer 5" in text for text in texts) and any(
        "no whole entry" in text for text in texts
    )


def test_small_files(files: MemoryFiles) -> None:
    files.flip_bit(log_files(files, ".snapshot")[-1], 200)
    files.write_atomic("/data/orders-0/leader-epoch-checkpoint", b"0\n1\n7 0\n")
    files.write_atomic("/data/orders-0/partition.metadata", b"what")
    files.write_atomic(f"{FIRST}.log.cleaned", b"")
    found = findings(files)
    assert [each.severity for each in found] == [
        Severity.NOTE, Severity.ERROR, Severity.WARNING, Severity.WARNING,
    ]  # fmt: skip
    assert "leader epoch is 2, the checkpoint says 7" in found[-1].text
    files.write_atomic("/data/orders-0/leader-epoch-checkpoint", b"nonsense")
    assert any("rebuilt from the batches" in each.text for each in findings(files))


def test_offsets_that_go_back_are_errors(files: MemoryFiles) -> None:
    second = log_files(files, ".log")[1]
    files.write_atomic(second, files.read_all(second) + files.read_all(f"{FIRST}.log"))
    assert any("is below" in each.text for each in errors(files))


def test_records_are_checked_behind_a_right_checksum(files: MemoryFiles) -> None:
    data = files.read_all(f"{FIRST}.log")
    header = read_header(data)
    broken = encode_batch(header._replace(max_timestamp=9999), data[HEADER_SIZE : header.size])
    files.write_atomic(f"{FIRST}.log", bytes(broken) + data[header.size :])
    assert [each.text for each in errors(files)] == ["the largest timestamp is 5000, the batch says 9999"]
    broken = encode_batch(header, b"\x7f" + data[HEADER_SIZE + 1 : header.size])
    files.write_atomic(f"{FIRST}.log", bytes(broken) + data[header.size :])
    assert "cannot be decoded" in errors(files)[0].text
    assert not [
        each for each in verify("/data", files, with_records=False) if each.severity is Severity.ERROR
    ]
