"""What a log must know of its topic's configuration; Kafka's names with dots turned into underscores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tidemill.model.config_keys import Value

UNLIMITED = -1
FOREVER_MS = 0x7FFF_FFFF_FFFF_FFFF


@dataclasses.dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = UNLIMITED
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    flush_messages: int = FOREVER_MS
    flush_ms: int = FOREVER_MS
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER_MS
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    preallocate: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def acknowledges_after_sync(self) -> bool:
        """`flush.messages=1`: nothing is acknowledged or shown to consumers before it is on the disk."""
        return self.flush_messages == 1


_NAMES = {field.name.replace("_", "."): field.name for field in dataclasses.fields(LogConfig)}


def log_config_from(values: Mapping[str, Value]) -> LogConfig:
    """The part of a topic's values (`model.configs.topic_values`) that its log must know."""
    arguments: dict[str, object] = {_NAMES[name]: value for name, value in values.items() if name in _NAMES}
    policy = values.get("cleanup.policy", ("delete",))
    assert isinstance(policy, tuple)
    arguments["cleanup_policy"] = frozenset(policy)
    if values.get("internal.segment.bytes") is not None:
        arguments["segment_bytes"] = values["internal.segment.bytes"]
    if "compact" in policy:
        arguments["segment_ms"] = _roll_ms_of_compacted(values)
    return LogConfig(**arguments)  # type: ignore[arg-type]


def _roll_ms_of_compacted(values: Mapping[str, Value]) -> int:
    """Only sealed segments are compacted, so one must not stay open longer than a record may wait for it."""
    roll_ms, lag_ms = values["segment.ms"], values["max.compaction.lag.ms"]
    assert isinstance(roll_ms, int) and isinstance(lag_ms, int)
    return min(roll_ms, lag_ms)
