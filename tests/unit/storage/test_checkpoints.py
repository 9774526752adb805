"""The small files of a data directory, against Kafka's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.model.ids import TopicPartition
from tidemill.ports.disk import Disk
from tidemill.storage.checkpoints import (
    NO_BROKER_EPOCH,
    BadCheckpoint,
    MetaProperties,
    format_offsets,
    parse_offsets,
    read_meta,
    read_offsets,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta,
    write_offsets,
)

OFFSETS = {TopicPartition("orders", 0): 1200, TopicPartition("a.b_c-d", 11): 0}


def test_offsets_are_written_as_kafka_writes_them() -> None:
    assert format_offsets(OFFSETS) == "0\n2\norders 0 1200\na.b_c-d 11 0\n"
    assert parse_offsets("0\n2\norders 0 1200\na.b_c-d 11 0\n") == OFFSETS
    assert parse_offsets("0\n0\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0\n",
        "1\n0\n",
        "x\n0\n",
        "0\n2\na 0 1\n",
        "0\n1\na 0\n",
        "0\n1\na 0 b\n",
        "0\n0\na 0 1\n",
        "0\n-1\n",
    ],
)
def test_damaged_offsets_are_refused(text: str) -> None:
    with pytest.raises(BadCheckpoint):
        parse_offsets(text)


def test_offsets_on_disk(tmp_path: Path) -> None:
    path = f"{tmp_path}/recovery-point-offset-checkpoint"
    assert read_offsets(Disk(), path) == {}
    write_offsets(Disk(), path, OFFSETS)
    assert read_offsets(Disk(), path) == OFFSETS
    Path(path).write_bytes(b"\xff\xfe")
    with pytest.raises(BadCheckpoint, match="recovery-point"):
        read_offsets(Disk(), path)


def test_meta_properties_of_kafka(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#\n#Tue Nov 17 00:00:00 UTC 2026\ncluster.id=Zk5PPmJcQqKa1b2c3d4e5f\n"
        "directory.id=AAAAAAAAQACAAAAAAAAAAQ\nnode.id=3\nversion=1\n"
    )
    meta = read_meta(Disk(), str(tmp_path))
    assert meta == MetaProperties(
        3, "Zk5PPmJcQqKa1b2c3d4e5f", bytes.fromhex("00000000000040008000000000000001")
    )
    write_meta(Disk(), str(tmp_path), meta)
    assert read_meta(Disk(), str(tmp_path)) == meta


def test_meta_properties_of_an_old_kafka(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=abc\n")
    assert read_meta(Disk(), str(tmp_path)) == MetaProperties(3, "abc", None)


@pytest.mark.parametrize(
    "text",
    [
        "node.id=1\nversion=1",
        "cluster.id=a\nversion=1",
        "version=2",
        "node.id=x\ncluster.id=a",
        "version=\\u00",
        "version=1\nnode.id=1\ncluster.id=a\ndirectory.id=short",
    ],
)
def test_bad_meta_properties_name_their_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"meta\.properties"):
        read_meta(Disk(), str(tmp_path))


def test_an_unformatted_directory_has_no_meta(tmp_path: Path) -> None:
    assert read_meta(Disk(), str(tmp_path)) is None


def test_the_mark_of_a_clean_shutdown_is_taken_once(tmp_path: Path) -> None:
    write_clean_shutdown(Disk(), str(tmp_path), 17)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":17}'
    assert take_clean_shutdown(Disk(), str(tmp_path)) == 17
    assert take_clean_shutdown(Disk(), str(tmp_path)) is None


def test_an_empty_mark_counts(tmp_path: Path) -> None:
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert take_clean_shutdown(Disk(), str(tmp_path)) == NO_BROKER_EPOCH
