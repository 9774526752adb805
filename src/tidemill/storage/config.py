"""What a log must know of its topic's configuration; Kafka's names with dots turned into underscores."""

from __future__ import annotations

import dataclasses

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
