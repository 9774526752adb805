"""Settings of Kafka that are known here and change nothing, and why.

They are accepted, because people start a broker with the `server.properties` they have, and shown by DescribeConfigs; a
broker that is started with one of them says so in its log. `docs/configs.md` is generated from this list
(`python -m tidemill.model.config_effects > docs/configs.md`), and a test compares it with the sources: a key is
either read somewhere or listed here.

A pattern ending in `*` stands for all keys that begin so:

    >>> why_without_effect("ssl.keystore.location")
    'no TLS yet: a listener that asks for it is refused'
    >>> why_without_effect("log.retention.ms") is None
    True
"""

from __future__ import annotations

_ONE_BROKER = "one broker: there are no replicas to fetch, elect or move yet"
_QUORUM_OF_ONE = "the metadata quorum has one node"
_NO_TLS = "no TLS yet: a listener that asks for it is refused"
_NO_SASL = "no SASL yet: a listener that asks for it is refused"
_NO_QUOTAS = "no quotas yet"
_ONE_LOOP = "one event loop does the work of these threads"
_NO_METRICS = "no metrics yet"
_NO_TIERS = "no tiered storage"
_ASSIGNED_AT_ONCE = "a group is assigned anew with each change, not once in an interval"

WITHOUT_EFFECT: dict[str, str] = {
    "auto.leader.rebalance.enable": _ONE_BROKER,
    "background.threads": _ONE_LOOP,
    "broker.heartbeat.interval.ms": _QUORUM_OF_ONE,
    "broker.session.timeout.ms": _QUORUM_OF_ONE,
    "connection.failed.authentication.delay.ms": _NO_SASL,
    "connections.max.reauth.ms": _NO_SASL,
    "consumer.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "controlled.shutdown.enable": _ONE_BROKER,
    "controller.listener.names": _QUORUM_OF_ONE,
    "controller.quorum.*": _QUORUM_OF_ONE,
    "controller.quota.*": _NO_QUOTAS,
    "controller.socket.timeout.ms": _QUORUM_OF_ONE,
    "early.start.listeners": _NO_SASL,
    "follower.replication.throttled.replicas": _ONE_BROKER,
    "group.consumer.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.max.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.min.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.regex.refresh.interval.ms": "patterns are resolved again whenever topics come or go",
    "group.coordinator.append.linger.ms": "records are appended at once",
    "group.coordinator.background.threads": _ONE_LOOP,
    "group.coordinator.cached.buffer.max.bytes": "no buffer is kept",
    "group.coordinator.rebalance.protocols": "classic, consumer and share groups are always on",
    "group.coordinator.threads": _ONE_LOOP,
    "group.share.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.share.max.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.share.min.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "inter.broker.listener.name": _ONE_BROKER,
    "leader.imbalance.check.interval.seconds": _ONE_BROKER,
    "leader.replication.throttled.replicas": _ONE_BROKER,
    "local.retention.*": _NO_TIERS,
    "log.cleaner.io.*": "the cleaner runs in a process of its own, at the lowest priority for processor and disk",
    "log.cleaner.threads": "one log is compacted at a time",
    "log.dir.failure.timeout.ms": "a failed directory is reported at once",
    "log.flush.start.offset.checkpoint.interval.ms": "written with log.flush.offset.checkpoint.interval.ms",
    "log.local.retention.*": _NO_TIERS,
    "log.preallocate": "files grow as they are written",
    "metadata.max.idle.interval.ms": _QUORUM_OF_ONE,
    "metadata.max.retention.*": "the two newest snapshots are kept, and the log behind them",
    "metric.reporters": _NO_METRICS,
    "metrics.*": _NO_METRICS,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "num.recovery.threads.per.data.dir": _ONE_LOOP,
    "num.replica.fetchers": _ONE_BROKER,
    "offsets.load.buffer.size": "a partition is loaded in pieces of a fixed size",
    "preallocate": "files grow as they are written",
    "principal.builder.class": _NO_SASL,
    "process.roles": "always broker and controller",
    "producer.id.expiration.check.interval.ms": "expired producers go with each pass of the retention",
    "queued.max.*": "a connection has at most 128 requests under way",
    "quota.window.*": _NO_QUOTAS,
    "remote.*": _NO_TIERS,
    "replica.*": _ONE_BROKER,
    "request.timeout.ms": _ONE_BROKER,
    "sasl.*": _NO_SASL,
    "security.inter.broker.protocol": _ONE_BROKER,
    "share.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "share.coordinator.append.linger.ms": "records are appended at once",
    "share.coordinator.load.buffer.size": "a partition is loaded in pieces of a fixed size",
    "share.coordinator.threads": _ONE_LOOP,
    "socket.connection.setup.timeout.*": _ONE_BROKER,
    "ssl.*": _NO_TLS,
    "telemetry.max.bytes": "no client metrics are asked for",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "each transaction has a timer of its own",
    "transaction.state.log.load.buffer.size": "a partition is loaded in pieces of a fixed size",
    "unclean.leader.election.enable": _ONE_BROKER,
}


def why_without_effect(name: str) -> str | None:
    """The reason, or None for a key that has an effect (or is not known at all)."""
    if name in WITHOUT_EFFECT:
        return WITHOUT_EFFECT[name]
    for pattern, reason in WITHOUT_EFFECT.items():
        if pattern.endswith("*") and name.startswith(pattern[:-1]):
            return reason
    return None


def render() -> str:
    """The page `docs/configs.md`."""
    lines = [
        "# Settings without effect",
        "",
        "These keys of Kafka are known here and change nothing. They are accepted, so that a `server.properties` of",
        "Kafka can be used as it is, and the broker says in its log which of them it was given.",
        "",
        "Generated from `tidemill.model.config_effects`; a test keeps it true.",
        "",
        "| key | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(WITHOUT_EFFECT.items())),
        "",
        "Refused at the start: listeners other than `PLAINTEXT`, `authorizer.class.name` (nobody would be kept out),",
        "`metadata.log.dir` (the metadata lies in the first data directory).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
