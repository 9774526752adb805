"""What there is to know about share groups: state, members, and where each partition stands.

A share group has no committed offsets. It stands at its start offset, before which everything is done with; the lag
counts what is not done with from there on. Several members may read one partition.

Limits: librdkafka does not describe share groups, so these commands ask by themselves (`wire_connection`). Brokers that
want TLS or a login cannot be asked this way; there, share groups are not shown.
"""

from __future__ import annotations

from typing import Any

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError
from tidemill.cli.group_facts import GroupFacts, GroupSummary, SharePartitionFacts
from tidemill.cli.wire_connection import WireApi, WireCluster, speaks_plaintext
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidemill.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

SHARE = "share"
FIND_COORDINATOR = WireApi(10, "FindCoordinator", FindCoordinatorRequest, FindCoordinatorResponse)
LIST_GROUPS = WireApi(16, "ListGroups", ListGroupsRequest, ListGroupsResponse)
SHARE_DESCRIBE = WireApi(77, "ShareGroupDescribe", ShareGroupDescribeRequest, ShareGroupDescribeResponse)
SHARE_OFFSETS = WireApi(
    90, "DescribeShareGroupOffsets", DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse
)


def share_group_summaries(connection: Connection) -> list[GroupSummary]:
    """The share groups of all brokers; none where share groups are not known."""
    if not speaks_plaintext(connection):
        return []
    with WireCluster(connection) as cluster:
        if not cluster.knows(SHARE_DESCRIBE):
            return []
        answers = cluster.ask_all(LIST_GROUPS, ListGroupsRequest(types_filter=[SHARE])).values()
    return [
        GroupSummary(group.group_id, group.group_state.lower(), SHARE)
        for answer in answers
        for group in answer.groups
    ]


def describe_share_group(connection: Connection, name: str) -> GroupFacts | None:
    """None if there is no share group of this name."""
    if not speaks_plaintext(connection):
        return None
    with WireCluster(connection) as cluster:
        if not cluster.knows(SHARE_DESCRIBE):
            return None
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        (coordinator,) = cluster.ask_any(FIND_COORDINATOR, asked).coordinators
        if coordinator.error_code:
            raise CommandError(f"group {name} has no coordinator now: {coordinator.error_message}")
        request = ShareGroupDescribeRequest(group_ids=[name])
        (group,) = cluster.ask(coordinator.node_id, SHARE_DESCRIBE, request).groups
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        if group.error_code:
            raise CommandError(f"group {name}: {group.error_message or ErrorCode(group.error_code).name}")
        partitions = _partitions(cluster, coordinator.node_id, group)
    members = [_member(member) for member in group.members]
    return GroupFacts(name, SHARE, group.group_state.lower(), group.assignor_name, members, partitions)


def _partitions(cluster: WireCluster, broker: int, group: DescribedGroup) -> list[SharePartitionFacts]:
    readers: dict[tuple[str, int], list[str]] = {}
    for member in group.members:
        for topic in member.assignment.topic_partitions:
            for index in topic.partitions:
                readers.setdefault((topic.topic_name, index), []).append(member.member_id)
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group.group_id, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    (offsets,) = cluster.ask(broker, SHARE_OFFSETS, request).groups
    known = {
        (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
        for topic in offsets.topics
        for each in topic.partitions
    }
    facts = []
    for place in sorted(known.keys() | readers.keys()):
        start, lag = known.get(place, (-1, -1))
        who = ", ".join(sorted(readers.get(place, [])))
        facts.append(SharePartitionFacts(*place, None if start < 0 else start, None if lag < 0 else lag, who))
    return facts


def _member(member: Any) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.client_host,
        "partitions": sum(len(topic.partitions) for topic in member.assignment.topic_partitions),
    }
