"""Every configuration key of a group, with the names and limits of Kafka 4.3.

A key that is not set for a group falls back to the broker's, whose name has `group.` in front. Where the broker has a
least and a most for it, a group may not go beyond:

    share.record.lock.duration.ms  <-  group.share.record.lock.duration.ms
                                       within group.share.min.record.lock.duration.ms and group.share.max...

The limits bind who changes a group's configuration. A value that was accepted under other limits stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.model.config_keys import (
    ConfigKey,
    ConfigType,
    Importance,
    InvalidConfig,
    Rule,
    UpdateMode,
    Value,
    at_least,
    between,
    one_of,
)
from tidemill.model.configs import (
    BROKER_CONFIGS,
    BrokerLayers,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    Overrides,
    broker_entry,
    broker_value,
)

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"\+?P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1000)


def reset_duration_ms(reset: str) -> int | None:
    """How far `by_duration:PT1H30M` goes back; None for anything else."""
    if not reset.startswith(BY_DURATION):
        return None
    found = _DURATION.fullmatch(reset[len(BY_DURATION) :])
    if found is None:
        return None
    return int(sum(float(part or 0) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True)))


def _reset_strategy(value: Value) -> str | None:
    if value in ("earliest", "latest") or reset_duration_ms(str(value)) is not None:
        return None
    return "Must be earliest, latest or by_duration:<an ISO 8601 duration such as PT1H>"


def _key(name: str, type_: ConfigType, default: Value, rule: Rule | None, documentation: str) -> ConfigKey:
    return ConfigKey(name, type_, default, rule, Importance.MEDIUM, UpdateMode.CLUSTER_WIDE, documentation)


# fmt: off
_KEYS = (
    _key("consumer.assignment.interval.ms", INT, 1000, at_least(0),
         "Least time between two assignments of this consumer group."),
    _key("consumer.heartbeat.interval.ms", INT, 5000, at_least(1),
         "Heartbeat interval that members of this consumer group are told."),
    _key("consumer.session.timeout.ms", INT, 45_000, at_least(1),
         "A member of this consumer group without heartbeat for this long is removed."),
    _key("share.assignment.interval.ms", INT, 1000, at_least(0),
         "Least time between two assignments of this share group."),
    _key("share.auto.offset.reset", STRING, "latest", _reset_strategy,
         "Where a share group begins to read a partition: earliest, latest or by_duration:<ISO 8601 duration>."),
    _key("share.delivery.count.limit", INT, 5, between(2, 10),
         "How often a record is delivered to this share group before it is given up."),
    _key("share.heartbeat.interval.ms", INT, 5000, at_least(1),
         "Heartbeat interval that members of this share group are told."),
    _key("share.isolation.level", STRING, "read_uncommitted",
         one_of("read_uncommitted", "read_committed"),
         "Whether this share group sees records of transactions that are not committed."),
    _key("share.partition.max.record.locks", INT, 2000, between(100, 10_000),
         "Records of a partition that this share group may hold unacknowledged."),
    _key("share.record.lock.duration.ms", INT, 30_000, between(1000, 3_600_000),
         "How long a member of this share group holds a record before it is delivered again."),
    _key("share.renew.acknowledge.enable", BOOLEAN, True, None,
         "Whether members of this share group may renew the locks of their records."),
    _key("share.session.timeout.ms", INT, 45_000, at_least(1),
         "A member of this share group without heartbeat for this long is removed."),
)
# fmt: on
GROUP_CONFIGS: dict[str, ConfigKey] = {key.name: key for key in _KEYS}
_SESSIONS_AND_HEARTBEATS = (
    ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
)


class Bounds(NamedTuple):
    least: str
    most: str


def _bounds(name: str) -> Bounds:
    kind, _, rest = name.partition(".")
    return Bounds(f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}")


def group_value(name: str, overrides: Overrides, layers: BrokerLayers) -> Value:
    """The value that counts for a group."""
    key = GROUP_CONFIGS[name]
    if name in overrides:
        return key.parse(overrides[name])
    inherited = f"group.{name}"
    return broker_value(inherited, layers) if inherited in BROKER_CONFIGS else key.default


def validate_group(changes: Mapping[str, str | None], after: Overrides, layers: BrokerLayers) -> None:
    """Refuse settings of a group that are unknown, beyond what the broker allows, or against each other."""
    for name, text in changes.items():
        if text is None:
            continue
        key = GROUP_CONFIGS.get(name)
        if key is None:
            raise InvalidConfig(f"Unknown group config name: {name}")
        value = key.parse(text)
        least, most = _bounds(name)
        if least in BROKER_CONFIGS and _whole(value) < _whole(broker_value(least, layers)):
            raise InvalidConfig(f"{name} must be greater than or equal to {least}")
        if most in BROKER_CONFIGS and _whole(value) > _whole(broker_value(most, layers)):
            raise InvalidConfig(f"{name} must be less than or equal to {most}")
    for session, heartbeat in _SESSIONS_AND_HEARTBEATS:
        if session not in changes and heartbeat not in changes:
            continue
        if _whole(group_value(session, after, layers)) <= _whole(group_value(heartbeat, after, layers)):
            raise InvalidConfig(f"{session} must be greater than {heartbeat}")


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value


def group_entries(overrides: Overrides, layers: BrokerLayers) -> list[ConfigEntry]:
    return [_group_entry(key, overrides, layers) for key in _KEYS]


def _group_entry(key: ConfigKey, overrides: Overrides, layers: BrokerLayers) -> ConfigEntry:
    places: list[ConfigSynonym] = []
    text = key.text(group_value(key.name, overrides, layers))
    if key.name in overrides:
        places.append(ConfigSynonym(key.name, text, ConfigSource.GROUP))
    if f"group.{key.name}" in BROKER_CONFIGS:
        places.extend(broker_entry(f"group.{key.name}", layers).synonyms)
    else:
        places.append(ConfigSynonym(key.name, key.text(key.default), ConfigSource.DEFAULT))
    return ConfigEntry(key, text, places[0].source, tuple(places), False)
