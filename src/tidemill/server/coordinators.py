"""The coordinators of this broker: one runtime for each internal topic, told who leads what.

A coordinator is made, and its code imported, when this broker first leads a partition of its topic or a client first
asks for it: a broker without groups is up sooner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemill.api.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, InternalTopics
from tidemill.api.services import Metadata
from tidemill.metadata.controller import Controller
from tidemill.metadata.image import ResourceType
from tidemill.model.configs import BrokerLayers
from tidemill.model.errors import ApiError
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.ports.randomness import Randomness
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Role
from tidemill.timing.wheel import TimingWheel

if TYPE_CHECKING:
    from tidemill.api.cluster_topics import ClusterTopics
    from tidemill.api.coordination import Coordinator
    from tidemill.api.share_partitions import LedPartition, SharePartitions
    from tidemill.api.transaction_gate import TransactionGate
    from tidemill.api.transaction_markers import MarkerSender, MarkerWriter
    from tidemill.coordination.group.shard import GroupShard
    from tidemill.coordination.runtime import CoordinatorRuntime
    from tidemill.coordination.share.persister import SharePersister
    from tidemill.coordination.share.shard import ShareStateShard
    from tidemill.coordination.transaction.driven import DrivenShard
    from tidemill.coordination.transaction.producer_ids import ProducerIdStock
    from tidemill.coordination.transaction.verification import VerificationGuards

logger = logging.getLogger(__name__)

TRANSACTION_VERSION_FEATURE = "transaction.version"


class Coordinators:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: Metadata,
        controller: Controller,
        wheel: TimingWheel,
        clock: Clock,
        randomness: Randomness,
        layers: BrokerLayers,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._wheel = wheel
        self._clock = clock
        self._randomness = randomness
        self._layers = layers
        self.internal_topics = InternalTopics(metadata, controller, layers)
        self._runtimes: dict[str, CoordinatorRuntime[Any]] = {}

    @cached_property
    def groups(self) -> Coordinator[GroupShard]:
        from tidemill.api.coordination import Coordinator
        from tidemill.api.group_settings import group_settings, offsets_log_settings
        from tidemill.coordination.group.shard import GroupShard
        from tidemill.coordination.runtime import CoordinatorRuntime
        from tidemill.replication.coordinator_log import CoordinatorLog

        settings = group_settings(self._layers)
        runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            lambda index: GroupShard(settings, self._randomness, self.topics, self._group_configs),
            CoordinatorLog(self._replicas, OFFSETS_TOPIC),
            self._wheel,
            self._clock,
            offsets_log_settings(self._layers),
        )
        self._runtimes[OFFSETS_TOPIC] = runtime
        return Coordinator(runtime, self._partition_count)

    def _group_configs(self, group_id: str) -> Mapping[str, str]:
        return self._metadata.image.config_of(ResourceType.GROUP, group_id)

    @cached_property
    def topics(self) -> ClusterTopics:
        from tidemill.api.cluster_topics import ClusterTopics

        return ClusterTopics(lambda: self._metadata.image)

    @cached_property
    def transactions(self) -> Coordinator[DrivenShard]:
        from tidemill.api.coordination import Coordinator
        from tidemill.coordination.records.transaction_records import RECORD_TYPES
        from tidemill.coordination.runtime import CoordinatorRuntime, RuntimeSettings
        from tidemill.replication.coordinator_log import CoordinatorLog

        runtime = CoordinatorRuntime(
            TRANSACTIONS_TOPIC,
            self._make_transaction_shard,
            CoordinatorLog(self._replicas, TRANSACTIONS_TOPIC),
            self._wheel,
            self._clock,
            RuntimeSettings(RECORD_TYPES),
        )
        self._runtimes[TRANSACTIONS_TOPIC] = runtime
        coordinator = Coordinator(runtime, self._partition_count)
        self._sender.transactions = coordinator
        return coordinator

    def _make_transaction_shard(self, index: int) -> DrivenShard:
        from tidemill.api.transaction_settings import transaction_settings
        from tidemill.coordination.transaction.driven import DrivenShard
        from tidemill.coordination.transaction.shard import TransactionShard

        epoch = self._replicas.partitions[TopicPartition(TRANSACTIONS_TOPIC, index)].leader_epoch
        version = self._metadata.image.features.get(TRANSACTION_VERSION_FEATURE, 0)
        shard = TransactionShard(transaction_settings(self._layers, version), epoch, self.producer_ids)
        return DrivenShard(shard, self._sender.write, self._sender.retry)

    @cached_property
    def share_states(self) -> Coordinator[ShareStateShard]:
        from tidemill.api.coordination import Coordinator
        from tidemill.api.share_settings import share_log_settings
        from tidemill.coordination.runtime import CoordinatorRuntime
        from tidemill.replication.coordinator_log import CoordinatorLog

        runtime = CoordinatorRuntime(
            SHARE_STATE_TOPIC,
            self._make_share_state_shard,
            CoordinatorLog(self._replicas, SHARE_STATE_TOPIC),
            self._wheel,
            self._clock,
            share_log_settings(self._layers),
        )
        self._runtimes[SHARE_STATE_TOPIC] = runtime
        return Coordinator(runtime, self._partition_count)

    def _make_share_state_shard(self, index: int) -> ShareStateShard:
        from tidemill.api.share_settings import share_state_settings
        from tidemill.coordination.share.shard import ShareStateShard

        return ShareStateShard(
            share_state_settings(self._layers),
            self.topics,
            lambda offset: self._prune_share_states(index, offset),
        )

    def _prune_share_states(self, index: int, offset: int) -> None:
        """What lies before is not needed any more; if it cannot be cut now, another time will do."""
        partition = self._replicas.partitions.get(TopicPartition(SHARE_STATE_TOPIC, index))
        if partition is not None and partition.log is not None:
            try:
                partition.log.increase_log_start_offset(min(offset, partition.high_watermark))
            except (ApiError, OSError) as error:
                logger.warning("%s-%d is not pruned: %s", SHARE_STATE_TOPIC, index, error)

    @cached_property
    def share_persister(self) -> SharePersister:
        from tidemill.api.share_persister import CoordinatorPersister

        return CoordinatorPersister(self.share_states, self.internal_topics)

    @cached_property
    def share_partitions(self) -> SharePartitions:
        from tidemill.api.share_group_settings import share_group_settings
        from tidemill.api.share_partitions import SharePartitions
        from tidemill.api.share_reading import initial_offset

        return SharePartitions(
            self.share_persister,
            self._replicas.fetch_purgatory,
            self._wheel,
            self._clock,
            lambda group_id: share_group_settings(self._metadata.image, self._layers, group_id),
            lambda where, settings: initial_offset(self._replicas, where, settings, self._clock.wall_ms()),
        )

    def _is_led(self, led: LedPartition) -> bool:
        partition = self._replicas.partitions.get(led.where)
        return (
            partition is not None
            and partition.topic_id == led.key.topic_id
            and partition.log is not None
            and partition.is_led_in(led.leader_epoch)
        )

    @cached_property
    def producer_ids(self) -> ProducerIdStock:
        from tidemill.coordination.transaction.producer_ids import ProducerIdStock

        return ProducerIdStock()

    @cached_property
    def _guards(self) -> VerificationGuards:
        from tidemill.coordination.transaction.verification import VerificationGuards

        return VerificationGuards()

    @cached_property
    def markers(self) -> MarkerWriter:
        from tidemill.api.transaction_markers import MarkerWriter

        return MarkerWriter(self._replicas, self._metadata, self._clock, self.groups, self._guards)

    @cached_property
    def _sender(self) -> MarkerSender:
        from tidemill.api.transaction_markers import MarkerSender

        return MarkerSender(self.markers)

    @cached_property
    def gate(self) -> TransactionGate:
        from tidemill.api.transaction_gate import TransactionGate
        from tidemill.api.transaction_settings import patience_settings

        return TransactionGate(self.transactions, self._guards, self._clock, patience_settings(self._layers))

    def apply(self, changed: Iterable[TopicPartition]) -> None:
        """The replicas have their new roles: coordinate what is led here, give up what is not."""
        changed = list(changed)
        if "share_partitions" in self.__dict__:
            self.share_partitions.partitions_changed(changed, self._is_led)
        for topic_partition in changed:
            coordinator = self._coordinator_of(topic_partition.topic)
            if coordinator is None:
                continue
            runtime = coordinator.runtime
            coordinator.forget_partitions()
            partition = self._replicas.partitions.get(topic_partition)
            if partition is not None and partition.log is not None and partition.role is Role.LEADER:
                runtime.become_leader(topic_partition.partition, partition.leader_epoch)
            else:
                runtime.resign(topic_partition.partition)
        self._topics_changed({topic_partition.topic for topic_partition in changed})

    def _topics_changed(self, names: set[str]) -> None:
        """Groups that read them may have something new to share out."""
        if names and OFFSETS_TOPIC in self._runtimes:
            self.groups.runtime.tell_all(lambda core, now_ms: core.on_topics_changed(names, now_ms))

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Their committed offsets go too, and the state of their share partitions."""
        deleted = sorted(names)
        if deleted and OFFSETS_TOPIC in self._runtimes:
            self.groups.runtime.tell_all(lambda core, now_ms: core.on_topics_deleted(deleted, now_ms))
        if deleted and SHARE_STATE_TOPIC in self._runtimes:
            self.share_states.runtime.tell_all(lambda core, now_ms: core.on_topics_deleted(now_ms))

    def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()

    def _coordinator_of(self, topic: str) -> Coordinator[Any] | None:
        if topic == OFFSETS_TOPIC:
            return self.groups
        if topic == SHARE_STATE_TOPIC:
            return self.share_states
        return self.transactions if topic == TRANSACTIONS_TOPIC else None

    def _partition_count(self, topic: str) -> int:
        state = self._metadata.image.topics.get(topic)
        return len(state.partitions) if state is not None else 0
