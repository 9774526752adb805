"""Apache Kafka's DumpLogSegments reads the files that we write: logs, indexes, producer snapshots, metadata.

The tool ends with exit code 0 whatever it finds, so its words are searched for complaints.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka_tools import complaints, dump_log, dumped_records
from sample_data import SHORTENED_TO, TRANSACTIONS, Written
from tidemill_peer import TidemillPeer

METADATA = "__cluster_metadata-0"


def files(written: Written, pattern: str) -> list[Path]:
    found = sorted(written.directory.glob(pattern))
    assert found, f"there is no {pattern} in {written.directory}"
    return found


def assert_no_complaint(text: str) -> None:
    assert not complaints(text), "Kafka complains:\n" + "\n".join(complaints(text)[:20])


def test_logs_hold_what_was_written(written_by_us: Written) -> None:
    text = dump_log(files(written_by_us, "*-[0-9]/*.log"), "--print-data-log", "--deep-iteration")
    assert_no_complaint(text)
    assert "isvalid: true" in text
    dumped = _records_by_partition(text)
    for (topic, partition), records in written_by_us.sample.records.items():
        if topic == TRANSACTIONS:
            continue  # its file also holds what was aborted
        found = [
            record
            for record in dumped[f"{topic}-{partition}"]
            if topic != "shortened" or record[0] >= SHORTENED_TO
        ]
        expected = [(record.offset, record.key, record.value) for record in records]
        assert found == expected, f"{topic}-{partition}: {_first_difference(found, expected)}"


def _records_by_partition(text: str) -> dict[str, list[tuple[int, str | None, str | None]]]:
    """The tool's output, cut at the lines that name the next file."""
    by_partition: dict[str, list[tuple[int, str | None, str | None]]] = {}
    for part in text.split("Dumping ")[1:]:
        path, _, body = part.partition("\n")
        by_partition.setdefault(Path(path).parent.name, []).extend(
            (r.offset, r.key, r.payload) for r in dumped_records(body)
        )
    return by_partition


def _first_difference(found: list[Any], expected: list[Any]) -> str:
    for mine, theirs in zip(found, expected, strict=False):
        if mine != theirs:
            return f"Kafka read {mine}, written was {theirs}"
    return f"Kafka read {len(found)} records, written were {len(expected)}"


def test_indexes_pass_the_sanity_check(written_by_us: Written) -> None:
    indexes = files(written_by_us, "*-[0-9]/*.index") + files(written_by_us, "*-[0-9]/*.timeindex")
    text = dump_log(indexes, "--index-sanity-check")
    assert_no_complaint(text)
    fine = [path for path in indexes if f"{path} passed sanity check." in text or f"{path} is empty." in text]
    assert not set(indexes) - set(fine), f"not passed: {sorted(map(str, set(indexes) - set(fine)))}"
    assert "passed sanity check" in text


def test_index_entries_agree_with_the_log(written_by_us: Written) -> None:
    """Without the flag the tool walks through every entry and looks it up in the log."""
    indexes = files(written_by_us, "many-segments-0/*index")
    text = dump_log(indexes)
    assert_no_complaint(text)
    assert text.count("position: ") > 10, "the offset indexes are empty"
    assert text.count("timestamp: ") > 10, "the time indexes are empty"


def test_the_log_rolled_as_its_setting_says(written_by_us: Written) -> None:
    segments = files(written_by_us, "many-segments-0/*.log")
    assert len(segments) >= 3
    assert all(segment.stat().st_size <= 1_048_576 for segment in segments)


def test_producer_snapshots(written_by_us: Written) -> None:
    text = dump_log(files(written_by_us, "*-[0-9]/*.snapshot"))
    assert_no_complaint(text)
    assert "producerId: " in text
    assert "lastSequence: 119" in text, "the last sequence of a producer of 120 messages is missing"


def test_the_index_of_aborted_transactions(written_by_us: Written, written_by_kafka: Written) -> None:
    """The same transactions: the same entries, but for the ids of their producers."""
    ours, theirs = (
        re.sub(
            r"producerId: \d+",
            "",
            _dumped_without_paths(each.directory / f"{TRANSACTIONS}-0", ("*.txnindex",)),
        )
        for each in (written_by_us, written_by_kafka)
    )
    assert_no_complaint(ours)
    assert "firstOffset: 11" in theirs
    assert ours == theirs


