"""The broker's own configuration as typed values; a new one replaces it when a setting changes at run time."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping

from tidemill.model.config_keys import Value
from tidemill.model.configs import BrokerLayers, broker_value


def whole_setting(name: str, layers: BrokerLayers) -> int:
    value = broker_value(name, layers)
    assert isinstance(value, int)
    return value


def _flag(name: str, layers: BrokerLayers) -> bool:
    return bool(broker_value(name, layers))


def _paths(name: str, layers: BrokerLayers) -> frozenset[str]:
    """The directories of a list; `*` among them means all that `log.dirs` names."""
    paths = _texts(name, layers)
    return frozenset(path.rstrip("/") for path in (_texts("log.dirs", layers) if "*" in paths else paths))


def _texts(name: str, layers: BrokerLayers) -> list[str]:
    value = broker_value(name, layers) or ()
    assert isinstance(value, tuple)
    return [text.strip() for text in value]


def limits_of_addresses(value: Value) -> dict[str, int]:
    """`10.0.0.1:100,localhost:5` as a map; a host name stands for the addresses it has now."""
    limits: dict[str, int] = {}
    for entry in str(value or "").split(","):
        host, separator, limit = entry.strip().rpartition(":")
        if separator and limit.isdigit():
            limits.update(dict.fromkeys([host.strip("[]"), *_addresses(host)], int(limit)))
    return limits


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None)]
    except OSError:
        return []


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    layers: BrokerLayers
    auto_create_topics: bool
    fetch_max_bytes: int
    fetch_session_slots: int
    max_request_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_of: Mapping[str, int]
    """Another limit for some addresses."""
    max_connection_creation_rate: int
    max_partitions_described: int
    max_idle_ms: int
    cordoned_directories: frozenset[str]
    """They take no new partitions."""
    send_buffer_bytes: int
    receive_buffer_bytes: int
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
            cordoned_directories=_paths("cordoned.log.dirs", layers),
            max_idle_ms=whole_setting("connections.max.idle.ms", layers),
            max_connections_of=limits_of_addresses(broker_value("max.connections.per.ip.overrides", layers)),
            max_connection_creation_rate=whole_setting("max.connection.creation.rate", layers),
            max_partitions_described=whole_setting("max.request.partition.size.limit", layers),
            send_buffer_bytes=whole_setting("socket.send.buffer.bytes", layers),
            receive_buffer_bytes=whole_setting("socket.receive.buffer.bytes", layers),
            retention_check_interval_ms=whole_setting("log.retention.check.interval.ms", layers),
            recovery_point_interval_ms=whole_setting("log.flush.offset.checkpoint.interval.ms", layers),
            cleaner_enabled=_flag("log.cleaner.enable", layers),
            cleaner_backoff_ms=whole_setting("log.cleaner.backoff.ms", layers),
            cleaner_buffer_bytes=whole_setting("log.cleaner.dedupe.buffer.size", layers),
            producer_expiration_ms=whole_setting("producer.id.expiration.ms", layers),
            verifies_transactions=_flag("transaction.partition.verification.enable", layers),
        )
