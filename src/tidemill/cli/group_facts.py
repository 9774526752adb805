"""What there is to know about groups: state, members, and how far behind they are.

The lag of a partition is the distance from the committed offset to the end of what consumers can read. A partition
without a committed offset has none: where a member begins there is its own decision (`auto.offset.reset`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
"""Topic and partition."""


class GroupSummary(NamedTuple):
    group: str
    state: str
    type: str


class PartitionFacts(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int | None
    member: str
    client: str
    host: str


class SharePartitionFacts(NamedTuple):
    topic: str
    partition: int
    start: int | None
    lag: int | None
    members: str


@dataclasses.dataclass(frozen=True, slots=True)
class GroupFacts:
    """Of a group of any type; what is known of a partition depends on it."""

    group: str
    type: str
    state: str
    assignor: str
    members: list[dict[str, Any]]
    partitions: list[PartitionFacts] | list[SharePartitionFacts]

    def as_json(self) -> dict[str, Any]:
        partitions = [partition._asdict() for partition in self.partitions]
        return dataclasses.asdict(self) | {"partitions": partitions}


def group_summaries(connection: Connection) -> list[GroupSummary]:
    admin = connection.admin()
    listed = connection.result(admin.list_consumer_groups(), "the list of groups")
    if listed.errors:
        raise CommandError(f"the list of groups is not complete: {listed.errors[0]}")
    return sorted(
        GroupSummary(group.group_id, group.state.name.lower(), group.type.name.lower())
        for group in listed.valid
    )


def describe_group(connection: Connection, name: str) -> GroupFacts:
    admin = connection.admin()
    subject = f"group {name}"
    described = connection.result(admin.describe_consumer_groups([name])[name], subject)
    state = described.state.name.lower()
    committed = committed_offsets(connection, admin, name)
    if state == "dead" and not committed:
        raise no_such_group(name)
    owners = {
        (place.topic, place.partition): member
        for member in described.members
        for place in member.assignment.topic_partitions
    }
    ends = find_offsets(connection, admin, sorted(committed.keys() | owners.keys()), offset_spec().latest())
    return GroupFacts(
        name,
        described.type.name.lower(),
        state,
        described.partition_assignor or "",
        [_member(member) for member in described.members],
        [_partition(place, committed.get(place), ends[place], owners.get(place)) for place in sorted(ends)],
    )


def no_such_group(name: str) -> CommandError:
    return CommandError(f"group {name} does not exist: `tidemill groups list` shows what is there")


def committed_offsets(connection: Connection, admin: AdminClient, name: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
    found: list[TopicPartition] = connection.result(futures[name], f"group {name}").topic_partitions
    return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}


def find_offsets(
    connection: Connection, admin: AdminClient, places: list[Place], where: Any
) -> dict[Place, int]:
    """The offset that `where` names in each of these partitions; -1 where there is none."""
    from confluent_kafka import TopicPartition

    asked = {TopicPartition(*place): where for place in places}
    futures = admin.list_offsets(asked) if asked else {}
    return {
        (place.topic, place.partition): connection.result(future, f"topic {place.topic}").offset
        for place, future in futures.items()
    }


def offset_spec() -> Any:
    """librdkafka's names for places in a partition, which it declares without types."""
    from confluent_kafka.admin import OffsetSpec

    return OffsetSpec


def _member(member: Any) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": len(member.assignment.topic_partitions),
    }


def _partition(place: Place, committed: int | None, end: int, owner: Any) -> PartitionFacts:
    lag = None if committed is None else max(0, end - committed)
    who = ("", "", "") if owner is None else (owner.member_id, owner.client_id, owner.host)
    return PartitionFacts(*place, committed, end, lag, *who)
