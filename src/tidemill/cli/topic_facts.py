"""What there is to know about topics, gathered from several administration calls into plain values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.cli.connection import Connection
from tidemill.cli.errors import CommandError, refusal

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, OffsetSpec

INTERNAL_PREFIXES = ("__", "tidemill.")
DEFAULT_SOURCES = {"DEFAULT_CONFIG", "STATIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"}


class TopicSummary(NamedTuple):
    topic: str
    partitions: int
    replicas: int


class PartitionFacts(NamedTuple):
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    first_offset: int | None
    next_offset: int | None

    def as_row(self) -> tuple[object, ...]:
        return (
            self.partition,
            "none" if self.leader is None else self.leader,
            ",".join(map(str, self.replicas)),
            ",".join(map(str, self.in_sync)),
            "?" if self.first_offset is None else self.first_offset,
            "?" if self.next_offset is None else self.next_offset,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class TopicFacts:
    topic: str
    topic_id: str
    is_internal: bool
    partitions: list[PartitionFacts]
    configs: dict[str, str]
    """Those that differ from the broker's defaults."""

    def as_json(self) -> dict[str, Any]:
        facts = dataclasses.asdict(self)
        facts["partitions"] = [partition._asdict() for partition in self.partitions]
        return facts


def topic_summaries(connection: Connection, internal: bool) -> list[TopicSummary]:
    from confluent_kafka import KafkaException

    admin = connection.admin()
    try:
        topics = admin.list_topics(timeout=connection.timeout_seconds).topics
    except KafkaException as error:
        raise refusal(error.args[0], "the list of topics", connection.bootstrap) from error
    return [
        TopicSummary(
            name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0)
        )
        for name, topic in sorted(topics.items())
        if internal or not name.startswith(INTERNAL_PREFIXES)
    ]


def describe_topics(connection: Connection, names: list[str]) -> list[TopicFacts]:
    if not names:
        return []
    from confluent_kafka import TopicCollection

    admin = connection.admin()
    futures = admin.describe_topics(TopicCollection(names), request_timeout=connection.timeout_seconds)
    descriptions = [connection.result(futures[name], f"topic {name}") for name in names]
    offsets = _offsets(connection, admin, descriptions)
    return [
        TopicFacts(
            topic=description.name,
            topic_id=str(description.topic_id),
            is_internal=bool(description.is_internal),
            partitions=[_partition(description.name, info, offsets) for info in description.partitions],
            configs=_changed_configs(connection, admin, description.name),
        )
        for description in descriptions
    ]


Offsets = dict[tuple[str, int, bool], int]
"""(topic, partition, whether it is the first) to offset; a partition without a leader is missing."""


def _offsets(connection: Connection, admin: AdminClient, descriptions: list[Any]) -> Offsets:
    from confluent_kafka import TopicPartition

    partitions = [
        TopicPartition(description.name, info.id)
        for description in descriptions
        for info in description.partitions
    ]
    found: Offsets = {}
    for is_first, spec in _both_ends():
        futures = admin.list_offsets(
            dict.fromkeys(partitions, spec), request_timeout=connection.timeout_seconds
        )
        for partition, future in futures.items():
            try:
                answer = connection.result(future, f"partition {partition.topic}-{partition.partition}")
            except CommandError:
                continue
            found[partition.topic, partition.partition, is_first] = answer.offset
    return found


def _both_ends() -> tuple[tuple[bool, OffsetSpec], ...]:
    from confluent_kafka.admin import OffsetSpec

    first, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return (True, first), (False, latest)


def _partition(topic: str, info: Any, offsets: Offsets) -> PartitionFacts:
    has_leader = info.leader is not None and info.leader.id >= 0
    return PartitionFacts(
        partition=info.id,
        leader=info.leader.id if has_leader else None,
        replicas=[node.id for node in info.replicas],
        in_sync=[node.id for node in info.isr],
        first_offset=offsets.get((topic, info.id, True)),
        next_offset=offsets.get((topic, info.id, False)),
    )


def _changed_configs(connection: Connection, admin: AdminClient, name: str) -> dict[str, str]:
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, name)
    futures = admin.describe_configs([resource], request_timeout=connection.timeout_seconds)
    entries = connection.result(futures[resource], f"topic {name}")
    return {
        entry.name: entry.value
        for entry in sorted(entries.values(), key=lambda entry: str(entry.name))
        if ConfigSource(entry.source).name not in DEFAULT_SOURCES and not entry.is_synonym
    }