def test_rebuilt_files_of_a_transactional_log(written_by_kafka: Written, data_copy: Path) -> None:
    """We lose everything but Kafka's log, recover, and Kafka's tool finds in our files what was in its own."""
    shutil.copytree(written_by_kafka.directory, data_copy)
    directory = data_copy / f"{TRANSACTIONS}-0"
    patterns = ("*.txnindex", "*.snapshot")
    before = _dumped_without_paths(directory, patterns)
    assert "firstOffset: " in before
    lost = [path for pattern in (*patterns, "*.index", "*.timeindex") for path in directory.glob(pattern)]
    for path in (*lost, data_copy / ".kafka_cleanshutdown", data_copy / "recovery-point-offset-checkpoint"):
        path.unlink()
    with TidemillPeer(data_directory=data_copy) as broker:
        broker.stop()
        assert _dumped_without_paths(directory, patterns) == before
        indexes = [*directory.glob("*.index"), *directory.glob("*.timeindex")]
        assert_no_complaint(dump_log(indexes, "--index-sanity-check"))


def _dumped_without_paths(directory: Path, patterns: tuple[str, ...]) -> str:
    """What the tool says of the files that hold something; the newest of each kind, where there are several."""
    newest = [
        max(found)
        for pattern in patterns
        if (found := [p for p in directory.glob(pattern) if p.stat().st_size])
    ]
    return dump_log(newest).replace(str(directory), "")


def test_metadata_log_decodes(written_by_us: Written) -> None:
    logs = files(written_by_us, f"{METADATA}/*.log") + sorted(
        written_by_us.directory.glob(f"{METADATA}/*.checkpoint")
    )
    text = dump_log(logs, "--cluster-metadata-decoder")
    assert_no_complaint(text)
    assert "LeaderChange" in text
    records = _metadata_records(text)
    kinds = Counter(record["type"] for record in records)
    for kind in (
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "PRODUCER_IDS_RECORD",
    ):
        assert kinds[kind], f"no {kind} among {dict(kinds)}"
    topics = {record["data"]["name"] for record in records if record["type"] == "TOPIC_RECORD"}
    assert topics >= set(written_by_us.sample.partitions)
    configs = [record["data"] for record in records if record["type"] == "CONFIG_RECORD"]
    assert {(c["resourceName"], c["name"], c["value"]) for c in configs} >= {
        (topic, name, value)
        for topic, config in written_by_us.sample.configs.items()
        for name, value in config.items()
    }


def _metadata_records(text: str) -> list[dict[str, Any]]:
    payloads = [record.payload for record in dumped_records(text) if record.payload]
    return [json.loads(payload) for payload in payloads]


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        ".kafka_cleanshutdown",
    ],
)
def test_files_of_the_directory_look_like_kafkas(
    written_by_us: Written, written_by_kafka: Written, name: str
) -> None:
    """The same file, with the same shape: values may differ, keys and the layout of lines may not."""
    ours, theirs = ((written.directory / name).read_text() for written in (written_by_us, written_by_kafka))
    assert _shape(name, ours) == _shape(name, theirs), f"ours:\n{ours}\nApache Kafka's:\n{theirs}"


def _shape(name: str, text: str) -> object:
    if name == "meta.properties":
        return sorted(line.partition("=")[0] for line in text.splitlines() if not line.startswith("#"))
    if name == ".kafka_cleanshutdown":
        return sorted(json.loads(text))
    lines = text.splitlines()
    assert int(lines[1]) == len(lines) - 2, f"{name}: line two is not the number of entries"
    return lines[0], {len(line.split()) for line in lines[2:]}


def test_partition_metadata_and_epochs_look_like_kafkas(
    written_by_us: Written, written_by_kafka: Written
) -> None:
    for name in ("partition.metadata", "leader-epoch-checkpoint"):
        ours, theirs = (
            (w.directory / "codec-none-0" / name).read_text() for w in (written_by_us, written_by_kafka)
        )
        shapes = [[len(line.split()) for line in text.splitlines()] for text in (ours, theirs)]
        assert shapes[0] == shapes[1], f"{name}, ours:\n{ours}\nApache Kafka's:\n{theirs}"
