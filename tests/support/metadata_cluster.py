"""A controller with its image, without a log: what it decides is replayed at once."""

from __future__ import annotations

from typing import TypeVar

from tidemill.metadata.brokers import RegistrationRequest
from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import ControllerSettings, Decision
from tidemill.metadata.delta import Changes, Delta
from tidemill.metadata.features import bootstrap_records
from tidemill.metadata.image import EMPTY_IMAGE, Endpoint, MetadataImage
from tidemill.ports.randomness import SeededRandomness
from tidemill.wire.schema import Message

T = TypeVar("T")


def replayed(records: list[Message], image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = Delta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.offset + len(records), epoch=1, timestamp_ms=0)


class MetadataCluster:
    def __init__(self, brokers: int = 1, racks: list[str] | None = None, **properties: str) -> None:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        self.randomness = SeededRandomness(1)
        self.controller = Controller(ControllerSettings(1, named), self.randomness)
        self.image = EMPTY_IMAGE
        self.records: list[Message] = []
        self.changes = Changes()
        self.replay(list(bootstrap_records()))
        for index in range(brokers):
            self.start_broker(index + 1, racks[index] if racks else None)

    def replay(self, records: list[Message]) -> None:
        delta = Delta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), epoch=1, timestamp_ms=0)
        self.records += records
        self.changes = delta.changes

    def run(self, decision: Decision[T]) -> T:
        self.replay(decision.records)
        return decision.result

    def registration(
        self, broker_id: int, rack: str | None = None, *, clean: bool = False
    ) -> RegistrationRequest:
        return RegistrationRequest(
            broker_id,
            incarnation_id=self.randomness.uuid(),
            listeners=(Endpoint("PLAINTEXT", "127.0.0.1", 9090 + broker_id, 0),),
            directories=(bytes([broker_id]) * 16,),
            rack=rack,
            after_clean_shutdown=clean,
        )

    def start_broker(self, broker_id: int, rack: str | None = None, *, clean: bool = False) -> int:
        request = self.registration(broker_id, rack, clean=clean)
        epoch = self.run(self.controller.register_broker(self.image, request, self.image.offset + 1))
        self.run(self.controller.unfence_broker(self.image, broker_id, epoch))
        return epoch

    def fence(self, broker_id: int) -> None:
        self.run(self.controller.fence_broker(self.image, broker_id, self.image.brokers[broker_id].epoch))
