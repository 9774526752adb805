"""What there is to know about share groups: state, members, and where each partition stands.

A share group has no committed offsets. It stands at its start offset, before which everything is done with; the lag
counts what is not done with from there on. Several members may read one partition.

Limits: librdkafka does not describe share groups, so these commands ask by themselves (`plain_wire`). Brokers that want
TLS or a login cannot be asked this way; there, share groups are not shown.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError
from tidemill.cli.group_facts import GroupSummary
from tidemill.cli.plain_wire import PlainWire, can_talk
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

METADATA, FIND_COORDINATOR, LIST_GROUPS, SHARE_DESCRIBE, SHARE_OFFSETS = (
    (3, 12), (10, 4), (16, 5), (77, 1), (90, 1),
)  # fmt: skip
"""API key and version."""


class SharePartitionFacts(NamedTuple):
    topic: str
    partition: int
    start: int | None
    lag: int | None
    members: str

    def as_row(self) -> list[object]:
        return ["-" if cell is None or cell == "" else cell for cell in self]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareGroupFacts:
    group: str
    state: str
    assignor: str
    members: list[dict[str, Any]]
    partitions: list[SharePartitionFacts]

    def as_json(self) -> dict[str, Any]:
        partitions = [partition._asdict() for partition in self.partitions]
        return dataclasses.asdict(self) | {"type": "share", "partitions": partitions}


def share_group_summaries(connection: Connection) -> list[GroupSummary]:
    """The share groups of all brokers; none where share groups are not known."""
    address = _address(connection)
    if address is None:
        return []
    with PlainWire(connection, address) as wire:
        brokers = wire.call(*METADATA, MetadataRequest(topics=[]), MetadataResponse).brokers
    found: list[GroupSummary] = []
    for broker in brokers:
        with PlainWire(connection, f"{broker.host}:{broker.port}") as wire:
            asked = ListGroupsRequest(types_filter=["share"])
            listed = wire.call(*LIST_GROUPS, asked, ListGroupsResponse)
        found += [GroupSummary(group.group_id, group.group_state.lower(), "share") for group in listed.groups]
    return found


def describe_share_group(connection: Connection, name: str) -> ShareGroupFacts | None:
    """None if there is no share group of this name."""
    address = _address(connection)
    if address is None:
        return None
    with PlainWire(connection, address) as wire:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        (coordinator,) = wire.call(*FIND_COORDINATOR, asked, FindCoordinatorResponse).coordinators
    if coordinator.error_code:
        raise CommandError(f"group {name} has no coordinator now: {coordinator.error_message}")
    with PlainWire(connection, f"{coordinator.host}:{coordinator.port}") as wire:
        request = ShareGroupDescribeRequest(group_ids=[name])
        (group,) = wire.call(*SHARE_DESCRIBE, request, ShareGroupDescribeResponse).groups
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        if group.error_code:
            raise CommandError(f"group {name}: {group.error_message or ErrorCode(group.error_code).name}")
        return ShareGroupFacts(
            name,
            group.group_state.lower(),
            group.assignor_name,
            [_member(member) for member in group.members],
            _partitions(wire, group),
        )


def _address(connection: Connection) -> str | None:
    """The first broker, if it can be asked this way and knows share groups."""
    connection.check_reachable()
    if not can_talk(connection):
        return None
    address = connection.bootstrap.split(",")[0].strip()
    with PlainWire(connection, address) as wire:
        return address if wire.supports(*SHARE_DESCRIBE) else None


def _partitions(wire: PlainWire, group: DescribedGroup) -> list[SharePartitionFacts]:
    readers: dict[tuple[str, int], list[str]] = {}
    for member in group.members:
        for topic in member.assignment.topic_partitions:
            for index in topic.partitions:
                readers.setdefault((topic.topic_name, index), []).append(member.member_id)
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group.group_id, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    (offsets,) = wire.call(*SHARE_OFFSETS, request, DescribeShareGroupOffsetsResponse).groups
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
