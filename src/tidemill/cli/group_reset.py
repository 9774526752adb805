"""Where a group shall go on reading: the new offset of each partition, before anything is changed.

earliest, latest     the ends of what the partition holds
offset N             brought within those ends
time WHEN            the first message at or after it; the end if there is none
shift N              from the committed offset, forward or back, brought within the ends
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError
from tidemill.cli.group_facts import Place, committed_offsets, find_offsets, offset_spec

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class Target(enum.Enum):
    EARLIEST = enum.auto()
    LATEST = enum.auto()
    OFFSET = enum.auto()
    TIME = enum.auto()
    SHIFT = enum.auto()


class Goal(NamedTuple):
    target: Target
    number: int = 0
    """An offset, milliseconds, or a distance, as the target says."""


class Move(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    new: int


def plan(connection: Connection, group: str, topics: list[str], goal: Goal) -> list[Move]:
    """The moves of all partitions of these topics (`TOPIC` or `TOPIC:PARTITION`), or of all that are committed."""
    admin = connection.admin()
    committed = committed_offsets(connection, admin, group)
    places = _places(connection, admin, topics) if topics else sorted(committed)
    if not places:
        raise CommandError(f"group {group} has committed nothing: name topics with --topic")
    new = _new_offsets(connection, admin, places, committed, goal)
    return [Move(*place, committed.get(place), new[place]) for place in places]


def carry_out(connection: Connection, group: str, moves: list[Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    admin = connection.admin()
    offsets = [TopicPartition(move.topic, move.partition, move.new) for move in moves]
    futures = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])
    done = connection.result(futures[group], f"group {group}")
    for each in done.topic_partitions:
        if each.error is not None:
            raise CommandError(
                f"group {group} did not take the offset of {each.topic}-{each.partition} "
                f"({each.error.name()}): stop its members first"
            )


def _places(connection: Connection, admin: AdminClient, texts: list[str]) -> list[Place]:
    known = admin.list_topics(timeout=connection.timeout_seconds).topics
    places: set[Place] = set()
    for text in texts:
        topic, _, partition = text.partition(":")
        if topic not in known:
            raise CommandError(f"topic {topic} does not exist: `tidemill topics list` shows what is there")
        wanted = [int(partition)] if partition.isdigit() else sorted(known[topic].partitions)
        if not set(wanted) <= set(known[topic].partitions) or (partition and not partition.isdigit()):
            raise CommandError(f"topic {topic} has no partition {partition}")
        places.update((topic, each) for each in wanted)
    return sorted(places)


def _new_offsets(
    connection: Connection, admin: AdminClient, places: list[Place], committed: dict[Place, int], goal: Goal
) -> dict[Place, int]:
    spec = offset_spec()
    first = find_offsets(connection, admin, places, spec.earliest())
    end = find_offsets(connection, admin, places, spec.latest())
    if goal.target is Target.EARLIEST:
        return first
    if goal.target is Target.LATEST:
        return end
    if goal.target is Target.TIME:
        found = find_offsets(connection, admin, places, spec.for_timestamp(goal.number))
        return {place: found[place] if found[place] >= 0 else end[place] for place in places}
    base = committed if goal.target is Target.SHIFT else {}
    missing = [place for place in places if goal.target is Target.SHIFT and place not in committed]
    if missing:
        raise CommandError(f"there is no committed offset to shift for {missing[0][0]}-{missing[0][1]}")
    return {place: min(max(base.get(place, 0) + goal.number, first[place]), end[place]) for place in places}
