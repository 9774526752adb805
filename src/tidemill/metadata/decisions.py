"""What every decision of the controller has in common.

A decision is a function of an image and of the values of a request. It reads nothing else and changes
nothing; it answers with the records that would make it true and with the result that the client is told
once those records are committed:

    decision = create_topics(image, settings, randomness, [NewTopic("orders", partitions=3)])
    decision.records      # a TopicRecord and three PartitionRecords
    decision.result       # [TopicOutcome(name="orders", topic_id=..., partitions=3, ...)]

A failure of the whole request raises `ApiError`; a failure of one topic or resource is part of the result,
and leaves no records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Generic, TypeVar

from tidemill.metadata.image import MetadataImage, ResourceType
from tidemill.model.configs import BrokerLayers, broker_value
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.schema import Message

T = TypeVar("T")

CLUSTER_DEFAULT = ""
"""The name of the broker resource that holds the defaults of all brokers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    records: list[Message]
    result: T


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How one part of a request ended."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None

    @property
    def is_success(self) -> bool:
        return self.error is ErrorCode.NONE

    @classmethod
    def of(cls, failure: ApiError) -> Outcome:
        return cls(failure.code, failure.message or None)


@dataclasses.dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The properties of the node that decides, by Kafka's names."""

    node_id: int
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def layers(self, image: MetadataImage) -> BrokerLayers:
        return BrokerLayers(
            static=self.properties,
            cluster=image.config_of(ResourceType.BROKER, CLUSTER_DEFAULT),
            broker=image.config_of(ResourceType.BROKER, str(self.node_id)),
        )

    @property
    def default_partitions(self) -> int:
        return self._number("num.partitions")

    @property
    def default_replication_factor(self) -> int:
        return self._number("default.replication.factor")

    @property
    def deletes_topics(self) -> bool:
        return bool(broker_value("delete.topic.enable", BrokerLayers(static=self.properties)))

    def _number(self, name: str) -> int:
        value = broker_value(name, BrokerLayers(static=self.properties))
        assert isinstance(value, int)
        return value
