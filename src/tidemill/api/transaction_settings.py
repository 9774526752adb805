"""The broker's properties that transactions obey. All of them are read-only: read once, at the start."""

from __future__ import annotations

from tidemill.coordination.transaction.shard import TransactionConfig
from tidemill.model.configs import BrokerLayers, broker_value


def transaction_settings(layers: BrokerLayers, transaction_version: int) -> TransactionConfig:
    return TransactionConfig(
        transaction_version=transaction_version,
        max_timeout_ms=_whole("transaction.max.timeout.ms", layers),
        id_expiration_ms=_whole("transactional.id.expiration.ms", layers),
        expiration_interval_ms=_whole("transaction.remove.expired.transaction.cleanup.interval.ms", layers),
        is_two_phase_commit_enabled=bool(broker_value("transaction.two.phase.commit.enable", layers)),
    )


def _whole(name: str, layers: BrokerLayers) -> int:
    value = broker_value(name, layers)
    assert isinstance(value, int)
    return value
