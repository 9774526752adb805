"""`__consumer_offsets`, written by us and by Kafka in the same life of a group: the same records, read by either."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from decoded_records import decoded, without_chance
from kafka_peer import KafkaPeer
from kafka_tools import complaints, dump_log, dumped_records
from tidemill_peer import TidemillPeer
from waiting import wait_until

from tidemill.coordination.partitioning import partition_for
from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP, TOPIC = "orders", "t"
COORDINATOR_IS_BUSY = (14, 15, 16)
SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00"
ASSIGNMENT = b"\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
VARIABLE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
CHANCE = ("timestamp", "topicid")
SETTINGS: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}


def live(bootstrap: str) -> None:
    """A group from its first member to its last, and a commit of nobody's."""
    create_topic(bootstrap, TOPIC, 1, {})
    with WireClient(bootstrap) as connection:
        wait_until(lambda: _has_coordinator(connection), "a coordinator")
        member_id = _join(connection, "")
        assert _join(connection, member_id) == member_id
        assignment = SyncGroupRequestAssignment(member_id=member_id, assignment=ASSIGNMENT)
        synced = SyncGroupRequest(
            group_id=GROUP,
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        )
        assert connection.call(synced).error_code == 0
        _commit(connection, member_id, 1, 5)
        left = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=member_id)])
        assert connection.call(left).error_code == 0
        _commit(connection, "", -1, 7)


def end(bootstrap: str) -> None:
    with WireClient(bootstrap) as connection:
        assert connection.call(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code == 0


def _has_coordinator(connection: WireClient) -> bool:
    connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
    heartbeat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="nobody")
    return connection.call(heartbeat).error_code not in COORDINATOR_IS_BUSY


def _join(connection: WireClient, member_id: str) -> str:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )
    given: str = connection.call(request).member_id
    return given


def _commit(connection: WireClient, member_id: str, generation: int, offset: int) -> None:
    (topic,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])).topics
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=0, committed_metadata="note"
    )
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=[partition])],
    )
    assert connection.call(request).topics[0].partitions[0].error_code == 0


def records_of(broker: BrokerProcess) -> list[tuple[Any, Any]]:
    """Keys and values as Kafka's decoder prints them, without times and ids that chance made."""
    with broker:
        live(broker.bootstrap)
        end(broker.bootstrap)
        broker.stop()
        log = Path(broker.data_directory) / f"__consumer_offsets-{partition_for(GROUP, 50)}"
        text = dump_log(sorted(log.glob("*.log")), "--offsets-decoder")
        assert not complaints(text), text
    return [(_plain(record.key), _plain(record.payload)) for record in dumped_records(text)]


def _plain(text: str | None) -> Any:
    return without_chance(decoded(text and VARIABLE.sub("ID", text)), CHANCE)


def test_kafkas_decoder_sees_the_same_records(tmp_path: Path) -> None:
    ours = records_of(TidemillPeer(data_directory=tmp_path / "ours", settings=SETTINGS))
    newborn, *theirs = records_of(KafkaPeer(data_directory=tmp_path / "theirs", settings=SETTINGS))
    assert newborn[1]["data"]["generation"] == 0, "Kafka writes a group down before it has a generation"
    assert len(theirs) == 6
    assert ours == theirs


def _offsets_of_group(connection: WireClient) -> OffsetFetchResponseGroup:
    asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])])
    (group,) = connection.call(request, version=9).groups
    return group


def _is_loading(group: OffsetFetchResponseGroup) -> bool:
    return group.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize(("writer", "reader"), [(KafkaPeer, TidemillPeer), (TidemillPeer, KafkaPeer)])
def test_groups_move_with_the_directory(
    writer: type[BrokerProcess], reader: type[BrokerProcess], tmp_path: Path
) -> None:
    with writer(data_directory=tmp_path / "data", settings=SETTINGS) as first:
        live(first.bootstrap)
    with reader(data_directory=tmp_path / "data", settings=SETTINGS) as second:
        with WireClient(second.bootstrap) as connection:
            wait_until(lambda: _has_coordinator(connection), "a coordinator", 30)
            wait_until(lambda: not _is_loading(_offsets_of_group(connection)), "its offsets", 30)
            (found,) = _offsets_of_group(connection).topics[0].partitions
            assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (7, 0, "note")
            (group,) = connection.call(DescribeGroupsRequest(groups=[GROUP])).groups
            assert (group.error_code, group.group_state, group.protocol_type) == (0, "Empty", "consumer")
        end(second.bootstrap)
