"""All families of handlers, made once for one broker."""

from __future__ import annotations

from tidemill.api.configs import ConfigApi
from tidemill.api.coordinators import CoordinatorApi
from tidemill.api.fetch import FetchApi
from tidemill.api.logs import LogApi
from tidemill.api.metadata import MetadataApi
from tidemill.api.offsets import OffsetApi
from tidemill.api.produce import ProduceApi
from tidemill.api.producers import ProducerApi
from tidemill.api.services import Services
from tidemill.api.telemetry import TelemetryApi
from tidemill.api.topics import TopicApi
from tidemill.api.versions import VersionApi


class Handlers:
    def __init__(self, services: Services) -> None:
        self.produce = ProduceApi(services)
        self.fetch = FetchApi(services)
        self.offsets = OffsetApi(services)
        self.topics = TopicApi(services)
        self.metadata = MetadataApi(services, self.topics)
        self.configs = ConfigApi(services)
        self.logs = LogApi(services)
        self.producers = ProducerApi(services)
        self.coordinators = CoordinatorApi(services)
        self.telemetry = TelemetryApi(services)
        self.versions = VersionApi(services)
