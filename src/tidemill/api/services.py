"""What the handlers work with. The server makes one of these; a handler touches nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidemill.api.settings import BrokerSettings
from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import Decision
from tidemill.metadata.image import MetadataImage
from tidemill.ports.clock import Clock
from tidemill.ports.randomness import Randomness
from tidemill.replication.manager import ReplicaManager

if TYPE_CHECKING:
    from tidemill.api.coordination import Coordinator
    from tidemill.api.internal_topics import InternalTopics
    from tidemill.api.share_partitions import SharePartitions
    from tidemill.api.transaction_gate import TransactionGate
    from tidemill.api.transaction_markers import MarkerWriter
    from tidemill.coordination.group.shard import GroupShard
    from tidemill.coordination.share.persister import SharePersister
    from tidemill.coordination.share.shard import ShareStateShard
    from tidemill.coordination.transaction.driven import DrivenShard
    from tidemill.coordination.transaction.producer_ids import ProducerIdStock

T = TypeVar("T")


class Metadata(Protocol):
    """The cluster's metadata: read the image at any time, change it by a decision that the quorum commits."""

    @property
    def image(self) -> MetadataImage: ...

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        """Run `decide` on the newest image, commit its records, apply them, and give its result."""
        ...


class Coordinators(Protocol):
    """Each is made when somebody first needs it."""

    @property
    def groups(self) -> Coordinator[GroupShard]: ...

    @property
    def transactions(self) -> Coordinator[DrivenShard]: ...

    @property
    def gate(self) -> TransactionGate: ...

    @property
    def markers(self) -> MarkerWriter: ...

    @property
    def producer_ids(self) -> ProducerIdStock: ...

    @property
    def internal_topics(self) -> InternalTopics: ...

    @property
    def share_states(self) -> Coordinator[ShareStateShard]: ...

    @property
    def share_persister(self) -> SharePersister: ...

    @property
    def share_partitions(self) -> SharePartitions: ...


@dataclasses.dataclass(slots=True)
class Services:
    node_id: int
    cluster_id: str
    clock: Clock
    randomness: Randomness
    settings: BrokerSettings
    metadata: Metadata
    controller: Controller
    replicas: ReplicaManager
    coordinators: Coordinators

    @property
    def groups(self) -> Coordinator[GroupShard]:
        return self.coordinators.groups
