"""All families of handlers of one broker; each is loaded when a client first needs it.

A broker that only moves messages never loads the modules of administration, and is up sooner.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidemill.api.fetch import FetchApi
from tidemill.api.produce import ProduceApi
from tidemill.api.services import Services

if TYPE_CHECKING:
    from tidemill.api.configs import ConfigApi
    from tidemill.api.consumer_groups import ConsumerGroupApi
    from tidemill.api.coordinators import CoordinatorApi
    from tidemill.api.group_offsets import GroupOffsetApi
    from tidemill.api.groups import GroupApi
    from tidemill.api.logs import LogApi
    from tidemill.api.metadata import MetadataApi
    from tidemill.api.offsets import OffsetApi
    from tidemill.api.producers import ProducerApi
    from tidemill.api.share_acknowledge import ShareAcknowledgeApi
    from tidemill.api.share_fetch import ShareFetchApi
    from tidemill.api.share_group_offsets import ShareGroupOffsetApi
    from tidemill.api.share_groups import ShareGroupApi
    from tidemill.api.share_members import ShareMembers
    from tidemill.api.share_states import ShareStateApi
    from tidemill.api.telemetry import TelemetryApi
    from tidemill.api.topics import TopicApi
    from tidemill.api.transactions import TransactionApi
    from tidemill.api.versions import VersionApi


class Handlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.produce = ProduceApi(services)
        self.fetch = FetchApi(services)

    @cached_property
    def versions(self) -> VersionApi:
        from tidemill.api.versions import VersionApi

        return VersionApi(self._services)

    @cached_property
    def metadata(self) -> MetadataApi:
        from tidemill.api.metadata import MetadataApi

        return MetadataApi(self._services, self.topics)

    @cached_property
    def topics(self) -> TopicApi:
        from tidemill.api.topics import TopicApi

        return TopicApi(self._services)

    @cached_property
    def offsets(self) -> OffsetApi:
        from tidemill.api.offsets import OffsetApi

        return OffsetApi(self._services)

    @cached_property
    def configs(self) -> ConfigApi:
        from tidemill.api.configs import ConfigApi

        return ConfigApi(self._services)

    @cached_property
    def logs(self) -> LogApi:
        from tidemill.api.logs import LogApi

        return LogApi(self._services)

    @cached_property
    def producers(self) -> ProducerApi:
        from tidemill.api.producers import ProducerApi

        return ProducerApi(self._services, lambda: self.transactions)

    @cached_property
    def transactions(self) -> TransactionApi:
        from tidemill.api.transactions import TransactionApi

        coordinators = self._services.coordinators
        return TransactionApi(
            self._services,
            coordinators.transactions,
            coordinators.gate,
            coordinators.markers,
            coordinators.producer_ids,
        )

    @cached_property
    def coordinators(self) -> CoordinatorApi:
        from tidemill.api.coordinators import CoordinatorApi

        return CoordinatorApi(self._services)

    @cached_property
    def groups(self) -> GroupApi:
        from tidemill.api.groups import GroupApi

        return GroupApi(self._services, lambda: self.share_groups)

    @cached_property
    def consumer_groups(self) -> ConsumerGroupApi:
        from tidemill.api.consumer_groups import ConsumerGroupApi

        return ConsumerGroupApi(self._services)

    @cached_property
    def group_offsets(self) -> GroupOffsetApi:
        from tidemill.api.group_offsets import GroupOffsetApi

        return GroupOffsetApi(self._services)

    @cached_property
    def share_groups(self) -> ShareGroupApi:
        from tidemill.api.share_groups import ShareGroupApi

        return ShareGroupApi(self._services)

    @cached_property
    def share_group_offsets(self) -> ShareGroupOffsetApi:
        from tidemill.api.share_group_offsets import ShareGroupOffsetApi

        return ShareGroupOffsetApi(self._services, self.share_groups)

    @cached_property
    def share_states(self) -> ShareStateApi:
        from tidemill.api.share_states import ShareStateApi

        return ShareStateApi(self._services)

    @cached_property
    def _share_members(self) -> ShareMembers:
        from tidemill.api.settings import whole_setting
        from tidemill.api.share_members import ShareMembers
        from tidemill.api.share_sessions import ShareSessions

        slots = whole_setting("group.share.max.share.sessions", self._services.settings.layers)
        return ShareMembers(
            self._services, self._services.coordinators.share_partitions, ShareSessions(slots)
        )

    @cached_property
    def share_fetch(self) -> ShareFetchApi:
        from tidemill.api.share_fetch import ShareFetchApi

        return ShareFetchApi(self._services, self._share_members)

    @cached_property
    def share_acknowledge(self) -> ShareAcknowledgeApi:
        from tidemill.api.share_acknowledge import ShareAcknowledgeApi

        return ShareAcknowledgeApi(self._share_members)

    @cached_property
    def telemetry(self) -> TelemetryApi:
        from tidemill.api.telemetry import TelemetryApi

        return TelemetryApi(self._services)
