"""The broker's properties that groups and their offsets obey. All of them are read-only: read once, at the start."""

from __future__ import annotations

from tidemill.api.settings import whole_setting
from tidemill.coordination.group.assignors_consumer import CONSUMER_ASSIGNORS
from tidemill.coordination.group.contract import MINUTE_MS, ConsumerSettings, GroupSettings, ShareSettings
from tidemill.coordination.records.group_records import RECORD_TYPES
from tidemill.coordination.runtime import RuntimeSettings
from tidemill.model.configs import BrokerLayers, broker_value


def group_settings(layers: BrokerLayers) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=whole_setting("group.initial.rebalance.delay.ms", layers),
        min_session_timeout_ms=whole_setting("group.min.session.timeout.ms", layers),
        max_session_timeout_ms=whole_setting("group.max.session.timeout.ms", layers),
        max_size=whole_setting("group.max.size", layers),
        offset_metadata_max_bytes=whole_setting("offset.metadata.max.bytes", layers),
        offsets_retention_ms=whole_setting("offsets.retention.minutes", layers) * MINUTE_MS,
        offsets_retention_check_interval_ms=whole_setting("offsets.retention.check.interval.ms", layers),
        consumer=consumer_settings(layers),
        share=share_settings(layers),
    )


def consumer_settings(layers: BrokerLayers) -> ConsumerSettings:
    """Assignors that are classes of a Kafka installation are not known here, and are left out."""
    policy = str(broker_value("group.consumer.migration.policy", layers)).lower()
    listed = broker_value("group.consumer.assignors", layers)
    assert isinstance(listed, tuple)
    return ConsumerSettings(
        session_timeout_ms=whole_setting("group.consumer.session.timeout.ms", layers),
        heartbeat_interval_ms=whole_setting("group.consumer.heartbeat.interval.ms", layers),
        max_size=whole_setting("group.consumer.max.size", layers),
        assignors=tuple(name for name in listed if name in CONSUMER_ASSIGNORS) or tuple(CONSUMER_ASSIGNORS),
        allows_upgrade=policy in ("bidirectional", "upgrade"),
        allows_downgrade=policy in ("bidirectional", "downgrade"),
    )


def share_settings(layers: BrokerLayers) -> ShareSettings:
    return ShareSettings(
        session_timeout_ms=whole_setting("group.share.session.timeout.ms", layers),
        heartbeat_interval_ms=whole_setting("group.share.heartbeat.interval.ms", layers),
        max_size=whole_setting("group.share.max.size", layers),
        initialize_retry_interval_ms=whole_setting("group.share.initialize.retry.interval.ms", layers),
    )


def offsets_log_settings(layers: BrokerLayers) -> RuntimeSettings:
    return RuntimeSettings(
        RECORD_TYPES,
        compression=whole_setting("offsets.topic.compression.codec", layers),
        commit_timeout_ms=whole_setting("offsets.commit.timeout.ms", layers),
    )
