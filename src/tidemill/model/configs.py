"""Which value of a configuration key counts, and where it comes from.

Five layers lie over each other, the upper one wins:

    1 the topic's own setting                       (dynamic, in the metadata log)
    2 this broker's dynamic setting                 (dynamic, in the metadata log)
    3 the cluster's dynamic default for all brokers (dynamic, in the metadata log)
    4 the properties the broker was started with    (static)
    5 the default of the key

The numbers are DescribeConfigs' own. A topic key looks in layers 2 to 5 under its broker synonyms, so with
`log.retention.hours=1` in the properties and nothing else:

    >>> entry = topic_entry("retention.ms", {}, BrokerLayers(static={"log.retention.hours": "1"}))
    >>> entry.value, entry.source
    ('3600000', <ConfigSource.STATIC_BROKER: 4>)
    >>> [(synonym.name, synonym.value) for synonym in entry.synonyms]
    [('log.retention.hours', '1'), ('log.retention.hours', '168')]

Kafka hides synonyms that count in other units and then calls the value a default; here they are shown.
Layers hold text; text in the dynamic layers was validated when it was set, text in the properties is
validated by `validate_static` at the start, so that resolving never meets a bad value.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.model.broker_group_configs import GROUP_KEYS
from tidemill.model.broker_log_configs import LOG_KEYS
from tidemill.model.broker_node_configs import NODE_KEYS
from tidemill.model.config_keys import ConfigKey, InvalidConfig, UpdateMode, Value
from tidemill.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS, Synonym

BROKER_CONFIGS: dict[str, ConfigKey] = {
    key.name: key for key in sorted(LOG_KEYS + NODE_KEYS + GROUP_KEYS, key=lambda key: key.name)
}

Overrides = Mapping[str, str]


class ConfigSource(enum.IntEnum):
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerLayers:
    """What has been set for a broker, as text, in its three layers."""

    static: Overrides = dataclasses.field(default_factory=dict)
    cluster: Overrides = dataclasses.field(default_factory=dict)
    broker: Overrides = dataclasses.field(default_factory=dict)

    def from_the_top(self) -> tuple[tuple[ConfigSource, Overrides], ...]:
        return (
            (ConfigSource.DYNAMIC_BROKER, self.broker),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self.cluster),
            (ConfigSource.STATIC_BROKER, self.static),
        )


class ConfigSynonym(NamedTuple):
    """One place where a value was found; the text is in the units of that place."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """The answer of DescribeConfigs for one key. A sensitive value is never shown: its text is None."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def is_sensitive(self) -> bool:
        return self.key.is_sensitive

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


# -- topics --------------------------------------------------------------------------------------------


def topic_entries(overrides: Overrides, layers: BrokerLayers) -> list[ConfigEntry]:
    """All keys of a topic in the order of their names, internal ones only if they are set."""
    return [
        topic_entry(name, overrides, layers)
        for name, key in TOPIC_CONFIGS.items()
        if not key.is_internal or name in overrides
    ]


def topic_entry(name: str, overrides: Overrides, layers: BrokerLayers) -> ConfigEntry:
    key = TOPIC_CONFIGS[name]
    synonyms = tuple(_topic_synonyms(name, overrides, layers))
    if not synonyms:
        return ConfigEntry(key, key.text(key.default), ConfigSource.DEFAULT, (), False)
    value = key.text(_topic_value(key, overrides, layers))
    return ConfigEntry(key, value, synonyms[0].source, synonyms, False)


def topic_values(overrides: Overrides, layers: BrokerLayers) -> dict[str, Value]:
    """Every topic key with the value that counts."""
    return {name: _topic_value(key, overrides, layers) for name, key in TOPIC_CONFIGS.items()}


def with_overrides(inherited: Mapping[str, Value], overrides: Overrides) -> dict[str, Value]:
    """`topic_values` for many topics: inherit once (`topic_values({}, layers)`), then set what each has."""
    values = dict(inherited)
    for name, text in overrides.items():
        if name in TOPIC_CONFIGS:
            values[name] = TOPIC_CONFIGS[name].parse(text)
    return values


def validate_topic(overrides: Mapping[str, str | None], layers: BrokerLayers) -> None:
    """Refuse settings of a topic that are unknown, out of range or at odds with each other."""
    for name, text in overrides.items():
        if name not in TOPIC_CONFIGS:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        if text is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {name}")
        TOPIC_CONFIGS[name].parse(text)
    _validate_together(topic_values({name: text or "" for name, text in overrides.items()}, layers))


