"""Share groups from outside, in single protocol messages: members, offsets, state, and what survives a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from tidemill_peer import TidemillPeer
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.model.ids import uuid_text
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.messages import alter_share_group_offsets as alter
from tidemill.wire.messages import delete_share_group_offsets as delete
from tidemill.wire.messages import describe_share_group_offsets as describe
from tidemill.wire.messages import initialize_share_group_state as initialize
from tidemill.wire.messages import read_share_group_state as read
from tidemill.wire.messages import write_share_group_state as write
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.share_group_describe import ShareGroupDescribeRequest
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

GROUP, TOPIC = "workers", "jobs"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with TidemillPeer(data_directory=tmp_path / "data") as broker:
        create_topic(broker.bootstrap, TOPIC, 3, {})
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        yield _ready(client)


def _ready(client: WireClient) -> WireClient:
    client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
    wait_until(lambda: _described(client).error_code not in (14, 15, 16), "the coordinator")
    return client


def _described(client: WireClient) -> Any:
    return client.call(ShareGroupDescribeRequest(group_ids=[GROUP])).groups[0]


def _beat(client: WireClient, member_id: str, epoch: int = 0, **fields: Any) -> ShareGroupHeartbeatResponse:
    if epoch == 0:
        fields["subscribed_topic_names"] = [TOPIC]
    request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
    response: ShareGroupHeartbeatResponse = client.call(request)
    return response


def _partitions(response: ShareGroupHeartbeatResponse) -> list[int]:
    assert response.error_code == 0 and response.assignment is not None, response
    return [index for topic in response.assignment.topic_partitions for index in topic.partitions]


def _offsets(client: WireClient) -> dict[int, tuple[int, int]]:
    """Start offset and lag by partition."""
    asked = describe.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=None)
    (group,) = client.call(describe.DescribeShareGroupOffsetsRequest(groups=[asked])).groups
    assert group.error_code == 0, group
    return {
        found.partition_index: (found.start_offset, found.lag)
        for topic in group.topics
        for found in topic.partitions
    }


def _topic_id(client: WireClient) -> bytes:
    topic_id: bytes = (
        client.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])).topics[0].topic_id
    )
    return topic_id


def test_the_feature_is_finalised(client: WireClient) -> None:
    answer = client.call(ApiVersionsRequest(client_software_name="a-test", client_software_version="1"))
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels["share.version"] == 1


def test_a_first_member_may_read_at_once(client: WireClient) -> None:
    assert _partitions(_beat(client, "a")) == [0, 1, 2]
    assert _partitions(_beat(client, "b")) == [2]
    assert _partitions(_beat(client, "a", 2)) == [0, 1]
    group = client.call(ShareGroupDescribeRequest(group_ids=[GROUP, "x"], include_authorized_operations=True))
    mine, other = group.groups
    assert (mine.group_state, mine.assignor_name, mine.group_epoch) == ("Stable", "simple", 4)
    assert {member.member_id: member.client_host for member in mine.members} == dict.fromkeys(
        "ab", "/127.0.0.1"
    )
    assert mine.authorized_operations > 0
    assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_is_no_other_group(client: WireClient) -> None:
    _beat(client, "a")
    (listed,) = client.call(ListGroupsRequest(types_filter=["share"])).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == (GROUP, "share", "share")
    assert not client.call(ListGroupsRequest(types_filter=["classic", "consumer"])).groups
    (classic,) = client.call(DescribeGroupsRequest(groups=[GROUP])).groups
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_described_altered_and_deleted(client: WireClient) -> None:
    _beat(client, "a")
    assert _offsets(client) == {0: (-1, -1), 1: (-1, -1), 2: (-1, -1)}
    wanted = alter.AlterShareGroupOffsetsRequestTopic(
        topic_name=TOPIC,
        partitions=[
            alter.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0)
            for index in (1, 7)
        ],
    )
    request = alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[wanted])
    assert client.call(request).error_code == ErrorCode.NON_EMPTY_GROUP
    _beat(client, "a", -1)
    (topic,) = client.call(request).responses
    assert [each.error_code for each in topic.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert _offsets(client) == {0: (-1, -1), 1: (0, 0), 2: (-1, -1)}
    gone = [delete.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in (TOPIC, "mail")]
    deleted = client.call(delete.DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=gone))
    assert [each.error_code for each in deleted.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert _offsets(client) == {}


def test_a_group_may_have_a_start_before_its_first_member(client: WireClient) -> None:
    assert _offsets(client) == {}, "nobody knows the group, and that is no error"
    wanted = alter.AlterShareGroupOffsetsRequestTopic(
        topic_name=TOPIC,
        partitions=[
            alter.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
            for index, offset in ((0, 0), (1, 1), (2, -1))
        ],
    )
    (topic,) = client.call(alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[wanted])).responses
    beyond = ErrorCode.OFFSET_OUT_OF_RANGE
    assert {each.partition_index: each.error_code for each in topic.partitions} == {
        0: 0,
        1: beyond,
        2: beyond,
    }
    assert _offsets(client) == {0: (0, 0)}
    assert _partitions(_beat(client, "a")) == [0, 1, 2]
    assert _offsets(client)[0] == (0, 0)


def test_a_topic_that_nobody_knows(client: WireClient) -> None:
    asked = describe.DescribeShareGroupOffsetsRequestGroup(
        group_id=GROUP,
        topics=[describe.DescribeShareGroupOffsetsRequestTopic(topic_name="mail", partitions=[0])],
    )
    answer = client.call(describe.DescribeShareGroupOffsetsRequest(groups=[asked]))
    (partition,) = answer.groups[0].topics[0].partitions
    assert (partition.error_code, partition.start_offset, partition.lag) == (0, -1, -1), (
        "nothing is read there"
    )
    wanted = alter.AlterShareGroupOffsetsRequestTopic(
        topic_name="mail",
        partitions=[alter.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)],
    )
    request = alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[wanted])
    (refused,) = client.call(request).responses[0].partitions
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not client.call(ListGroupsRequest()).groups
    _beat(client, "a")
    assert client.call(request).error_code == ErrorCode.NON_EMPTY_GROUP, "that is said first"


def test_state_of_nothing(client: WireClient) -> None:
    topic = read.ReadStateData(topic_id=_topic_id(client), partitions=[])
    assert not client.call(read.ReadShareGroupStateRequest(group_id=GROUP, topics=[topic])).results
    topic.partitions = [read.PartitionData()]
    assert not client.call(read.ReadShareGroupStateRequest(group_id="", topics=[topic])).results


def test_a_group_without_a_name(client: WireClient) -> None:
    nameless = ErrorCode.INVALID_GROUP_ID
    assert client.call(ShareGroupDescribeRequest(group_ids=[""])).groups[0].error_code == nameless
    assert client.call(alter.AlterShareGroupOffsetsRequest(group_id="")).error_code == nameless
    assert client.call(delete.DeleteShareGroupOffsetsRequest(group_id="")).error_code == nameless


def test_a_group_is_deleted_with_its_state(client: WireClient) -> None:
    _beat(client, "a")
    assert client.call(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code == 68
    _beat(client, "a", -1)
    assert client.call(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code == 0
    assert not client.call(ListGroupsRequest()).groups
    data = read.ReadStateData(topic_id=_topic_id(client), partitions=[read.PartitionData()])
    answer = client.call(read.ReadShareGroupStateRequest(group_id=GROUP, topics=[data]))
    assert answer.results[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_share_coordinator_is_found_by_its_key(client: WireClient) -> None:
    key = f"{GROUP}:{uuid_text(_topic_id(client))}:0"
    request = FindCoordinatorRequest(
        key_type=2, coordinator_keys=[key, "no:key", f"{key}:0", "g:x:0", key[:-1]]
    )
    found, *refused = client.call(request).coordinators
    assert found.error_code == 0 and found.port > 0
    assert {each.error_code for each in refused} == {ErrorCode.INVALID_REQUEST}


def test_members_and_state_survive_a_kill(broker: BrokerProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        epoch = _beat(_ready(client), "a").member_epoch
        topic_id = _topic_id(client)
        _write_state(client, topic_id)
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        _ready(client)
        assert _beat(client, "a", epoch).error_code == 0, "it is still a member"
        wait_until(lambda: _read_state(client, topic_id) not in (14, 15, 16), "the share coordinator")
        assert _read_state(client, topic_id) == (7, 40, [(42, 43, 2, 3)])


def test_the_state_log_is_pruned(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "share.coordinator.snapshot.update.records.per.snapshot": 5,
        "share.coordinator.state.topic.prune.interval.ms": 200,
        "share.coordinator.cold.partition.snapshot.interval.ms": 400,
        "share.coordinator.state.topic.num.partitions": 1,
    }
    with TidemillPeer(data_directory=tmp_path / "data", settings=settings) as broker:
        create_topic(broker.bootstrap, TOPIC, 3, {})
        with WireClient(broker.bootstrap) as client:
            _beat(_ready(client), "a")
            topic_id = _topic_id(client)
            for _ in range(20):
                _write_state(client, topic_id)
            wait_until(lambda: _log_start(client) > 20, "the log to be cut")
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            wait_until(lambda: _read_state(client, topic_id) not in (14, 15, 16), "the share coordinator")
            assert _read_state(client, topic_id) == (7, 40, [(42, 43, 2, 3)])
            assert sorted(_offsets(_ready(client))) == [0, 1, 2], "cold partitions have their state"


def _log_start(client: WireClient) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-2, current_leader_epoch=-1)
    topics = [ListOffsetsTopic(name="__share_group_state", partitions=[asked])]
    answer = client.call(ListOffsetsRequest(replica_id=-1, topics=topics))
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def _write_state(client: WireClient, topic_id: bytes) -> None:
    new = initialize.PartitionData(partition=1, state_epoch=7, start_offset=20)
    data = initialize.InitializeStateData(topic_id=topic_id, partitions=[new])
    begun = client.call(initialize.InitializeShareGroupStateRequest(group_id=GROUP, topics=[data]))
    assert begun.results[0].partitions[0].error_code == 0
    batch = write.StateBatch(first_offset=42, last_offset=43, delivery_state=2, delivery_count=3)
    changed = write.PartitionData(partition=1, state_epoch=7, start_offset=40, state_batches=[batch])
    topics = [write.WriteStateData(topic_id=topic_id, partitions=[changed])]
    written = client.call(write.WriteShareGroupStateRequest(group_id=GROUP, topics=topics))
    assert written.results[0].partitions[0].error_code == 0


def _read_state(client: WireClient, topic_id: bytes) -> object:
    data = read.ReadStateData(topic_id=topic_id, partitions=[read.PartitionData(partition=1, leader_epoch=9)])
    answer = client.call(read.ReadShareGroupStateRequest(group_id=GROUP, topics=[data]))
    (found,) = answer.results[0].partitions
    if found.error_code:
        return found.error_code
    batches = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in found.state_batches
    ]
    return found.state_epoch, found.start_offset, batches
