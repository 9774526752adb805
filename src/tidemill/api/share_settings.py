"""The broker's properties that share groups and their state obey: read-only, read once, at the start."""

from __future__ import annotations

from tidemill.api.settings import whole_setting
from tidemill.coordination.records.share_records import RECORD_TYPES
from tidemill.coordination.runtime import RuntimeSettings
from tidemill.coordination.share.shard import ShareStateSettings
from tidemill.model.configs import BrokerLayers


def share_state_settings(layers: BrokerLayers) -> ShareStateSettings:
    return ShareStateSettings(
        updates_per_snapshot=whole_setting("share.coordinator.snapshot.update.records.per.snapshot", layers),
        prune_interval_ms=whole_setting("share.coordinator.state.topic.prune.interval.ms", layers),
        cold_snapshot_interval_ms=whole_setting(
            "share.coordinator.cold.partition.snapshot.interval.ms", layers
        ),
    )


def share_log_settings(layers: BrokerLayers) -> RuntimeSettings:
    return RuntimeSettings(
        RECORD_TYPES,
        compression=whole_setting("share.coordinator.state.topic.compression.codec", layers),
        commit_timeout_ms=whole_setting("share.coordinator.write.timeout.ms", layers),
    )
