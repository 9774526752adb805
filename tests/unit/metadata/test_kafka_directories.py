"""Directories that Apache Kafka 4.3.1 wrote: read, continued, and read again.

`fixed-voters` was formatted with `controller.quorum.voters` and holds topics made, changed and deleted, a
credential, a quota and two snapshots; `kraft-version-1` was formatted with `--standalone`. Both nodes were
stopped cleanly, so their partitions have no leader.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest
from metadata_quorum import QuorumNode

from tidemill.metadata import records as r
from tidemill.metadata.image import ConfigResource, ResourceType
from tidemill.metadata.quorum_state import decode_quorum_state
from tidemill.metadata.topics import NewTopic
from tidemill.ports.disk import Disk

WRITTEN_BY_KAFKA = pathlib.Path(__file__).parent / "kafka_4_3_1"
LOG = "__cluster_metadata-0"


def copy_of(name: str, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(WRITTEN_BY_KAFKA / name, tmp_path / name))


def test_everything_in_it_is_understood(tmp_path: pathlib.Path) -> None:
    directory = copy_of("fixed-voters", tmp_path)
    node = QuorumNode(Disk(), str(directory))
    image = node.quorum.image
    assert set(image.topics) == {"orders", "a.b"} and len(image.topics["orders"].partitions) == 5
    assert image.configs[ConfigResource(ResourceType.TOPIC, "orders")] == {
        "retention.ms": "1000", "cleanup.policy": "compact,delete", "segment.bytes": "2000000",
    }  # fmt: skip
    assert image.config_of(ResourceType.BROKER, "")["log.retention.ms"] == "5000"
    assert image.next_producer_id == 1000
    assert image.features["metadata.version"] == 30 and image.features["transaction.version"] == 2
    carried = {type(record) for record in image.carried.values()}
    assert carried == {r.UserScramCredentialRecord, r.ClientQuotaRecord, r.RegisterControllerRecord}
    node.stop()


def test_partitions_that_it_left_without_a_leader_are_led_again(tmp_path: pathlib.Path) -> None:
    node = QuorumNode(Disk(), str(copy_of("fixed-voters", tmp_path)))
    for _, _, partition in node.quorum.image.partitions():
        assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 2)
        assert partition.eligible_leader_replicas == ()
    assert node.quorum.leader_epoch == 2
    node.stop()


@pytest.mark.parametrize("damaged", [0, 1, 2], ids=["whole", "newest damaged", "both damaged"])
def test_the_image_is_the_same_with_and_without_its_snapshots(tmp_path: pathlib.Path, damaged: int) -> None:
    directory = copy_of("fixed-voters", tmp_path)
    for checkpoint in sorted((directory / LOG).glob("*.checkpoint"), reverse=True)[:damaged]:
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    node = QuorumNode(Disk(), str(directory))
    whole = QuorumNode(Disk(), str(copy_of("fixed-voters", tmp_path / "whole")))
    for part in ("topics", "configs", "features", "carried", "next_producer_id", "offset"):
        assert getattr(node.quorum.image, part) == getattr(whole.quorum.image, part)
    node.stop()
    whole.stop()


@pytest.mark.parametrize(("name", "data_version"), [("fixed-voters", 0), ("kraft-version-1", 1)])
def test_it_is_continued(tmp_path: pathlib.Path, name: str, data_version: int) -> None:
    directory = copy_of(name, tmp_path)
    node = QuorumNode(Disk(), str(directory))
    node.commit(node.controller.create_topics(node.quorum.latest_image, [NewTopic("ours", 2)]))
    node.snapshot()
    node.restart()
    assert "ours" in node.quorum.image.topics and len(node.quorum.image.topics) >= 2
    state = decode_quorum_state((directory / LOG / "quorum-state").read_bytes())
    assert (state.leader_epoch, state.data_version) == (3, data_version)
    node.stop()


def test_what_the_storage_tool_prepared_begins_a_new_cluster(tmp_path: pathlib.Path) -> None:
    directory = copy_of("kraft-version-1", tmp_path)
    for file in (directory / LOG).iterdir():
        if file.suffix != ".checkpoint":
            file.unlink()
    node = QuorumNode(Disk(), str(directory))
    assert node.quorum.image.features["group.version"] == 1
    node.stop()
