"""What the handlers work with. The server makes one of these; a handler touches nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeVar

from tidemill.api.settings import BrokerSettings
from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import Decision
from tidemill.metadata.image import MetadataImage
from tidemill.ports.clock import Clock
from tidemill.ports.randomness import Randomness
from tidemill.replication.manager import ReplicaManager

T = TypeVar("T")


class Metadata(Protocol):
    """The cluster's metadata: read the image at any time, change it by a decision that the quorum commits."""

    @property
    def image(self) -> MetadataImage: ...

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        """Run `decide` on the newest image, commit its records, apply them, and give its result."""
        ...


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
