"""What the cluster looks like after a given record of the metadata log: brokers, topics, configurations.

An image never changes. The log is replayed through a `Delta`, and each applied delta gives the next image,
which shares with its predecessor everything that did not change. Whoever holds an image can therefore read
it for as long as it likes, from any thread, without a lock:

    image.topics["orders"].partitions[0].leader            # the broker that leads orders-0
    image.config_of(ResourceType.TOPIC, "orders")          # only what somebody set; defaults are elsewhere
    image.offset                                           # the last record of the log that it contains

Records that mean nothing to this release (quotas, access control, credentials, tokens, the registrations of
controllers) are carried along as they are, so that a snapshot of the image loses nothing that an Apache
Kafka controller wrote. A transaction of the metadata log (KIP-868) that has begun and not ended is carried
too: its records are in `open_transaction` and have no effect until the end is read.

Limits: an image of n topics copies its topic maps once when a topic comes or goes, which takes some
100 microseconds for 10,000 topics.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tidemill.model.ids import NO_LEADER, ZERO_UUID
from tidemill.wire.schema import Message

METADATA_VERSION_FEATURE = "metadata.version"
LATEST_METADATA_VERSION = 30
"""4.3-IV0, what Apache Kafka 4.3 finalizes for a new cluster."""
MINIMUM_METADATA_VERSION = 7
"""3.3-IV3: older logs must be upgraded by Kafka first, as Kafka 4 demands too."""

RECOVERED = 0
"""Leader recovery state of a partition whose leader holds everything that was committed."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def is_internal_topic(name: str) -> bool:
    return name in INTERNAL_TOPICS


class ResourceType(enum.IntEnum):
    """What a configuration belongs to; the numbers are those of requests and of `ConfigRecord`."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with configurations; the broker with the empty name is the default of all brokers."""

    type: int
    name: str


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int


class FeatureRange(NamedTuple):
    name: str
    minimum: int
    maximum: int


RESERVED_DIRECTORY = bytes(15)
"""Directory ids that begin so mean no directory: unassigned, lost, migrating."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerRegistration:
    broker_id: int
    epoch: int
    """The offset of its registration record: a broker that restarts gets a higher one."""
    incarnation_id: bytes
    listeners: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directories: tuple[bytes, ...] = ()
    cordoned_directories: tuple[bytes, ...] | None = None

    @property
    def is_active(self) -> bool:
        """May lead partitions and be in their ISR."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; the ISR is a subset of the replicas, the leader is in the ISR or there is none."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    """Grows with every election, also if it elects the same broker."""
    partition_epoch: int
    """Grows with every change of this state."""
    directories: tuple[bytes, ...] = ()
    """The log directory of each replica, in the order of the replicas."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: tuple[int, ...] = ()
    """Left the ISR last and hold everything committed (KIP-966); written by Kafka, honoured in elections."""
    last_known_eligible: tuple[int, ...] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def directory_of(self, broker_id: int) -> bytes:
        """The directory that the metadata names for this replica; zero if it names none."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(broker_id, ZERO_UUID)


@dataclasses.dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionState]
    """By number, ascending and without gaps."""

    @property
    def is_internal(self) -> bool:
        return is_internal_topic(self.name)


def _empty() -> Any:
    return dataclasses.field(default_factory=lambda: MappingProxyType({}))


@dataclasses.dataclass(frozen=True, slots=True)
class MetadataImage:
    offset: int = -1
    """The last record that this image contains; -1 stands for the empty log."""
    epoch: int = 0
    """The leader epoch of that record."""
    timestamp_ms: int = -1
    """When that record was appended."""
    cluster_id: str = ""
    brokers: Mapping[int, BrokerRegistration] = _empty()
    topics: Mapping[str, TopicState] = _empty()
    topics_by_id: Mapping[bytes, TopicState] = _empty()
    topics_by_metric_name: Mapping[str, str] = _empty()
    """Topic names with `.` or `_` by the name that their metrics have (see `metric_name`)."""
    configs: Mapping[ConfigResource, Mapping[str, str]] = _empty()
    features: Mapping[str, int] = _empty()
    next_producer_id: int = 0
    carried: Mapping[tuple[object, ...], Message] = _empty()
    """Records without meaning here, by what identifies them; the last one of each wins."""
    open_transaction: tuple[Message, ...] | None = None

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION_FEATURE, LATEST_METADATA_VERSION)

    def config_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What was set for this resource."""
        return self.configs.get(ConfigResource(resource_type, name), _NO_CONFIG)

    def is_active(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def is_online(self, broker_id: int, partition: PartitionState) -> bool:
        """Whether this replica can be used: its broker is active, and so is the directory it lies in."""
        directory = partition.directory_of(broker_id)
        is_known = not directory.startswith(RESERVED_DIRECTORY)
        return self.is_active(broker_id) and not (
            is_known and directory not in self.brokers[broker_id].directories
        )

    def partitions(self) -> Iterator[tuple[TopicState, int, PartitionState]]:
        for topic in self.topics.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition


_NO_CONFIG: Mapping[str, str] = MappingProxyType({})
EMPTY_IMAGE = MetadataImage()


def metric_name(topic: str) -> str:
    """Metric names turn `.` into `_`, so two topics that differ only there would share their metrics."""
    return topic.replace(".", "_")
