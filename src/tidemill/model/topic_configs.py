"""Every configuration key of a topic, with the names, defaults and limits of Kafka 4.3.

A topic key that is not set on the topic falls back to keys of the broker, its synonyms, the first of which
that is set wins; some of them count in other units:

    retention.ms  <-  log.retention.ms, log.retention.minutes (x 60,000), log.retention.hours (x 3,600,000)

`remote.*` and `local.*` belong to tiered storage. They are listed, because clients ask for them, and keep
their defaults: `configs.validate_topic` refuses to switch tiered storage on.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.config_keys import (
    LONG_MAX,
    ConfigKey,
    ConfigType,
    Importance,
    Rule,
    UpdateMode,
    Value,
    at_least,
    between,
    each_of,
    exactly_or,
    one_of,
    throttled_replicas,
)

BOOLEAN, STRING, INT, LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
DOUBLE, LIST = ConfigType.DOUBLE, ConfigType.LIST

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def _key(name: str, type_: ConfigType, default: Value, rule: Rule | None, documentation: str) -> ConfigKey:
    return ConfigKey(name, type_, default, rule, Importance.MEDIUM, UpdateMode.CLUSTER_WIDE, documentation)


# fmt: off
_KEYS = (
    _key("cleanup.policy", LIST, ("delete",), each_of("compact", "delete"),
         "What becomes of old segments: delete drops them by age and size, compact keeps the last value of "
         "each key; both may be given, and an empty list keeps everything."),
    _key("compression.gzip.level", INT, -1, exactly_or(-1, between(1, 9)),
         "Level used when the broker compresses with gzip; -1 is the library's own choice."),
    _key("compression.lz4.level", INT, 9, between(1, 17), "Level used when the broker compresses with lz4."),
    _key("compression.type", STRING, "producer",
         one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
         "Codec that batches are stored with; producer keeps the codec each batch arrived with."),
    _key("compression.zstd.level", INT, 3, between(-131_072, 22),
         "Level used when the broker compresses with zstd."),
    _key("delete.retention.ms", LONG, DAY_MS, at_least(0),
         "How long the tombstone of a deleted key stays readable after compaction, which is also the time a "
         "consumer that began at the start of the log has to finish."),
    _key("file.delete.delay.ms", LONG, MINUTE_MS, at_least(0),
         "How long the files of a dropped segment stay on the disk under a .deleted name."),
    _key("flush.messages", LONG, LONG_MAX, at_least(1),
         "Sync the log to the disk after this many messages; 1 acknowledges nothing before it is synced."),
    _key("flush.ms", LONG, LONG_MAX, at_least(0),
         "Sync the log to the disk when its oldest unsynced message has waited this long."),
    _key("follower.replication.throttled.replicas", LIST, (), throttled_replicas,
         "Replicas whose fetching is throttled on the follower, as partition:broker pairs, or * for all."),
    _key("index.interval.bytes", INT, 4096, at_least(0),
         "One entry is added to the offset index for about this many bytes of log."),
    _key("internal.segment.bytes", INT, None, None,
         "Segment size below the limits of segment.bytes, for tests of storage only."),
    _key("leader.replication.throttled.replicas", LIST, (), throttled_replicas,
         "Replicas whose fetching is throttled on the leader, as partition:broker pairs, or * for all."),
    _key("local.retention.bytes", LONG, -2, at_least(-2),
         "With tiered storage, size of the local part of a partition; -2 follows retention.bytes."),
    _key("local.retention.ms", LONG, -2, at_least(-2),
         "With tiered storage, age of the local part of a partition; -2 follows retention.ms."),
    _key("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1),
         "A record is compacted at the latest this long after it was written, whatever the dirty ratio is."),
    _key("max.message.bytes", INT, 1_048_588, at_least(0),
         "Largest record batch that is accepted, measured after compression."),
    _key("message.timestamp.after.max.ms", LONG, HOUR_MS, at_least(0),
         "With CreateTime, how far a record's timestamp may lie ahead of the broker's clock."),
    _key("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0),
         "With CreateTime, how far a record's timestamp may lie behind the broker's clock."),
    _key("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
         "Whether a record carries the producer's time or the time the broker appended it."),
    _key("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1),
         "Share of the log that must be uncompacted before compaction starts; lower saves space."),
    _key("min.compaction.lag.ms", LONG, 0, at_least(0),
         "A record is never compacted away before it is this old."),
    _key("min.insync.replicas", INT, 1, at_least(1),
         "Number of in-sync replicas, leader included, without which a write with acks=all is refused."),
    _key("preallocate", BOOLEAN, False, None, "Reserve the disk space of a segment when it is created."),
    _key("remote.log.copy.disable", BOOLEAN, False, None,
         "With tiered storage, copy no further segments away."),
    _key("remote.log.delete.on.disable", BOOLEAN, False, None,
         "With tiered storage, delete the remote part when tiering is switched off."),
    _key("remote.storage.enable", BOOLEAN, False, None, "Tiered storage; not available here, so only false."),
    _key("retention.bytes", LONG, -1, None,
         "Size of a partition above which its oldest segments are dropped; -1 sets no limit."),
    _key("retention.ms", LONG, 7 * DAY_MS, at_least(-1),
         "Age above which segments are dropped, counted from their newest record; -1 sets no limit."),
    _key("segment.bytes", INT, 1 << 30, at_least(1 << 20),
         "Size at which a new segment is begun; retention and compaction work on whole segments."),
    _key("segment.index.bytes", INT, 10 << 20, at_least(4),
         "Space reserved for a segment's offset index; a full index begins a new segment."),
    _key("segment.jitter.ms", LONG, 0, at_least(0),
         "Up to this much is taken off segment.ms at random, so that segments do not all roll at once."),
    _key("segment.ms", LONG, 7 * DAY_MS, at_least(1),
         "Age at which a new segment is begun even if the last one is not full."),
    _key("unclean.leader.election.enable", BOOLEAN, False, None,
         "Let a replica outside the in-sync set lead when no other is left, losing what it lacks."),
)
# fmt: on

TOPIC_CONFIGS: dict[str, ConfigKey] = {key.name: key for key in _KEYS}


class Synonym(NamedTuple):
    """A broker key that stands in for a topic key, and what its number is multiplied by."""

    name: str
    factor: int = 1


TOPIC_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}
