"""The broker's properties that groups and their offsets obey. All of them are read-only: read once, at the start."""

from __future__ import annotations

from tidemill.coordination.group.contract import MINUTE_MS, GroupSettings
from tidemill.coordination.records.group_records import RECORD_TYPES
from tidemill.coordination.runtime import RuntimeSettings
from tidemill.model.configs import BrokerLayers, broker_value


def group_settings(layers: BrokerLayers) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=_whole("group.initial.rebalance.delay.ms", layers),
        min_session_timeout_ms=_whole("group.min.session.timeout.ms", layers),
        max_session_timeout_ms=_whole("group.max.session.timeout.ms", layers),
        max_size=_whole("group.max.size", layers),
        offset_metadata_max_bytes=_whole("offset.metadata.max.bytes", layers),
        offsets_retention_ms=_whole("offsets.retention.minutes", layers) * MINUTE_MS,
        offsets_retention_check_interval_ms=_whole("offsets.retention.check.interval.ms", layers),
    )


def offsets_log_settings(layers: BrokerLayers) -> RuntimeSettings:
    return RuntimeSettings(
        RECORD_TYPES,
        compression=_whole("offsets.topic.compression.codec", layers),
        commit_timeout_ms=_whole("offsets.commit.timeout.ms", layers),
    )


def _whole(name: str, layers: BrokerLayers) -> int:
    value = broker_value(name, layers)
    assert isinstance(value, int)
    return value