def _validate_together(values: Mapping[str, Value]) -> None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(least, int) and isinstance(most, int)
    if least > most:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values["remote.storage.enable"]:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def _topic_value(key: ConfigKey, overrides: Overrides, layers: BrokerLayers) -> Value:
    if key.name in overrides:
        return key.parse(overrides[key.name])
    synonyms = TOPIC_SYNONYMS.get(key.name, ())
    for _, layer in layers.from_the_top():
        for synonym in synonyms:
            if synonym.name in layer:
                return _scaled(BROKER_CONFIGS[synonym.name].parse(layer[synonym.name]), synonym, key)
    return key.default


def _scaled(value: Value, synonym: Synonym, key: ConfigKey) -> Value:
    """The value of a broker key in the units of the topic key; any negative retention time is none."""
    if key.name == "retention.ms" and isinstance(value, int) and value < 0:
        return -1
    return value * synonym.factor if isinstance(value, int) and synonym.factor != 1 else value


def _topic_synonyms(name: str, overrides: Overrides, layers: BrokerLayers) -> Iterator[ConfigSynonym]:
    if name in overrides:
        yield ConfigSynonym(name, overrides[name], ConfigSource.TOPIC)
    yield from _places([synonym.name for synonym in TOPIC_SYNONYMS.get(name, ())], layers)


# -- brokers -------------------------------------------------------------------------------------------


def broker_entries(layers: BrokerLayers) -> list[ConfigEntry]:
    return [broker_entry(name, layers) for name in BROKER_CONFIGS]


def broker_entry(name: str, layers: BrokerLayers) -> ConfigEntry:
    key = BROKER_CONFIGS[name]
    places = list(_places(_group_of(name), layers))
    while places and places[0].name != name:
        places.pop(0)
    source = places[0].source if places else ConfigSource.DEFAULT
    value = None if key.is_sensitive else key.text(broker_value(name, layers))
    return ConfigEntry(key, value, source, tuple(places), key.update_mode is UpdateMode.READ_ONLY)


def broker_value(name: str, layers: BrokerLayers) -> Value:
    """The value of one broker key under its own name (`log.retention.ms` does not look at the hours)."""
    key = BROKER_CONFIGS[name]
    for _, layer in layers.from_the_top():
        if name in layer:
            return key.parse(layer[name])
    return key.default


def validate_broker(changes: Mapping[str, str | None], *, for_all_brokers: bool) -> None:
    """Refuse dynamic settings of a broker (or of all) that are read-only, local or out of range.

    Unknown keys pass, as in Kafka, where plug-ins read them.
    """
    for name, text in changes.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            continue
        if key.update_mode is UpdateMode.READ_ONLY:
            raise _not_at_run_time(name)
        if for_all_brokers and key.update_mode is UpdateMode.PER_BROKER:
            raise InvalidConfig(f"Cannot update these configs at default cluster level: {name}")
        if text is not None:
            key.parse(text)


def validate_static(properties: Overrides) -> list[str]:
    """Refuse properties that cannot be; return the names nobody knows, so that the start can warn of them."""
    for name, text in properties.items():
        if name in BROKER_CONFIGS:
            BROKER_CONFIGS[name].parse(text)
    _validate_together(topic_values({}, BrokerLayers(static=properties)))
    return [name for name in properties if name not in BROKER_CONFIGS]


def _not_at_run_time(name: str) -> InvalidConfig:
    return InvalidConfig(
        f"Cannot update these configs dynamically: {name}. "
        "Set it in the properties of the broker and start the broker again."
    )


def _group_of(name: str) -> list[str]:
    """The broker keys that say the same as this one in other units, strongest first."""
    return _GROUPS.get(name, [name])


_GROUPS: dict[str, list[str]] = {
    synonym.name: [each.name for each in synonyms]
    for synonyms in TOPIC_SYNONYMS.values()
    for synonym in synonyms
}


def _places(names: list[str], layers: BrokerLayers) -> Iterator[ConfigSynonym]:
    """Where any of these broker keys has a value, strongest first, down to the defaults."""
    for source, layer in layers.from_the_top():
        for name in names:
            if name in layer:
                yield _shown(name, layer[name], source)
    for name in names:
        key = BROKER_CONFIGS.get(name)
        if key is not None and key.default is not None:
            yield _shown(name, key.text(key.default), ConfigSource.DEFAULT)


def _shown(name: str, text: str | None, source: ConfigSource) -> ConfigSynonym:
    return ConfigSynonym(name, None if BROKER_CONFIGS[name].is_sensitive else text, source)
