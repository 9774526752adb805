"""The broker's properties that groups and their offsets obey. All of them are read-only: read once, at the start."""

from __future__ import annotations

from tidemill.api.settings import whole_setting
from tidemill.coordination.group.contract import MINUTE_MS, GroupSettings
from tidemill.coordination.records.group_records import RECORD_TYPES
from tidemill.coordination.runtime import RuntimeSettings
from tidemill.model.configs import BrokerLayers


def group_settings(layers: BrokerLayers) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=whole_setting("group.initial.rebalance.delay.ms", layers),
        min_session_timeout_ms=whole_setting("group.min.session.timeout.ms", layers),
        max_session_timeout_ms=whole_setting("group.max.session.timeout.ms", layers),
        max_size=whole_setting("group.max.size", layers),
        offset_metadata_max_bytes=whole_setting("offset.metadata.max.bytes", layers),
        offsets_retention_ms=whole_setting("offsets.retention.minutes", layers) * MINUTE_MS,
        offsets_retention_check_interval_ms=whole_setting("offsets.retention.check.interval.ms", layers),
    )


def offsets_log_settings(layers: BrokerLayers) -> RuntimeSettings:
    return RuntimeSettings(
        RECORD_TYPES,
        compression=whole_setting("offsets.topic.compression.codec", layers),
        commit_timeout_ms=whole_setting("offsets.commit.timeout.ms", layers),
    )
