from __future__ import annotations

import dataclasses

import pytest
from metadata_cluster import MetadataCluster, replayed

from tidemill.metadata import records as r
from tidemill.metadata.control_records import KRaftVersionRecord, RegisteredVoter, VotersRecord
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.quorum_state import QuorumState, decode_quorum_state
from tidemill.metadata.snapshot import (
    SnapshotId,
    VoterSet,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
    snapshot_id,
)
from tidemill.metadata.topics import NewTopic
from tidemill.model.errors import CorruptLog

SOME_VOTERS = VoterSet(1, VotersRecord(voters=[RegisteredVoter(voter_id=1, voter_directory_id=b"d" * 16)]))


def image_with(topics: int) -> MetadataImage:
    cluster = MetadataCluster(brokers=2)
    wanted = [NewTopic(f"topic-{index}", 2, configs=(("retention.ms", "7"),)) for index in range(topics)]
    cluster.run(cluster.controller.create_topics(cluster.image, wanted))
    cluster.replay([r.AccessControlEntryRecord(id=b"a" * 16), r.UserScramCredentialRecord(name="joe")])
    return dataclasses.replace(cluster.image, timestamp_ms=99)


@pytest.mark.parametrize("voters", [VoterSet(), SOME_VOTERS])
@pytest.mark.parametrize("topics", [0, 3, 800])
def test_a_snapshot_gives_its_image_back(topics: int, voters: VoterSet) -> None:
    image = image_with(topics)
    snapshot = decode_snapshot(b"".join(encode_snapshot(image, voters, now_ms=5)))
    assert (snapshot.voters, snapshot.timestamp_ms) == (voters, 99)
    again = replayed(snapshot.records)
    place = {"offset": image.offset, "epoch": image.epoch, "timestamp_ms": 99}
    assert dataclasses.replace(again, **place) == image


def test_the_name_says_the_end_and_the_epoch() -> None:
    image = MetadataImage(offset=83, epoch=1)
    assert snapshot_id(image).file_name == "00000000000000000084-0000000001.checkpoint"
    assert parse_snapshot_name(snapshot_id(image).file_name) == SnapshotId(84, 1)
    for name in ("bootstrap.checkpoint", "00000000000000000084-0000000001.checkpoint.part", "x"):
        assert parse_snapshot_name(name) is None


def test_a_snapshot_cut_anywhere_is_no_snapshot() -> None:
    data = b"".join(encode_snapshot(image_with(1), VoterSet(), now_ms=5))
    for length in range(len(data)):
        with pytest.raises(CorruptLog):
            decode_snapshot(data[:length])


def test_a_flipped_bit_is_found() -> None:
    data = b"".join(encode_snapshot(image_with(1), VoterSet(), now_ms=5))
    for position in range(17, len(data), 23):
        damaged = bytearray(data)
        damaged[position] ^= 4
        try:
            snapshot = decode_snapshot(bytes(damaged))
        except CorruptLog:
            continue
        assert snapshot == decode_snapshot(data), "only offsets and epochs are outside the checksum"


def test_voters_follow_their_control_records() -> None:
    assert SOME_VOTERS.ids == (1,)
    assert VoterSet().after(KRaftVersionRecord(kraft_version=1)).kraft_version == 1


class TestQuorumState:
    def test_both_versions_are_kafkas_bytes(self) -> None:
        assert QuorumState(1, 4, (1,)).encode() == (
            b'{"clusterId":"","leaderId":1,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,'
            b'"currentVoters":[{"voterId":1}],"data_version":0}'
        )
        assert QuorumState(1, 4, (), 1).encode() == (
            b'{"leaderId":1,"leaderEpoch":4,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
            b'"data_version":1}'
        )

    @pytest.mark.parametrize("state", [QuorumState(1, 4, (1, 2, 3)), QuorumState(-1, 0, (), 1)])
    def test_round_trip(self, state: QuorumState) -> None:
        assert decode_quorum_state(state.encode()) == state

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"leaderId":1}', b"\xff"])
    def test_damage_is_found(self, data: bytes) -> None:
        with pytest.raises(CorruptLog):
            decode_quorum_state(data)
