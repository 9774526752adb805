"""The topics that belong to the coordinators: made when the first client needs them, with Kafka's settings.

Limits: a cluster smaller than the configured replication factor gets as many replicas as it has brokers, where Kafka
would refuse; so one broker works without any setting.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidemill.api.services import Metadata
from tidemill.api.settings import whole_setting
from tidemill.metadata.controller import Controller
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.topics import NewTopic
from tidemill.model.configs import BrokerLayers

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"


class _Blueprint(NamedTuple):
    keys: str
    """What the broker's keys about this topic begin with."""
    configs: tuple[tuple[str, str], ...]
    has_min_isr: bool = True


_BLUEPRINTS = {
    OFFSETS_TOPIC: _Blueprint(
        "offsets.topic", (("cleanup.policy", "compact"), ("compression.type", "producer")), has_min_isr=False
    ),
    TRANSACTIONS_TOPIC: _Blueprint(
        "transaction.state.log",
        (
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("unclean.leader.election.enable", "false"),
        ),
    ),
    SHARE_STATE_TOPIC: _Blueprint(
        "share.coordinator.state.topic",
        (("cleanup.policy", "delete"), ("compression.type", "producer"), ("retention.ms", "-1")),
    ),
}


def blueprint(name: str, image: MetadataImage, layers: BrokerLayers) -> NewTopic:
    """The topic as it is to be created; any other name gets the broker's defaults."""
    found = _BLUEPRINTS.get(name)
    if found is None:
        return NewTopic(name)
    brokers = sum(1 for broker in image.brokers if image.is_active(broker))
    replicas = min(whole_setting(f"{found.keys}.replication.factor", layers), max(1, brokers))
    configs = (*found.configs, ("segment.bytes", str(whole_setting(f"{found.keys}.segment.bytes", layers))))
    if found.has_min_isr:
        min_isr = min(whole_setting(f"{found.keys}.min.isr", layers), replicas)
        configs = (*configs, ("min.insync.replicas", str(min_isr)))
    partitions = whole_setting(f"{found.keys}.num.partitions", layers)
    return NewTopic(name, partitions=partitions, replication_factor=replicas, configs=configs)


class InternalTopics:
    """Makes the topic of a coordinator when somebody first needs it."""

    def __init__(self, metadata: Metadata, controller: Controller, layers: BrokerLayers) -> None:
        self._metadata = metadata
        self._controller = controller
        self._layers = layers
        self._creating = asyncio.Lock()

    async def make_sure_of(self, topic: str) -> None:
        if topic in self._metadata.image.topics:
            return
        async with self._creating:
            if topic not in self._metadata.image.topics:
                await self._metadata.change(
                    lambda image: self._controller.create_topics(
                        image, [blueprint(topic, image, self._layers)]
                    )
                )
