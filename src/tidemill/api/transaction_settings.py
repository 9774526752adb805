"""The broker's properties that transactions obey. All of them are read-only: read once, at the start."""

from __future__ import annotations

from tidemill.api.settings import whole_setting
from tidemill.api.transaction_gate import Patience
from tidemill.coordination.transaction.shard import TransactionConfig
from tidemill.model.configs import BrokerLayers, broker_value


def transaction_settings(layers: BrokerLayers, transaction_version: int) -> TransactionConfig:
    return TransactionConfig(
        transaction_version=transaction_version,
        max_timeout_ms=whole_setting("transaction.max.timeout.ms", layers),
        id_expiration_ms=whole_setting("transactional.id.expiration.ms", layers),
        expiration_interval_ms=whole_setting(
            "transaction.remove.expired.transaction.cleanup.interval.ms", layers
        ),
        is_two_phase_commit_enabled=bool(broker_value("transaction.two.phase.commit.enable", layers)),
    )


def patience_settings(layers: BrokerLayers) -> Patience:
    return Patience(
        backoff_ms=whole_setting("add.partitions.to.txn.retry.backoff.ms", layers),
        limit_ms=whole_setting("add.partitions.to.txn.retry.backoff.max.ms", layers),
    )
