"""The broker's own configuration as typed values; a new one replaces it when a setting changes at run time."""

from __future__ import annotations

import dataclasses

from tidemill.model.configs import BrokerLayers, broker_value

SYSTEM_BUFFER = -1
"""Kafka's default of 100 KB is not taken over: backlogs drained more slowly with it (README, W5)."""


def whole_setting(name: str, layers: BrokerLayers) -> int:
    value = broker_value(name, layers)
    assert isinstance(value, int)
    return value


def _flag(name: str, layers: BrokerLayers) -> bool:
    return bool(broker_value(name, layers))


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    layers: BrokerLayers
    auto_create_topics: bool
    fetch_max_bytes: int
    fetch_session_slots: int
    max_request_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int
    send_buffer_bytes: int
    retention_check_interval_ms: int
    recovery_point_interval_ms: int
    cleaner_enabled: bool
    cleaner_backoff_ms: int
    cleaner_buffer_bytes: int
    producer_expiration_ms: int
    verifies_transactions: bool

    @classmethod
    def from_layers(cls, layers: BrokerLayers) -> BrokerSettings:
        return cls(
            layers=layers,
            auto_create_topics=_flag("auto.create.topics.enable", layers),
            fetch_max_bytes=whole_setting("fetch.max.bytes", layers),
            fetch_session_slots=whole_setting("max.incremental.fetch.session.cache.slots", layers),
            max_request_bytes=whole_setting("socket.request.max.bytes", layers),
            max_connections=whole_setting("max.connections", layers),
            max_connections_per_ip=whole_setting("max.connections.per.ip", layers),
            max_idle_ms=whole_setting("connections.max.idle.ms", layers),
            send_buffer_bytes=int(layers.static.get("socket.send.buffer.bytes", SYSTEM_BUFFER)),
            retention_check_interval_ms=whole_setting("log.retention.check.interval.ms", layers),
            recovery_point_interval_ms=whole_setting("log.flush.offset.checkpoint.interval.ms", layers),
            cleaner_enabled=_flag("log.cleaner.enable", layers),
            cleaner_backoff_ms=whole_setting("log.cleaner.backoff.ms", layers),
            cleaner_buffer_bytes=whole_setting("log.cleaner.dedupe.buffer.size", layers),
            producer_expiration_ms=whole_setting("producer.id.expiration.ms", layers),
            verifies_transactions=_flag("transaction.partition.verification.enable", layers),
        )
