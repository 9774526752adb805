"""Decisions about topics: create, grow, delete.

The sentences and codes of refusals are Kafka's, because people search for them. As in Kafka a request may
create at most 10,000 partitions, and each topic succeeds or fails by itself. The records of a new topic
stand in the order `TopicRecord, ConfigRecord..., PartitionRecord...`, so that whoever replays them knows the
configuration of a partition before it exists.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from tidemill.metadata.assignments import Assigner, new_partition_records
from tidemill.metadata.decisions import ControllerSettings, Decision, Outcome
from tidemill.metadata.image import MetadataImage, ResourceType, TopicState, metric_name
from tidemill.metadata.records import ConfigRecord, RemoveTopicRecord, TopicRecord
from tidemill.metadata.topic_names import check_creatable
from tidemill.model.configs import BrokerLayers, ConfigEntry, topic_entries, topic_entry, validate_topic
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.ports.randomness import Randomness
from tidemill.wire.schema import Message

MAX_PARTITIONS_PER_REQUEST = 10_000
DEFAULT = -1
"""In a request: what the broker's properties say."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(partition, its brokers), if the client places the replicas itself."""
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TopicOutcome(Outcome):
    name: str = ""
    topic_id: bytes = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigEntry, ...] = ()
    """All keys with the values that count and where they come from."""


@dataclasses.dataclass(frozen=True, slots=True)
class TopicGrowth:
    name: str
    count: int
    """Of partitions afterwards."""
    assignments: tuple[tuple[int, ...], ...] | None = None
    """The brokers of each new partition, if the client places the replicas itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class TopicDeletion:
    """By name or by id, never by both."""

    name: str | None = None
    topic_id: bytes = ZERO_UUID


@dataclasses.dataclass(frozen=True, slots=True)
class DeletionOutcome(Outcome):
    name: str | None = None
    topic_id: bytes = ZERO_UUID


# -- create ---------------------------------------------------------------------------------------------


def create_topics(
    image: MetadataImage,
    settings: ControllerSettings,
    randomness: Randomness,
    topics: Sequence[NewTopic],
    *,
    validate_only: bool = False,
) -> Decision[list[TopicOutcome]]:
    """One outcome for each name, in the order of the request."""
    _check_total(_requested_partitions(topic, settings) for topic in topics)
    duplicates = _duplicates(topic.name for topic in topics)
    creation = _Creation(image, settings, randomness)
    outcomes = {topic.name: creation.attempt(topic, topic.name in duplicates) for topic in topics}
    return Decision([] if validate_only else creation.records, list(outcomes.values()))


class _Creation:
    """One CreateTopics request on its way; `records` grows with each topic that can be created."""

    def __init__(self, image: MetadataImage, settings: ControllerSettings, randomness: Randomness) -> None:
        self.records: list[Message] = []
        self._image = image
        self._randomness = randomness
        self._settings = settings
        self._assigner = Assigner(image, randomness)
        self._layers = settings.layers(image)
        self._inherited = _InheritedEntries(self._layers)
        self._metric_names: dict[str, str] = {}

    def attempt(self, topic: NewTopic, is_duplicate: bool) -> TopicOutcome:
        try:
            if is_duplicate:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            return self._create(topic)
        except ApiError as failure:
            return TopicOutcome(failure.code, failure.message or None, name=topic.name)

    def _create(self, topic: NewTopic) -> TopicOutcome:
        self._check_name(topic.name)
        configs = _checked_configs(topic, self._layers)
        replicas = self._replicas(topic)
        topic_id = self._randomness.uuid()
        self.records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        self.records.extend(_config_records(topic.name, configs))
        self.records.extend(new_partition_records(self._image, topic_id, 0, replicas))
        self._metric_names[metric_name(topic.name)] = topic.name
        return TopicOutcome(
            name=topic.name,
            topic_id=topic_id,
            partitions=len(replicas),
            replication_factor=len(replicas[0]),
            configs=self._inherited.overridden(configs),
        )

    def _check_name(self, name: str) -> None:
        check_creatable(name)
        if name in self._image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." not in name and "_" not in name:
            return
        metric = metric_name(name)
        colliding = self._image.topics_by_metric_name.get(metric) or self._metric_names.get(metric)
        if colliding is not None:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {colliding}",
            )

    def _replicas(self, topic: NewTopic) -> list[list[int]]:
        if topic.assignments:
            if topic.replication_factor != DEFAULT:
                raise _contradiction("replication factor")
            if topic.partitions != DEFAULT:
                raise _contradiction("numPartitions")
            return self._assigner.by_hand(topic.assignments)
        partitions, replication_factor = _sizes(topic, self._settings)
        return self._assigner.by_placement(partitions, replication_factor)


class _InheritedEntries:
    """The effective configuration of a topic that sets nothing, resolved once for a whole request."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._layers = layers
        self._entries: tuple[ConfigEntry, ...] | None = None

    def overridden(self, configs: dict[str, str]) -> tuple[ConfigEntry, ...]:
        if self._entries is None:
            self._entries = tuple(topic_entries({}, self._layers))
        if not configs:
            return self._entries
        entries = {entry.name: entry for entry in self._entries}
        entries.update({name: topic_entry(name, configs, self._layers) for name in configs})
        return tuple(entries[name] for name in sorted(entries))


