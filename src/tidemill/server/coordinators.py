"""The coordinators of this broker: one runtime for each internal topic, told who leads what.

A coordinator is made, and its code imported, when this broker first leads a partition of its topic or a client first
asks for it: a broker without groups is up sooner.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemill.api.internal_topics import OFFSETS_TOPIC
from tidemill.api.services import Metadata
from tidemill.model.configs import BrokerLayers
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.ports.randomness import Randomness
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Role
from tidemill.timing.wheel import TimingWheel

if TYPE_CHECKING:
    from tidemill.api.coordination import Coordinator
    from tidemill.coordination.group.shard import GroupShard
    from tidemill.coordination.runtime import CoordinatorRuntime


class Coordinators:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: Metadata,
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
            lambda index: GroupShard(settings, self._randomness),
            CoordinatorLog(self._replicas, OFFSETS_TOPIC),
            self._wheel,
            self._clock,
            offsets_log_settings(self._layers),
        )
        self._runtimes[OFFSETS_TOPIC] = runtime
        return Coordinator(runtime, self._partition_count)

    def apply(self, changed: Iterable[TopicPartition]) -> None:
        """The replicas have their new roles: coordinate what is led here, give up what is not."""
        for topic_partition in changed:
            runtime = self._runtime_of(topic_partition.topic)
            if runtime is None:
                continue
            partition = self._replicas.partitions.get(topic_partition)
            if partition is not None and partition.log is not None and partition.role is Role.LEADER:
                runtime.become_leader(topic_partition.partition, partition.leader_epoch)
            else:
                runtime.resign(topic_partition.partition)

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Their committed offsets go too."""
        deleted = sorted(names)
        if deleted and OFFSETS_TOPIC in self._runtimes:
            self.groups.runtime.tell_all(lambda core, now_ms: core.on_topics_deleted(deleted, now_ms))

    def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()

    def _runtime_of(self, topic: str) -> CoordinatorRuntime[Any] | None:
        return self.groups.runtime if topic == OFFSETS_TOPIC else None

    def _partition_count(self, topic: str) -> int:
        state = self._metadata.image.topics.get(topic)
        return len(state.partitions) if state is not None else 0
