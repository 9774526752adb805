"""A quorum of one on a disk in memory, with a broker that registers as a real one does."""

from __future__ import annotations

import gc
from typing import TypeVar

from tidemill.metadata.brokers import RegistrationRequest
from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import ControllerSettings, Decision
from tidemill.metadata.image import Endpoint
from tidemill.metadata.quorum import QuorumOfOne
from tidemill.metadata.store import StoreSettings
from tidemill.ports.files import Files
from tidemill.ports.randomness import SeededRandomness

T = TypeVar("T")

DATA = "/data"
DIRECTORY = f"{DATA}/__cluster_metadata-0"
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


class HandClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class QuorumNode:
    """The controller part of a broker: started at once, to be stopped, killed and started again."""

    def __init__(
        self, files: Files, directory: str = DATA, node_id: int = 1, settings: StoreSettings | None = None
    ) -> None:
        self.files = files
        self.directory = directory
        self.clock = HandClock()
        self.randomness = SeededRandomness(3)
        self.controller = Controller(ControllerSettings(node_id), self.randomness)
        self.settings = settings
        self.node_id = node_id
        self.is_clean = False
        files.make_directory(directory)
        self.start()

    def start(self) -> None:
        self.quorum = QuorumOfOne.open(
            self.files,
            self.directory,
            node_id=self.node_id,
            cluster_id=CLUSTER_ID,
            clock=self.clock,
            settings=self.settings,
            clean_shutdown=self.is_clean,
        )
        self._register()
        self.is_clean = False

    def _register(self) -> None:
        request = RegistrationRequest(
            self.node_id,
            incarnation_id=self.randomness.uuid(),
            listeners=(Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0),),
            directories=(b"d" * 16,),
            after_clean_shutdown=self.is_clean,
        )
        image, offset = self.quorum.latest_image, self.quorum.next_offset
        self.broker_epoch = self.propose(self.controller.register_broker(image, request, offset))
        image = self.quorum.latest_image
        self.propose(self.controller.unfence_broker(image, self.node_id, self.broker_epoch))
        self.quorum.commit()

    def propose(self, decision: Decision[T]) -> T:
        self.quorum.propose(decision.records)
        return decision.result

    def commit(self, decision: Decision[T]) -> T:
        self.quorum.propose(decision.records)
        self.quorum.commit()
        return decision.result

    def stop(self) -> None:
        self.quorum.close()
        self.is_clean = True

    def kill(self) -> None:
        """As `kill -9`, which takes the memory maps of the process along."""
        del self.quorum
        gc.collect()

    def restart(self) -> None:
        self.stop()
        self.start()

    def snapshot(self) -> None:
        job = self.quorum.begin_snapshot(now=True)
        assert job is not None
        job.run()
        assert self.quorum.complete_snapshot(job)