def _requested_partitions(topic: NewTopic, settings: ControllerSettings) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return settings.default_partitions if topic.partitions == DEFAULT else max(topic.partitions, 0)


def _check_total(counts: Iterable[int]) -> None:
    if sum(counts) > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _duplicates(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def _contradiction(what: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"A manual partition assignment was specified, but {what} was not set to -1.",
    )


def _sizes(topic: NewTopic, settings: ControllerSettings) -> tuple[int, int]:
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < DEFAULT or topic.partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    chosen = topic.replication_factor
    return (
        _requested_partitions(topic, settings),
        settings.default_replication_factor if chosen == DEFAULT else chosen,
    )


def _checked_configs(topic: NewTopic, layers: BrokerLayers) -> dict[str, str]:
    nulls = [name for name, value in topic.configs if value is None]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    configs = {name: value for name, value in topic.configs if value is not None}
    if configs:
        validate_topic(configs, layers)
    return configs


def _config_records(topic: str, configs: dict[str, str]) -> list[ConfigRecord]:
    return [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)
        for name, value in configs.items()
    ]


# -- grow -----------------------------------------------------------------------------------------------


def create_partitions(
    image: MetadataImage,
    randomness: Randomness,
    topics: Sequence[TopicGrowth],
    *,
    validate_only: bool = False,
) -> Decision[dict[str, Outcome]]:
    """One outcome for each name."""
    duplicates = _duplicates(topic.name for topic in topics)
    _check_total(_added_partitions(image, topic) for topic in topics if topic.name not in duplicates)
    assigner = Assigner(image, randomness)
    records: list[Message] = []
    outcomes: dict[str, Outcome] = {}
    for topic in topics:
        try:
            if topic.name in duplicates:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            records.extend(_growth_records(image, assigner, topic))
            outcomes[topic.name] = Outcome()
        except ApiError as failure:
            outcomes[topic.name] = Outcome.of(failure)
    return Decision([] if validate_only else records, outcomes)


def _added_partitions(image: MetadataImage, growth: TopicGrowth) -> int:
    topic = image.topics.get(growth.name)
    return max(0, growth.count - len(topic.partitions)) if topic else 0


def _growth_records(image: MetadataImage, assigner: Assigner, growth: TopicGrowth) -> list[Message]:
    topic = image.topics.get(growth.name)
    if topic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    present = len(topic.partitions)
    _check_growth(growth, present)
    replication_factor = len(topic.partitions[0].replicas)
    if growth.assignments is None:
        replicas = assigner.by_placement(growth.count - present, replication_factor, after=topic)
    else:
        numbered = tuple((present + index, brokers) for index, brokers in enumerate(growth.assignments))
        replicas = assigner.by_hand(numbered, first=present, replication_factor=replication_factor)
    return list(new_partition_records(image, topic.topic_id, present, replicas))


def _check_growth(growth: TopicGrowth, present: int) -> None:
    if growth.count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if growth.count < present:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {growth.name} currently has {present} partition(s); {growth.count} would not be "
            "an increase.",
        )
    added = growth.count - present
    if growth.assignments is not None and len(growth.assignments) != added:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only {len(growth.assignments)} "
            "assignment(s) were specified.",
        )


# -- delete ---------------------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage, settings: ControllerSettings, topics: Sequence[TopicDeletion]
) -> Decision[list[DeletionOutcome]]:
    """One outcome for each distinct entry, in the order of the request."""
    if not settings.deletes_topics:
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    counted = Counter(topics)
    named_twice = _ids_named_twice(image, topics)
    records: list[Message] = []
    outcomes: list[DeletionOutcome] = []
    for deletion, times in counted.items():
        try:
            topic = _deletable(image, deletion, times, named_twice)
            records.append(RemoveTopicRecord(topic_id=topic.topic_id))
            outcomes.append(DeletionOutcome(name=topic.name, topic_id=topic.topic_id))
        except ApiError as failure:
            outcomes.append(
                DeletionOutcome(
                    failure.code, failure.message or None, name=deletion.name, topic_id=deletion.topic_id
                )
            )
    return Decision(records, outcomes)


def _ids_named_twice(image: MetadataImage, topics: Sequence[TopicDeletion]) -> set[bytes]:
    """Topics that the request names in two ways: once by name and once by id."""
    by_name = {found.topic_id for topic in topics if (found := image.topics.get(topic.name or ""))}
    return by_name & {topic.topic_id for topic in topics}


def _deletable(
    image: MetadataImage, deletion: TopicDeletion, times: int, named_twice: set[bytes]
) -> TopicState:
    by_id = deletion.topic_id != ZERO_UUID
    if deletion.name is not None and by_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if deletion.name is None and not by_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if by_id else 'name'}.")
    topic = image.topics_by_id.get(deletion.topic_id) if by_id else image.topics.get(deletion.name or "")
    if topic is None and by_id:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if topic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    if topic.topic_id in named_twice:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
        )
    return topic
