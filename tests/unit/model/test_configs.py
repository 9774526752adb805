"""Which value counts, where it comes from, and what is refused with which sentence."""

from __future__ import annotations

import pytest

from tidemill.model.config_keys import InvalidConfig
from tidemill.model.configs import (
    BROKER_CONFIGS,
    BrokerLayers,
    ConfigSource,
    broker_entries,
    broker_entry,
    broker_value,
    topic_entries,
    topic_entry,
    topic_values,
    validate_broker,
    validate_static,
    validate_topic,
    with_overrides,
)
from tidemill.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS
from tidemill.storage.config import LogConfig, log_config_from

NOTHING = BrokerLayers()


def test_every_default_is_a_value_of_its_key() -> None:
    for key in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        if key.default is not None:
            text = key.text(key.default)
            assert text is not None
            assert key.parse(text) == key.default, key.name
        assert key.documentation.endswith("."), key.name


def test_every_synonym_is_a_broker_key_with_the_same_default() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        defaults = [
            value * synonym.factor if synonym.factor != 1 else value
            for synonym in synonyms
            if (value := BROKER_CONFIGS[synonym.name].default) is not None
        ]
        assert defaults == [TOPIC_CONFIGS[name].default], name


def test_log_config_defaults_are_those_of_the_keys() -> None:
    assert log_config_from(topic_values({}, NOTHING)) == LogConfig()


def test_log_config_from_values() -> None:
    config = log_config_from(
        topic_values({"cleanup.policy": "compact,delete", "flush.messages": "1"}, NOTHING)
    )
    assert config.is_compacted and config.is_deleted and config.acknowledges_after_sync
    assert log_config_from(topic_values({"cleanup.policy": ""}, NOTHING)).cleanup_policy == frozenset()
    assert log_config_from(topic_values({"internal.segment.bytes": "100"}, NOTHING)).segment_bytes == 100


@pytest.mark.parametrize(
    ("name", "text", "objection"),
    [
        ("segment.bytes", "1000", "Value must be at least 1048576"),
        ("segment.bytes", "2147483648", "does not fit an int of 32 bits"),
        ("segment.bytes", "1_000_000_000", "Not a number of type INT"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("preallocate", "yes", "either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number"),
        ("cleanup.policy", "compress", "'compress' is not one of: compact, delete"),
        ("cleanup.policy", "delete,delete", "must not be duplicated"),
        ("compression.type", "brotli", "must be one of: uncompressed"),
        ("compression.gzip.level", "0", "at least 1, or -1"),
        ("leader.replication.throttled.replicas", "0:1,x", "[partitionId]:[brokerId]"),
        ("min.compaction.lag.ms", "9223372036854775808", "does not fit a long of 64 bits"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
        ("no.such.key", "1", "Unknown topic config name: no.such.key"),
    ],
)
def test_bad_topic_settings_are_refused_with_a_sentence(name: str, text: str, objection: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_topic({name: text}, NOTHING)
    assert objection in caught.value.message
    assert name in caught.value.message or "Tiered" in objection


def test_settings_at_odds_with_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        validate_topic({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, NOTHING)
    with pytest.raises(InvalidConfig, match="Null value"):
        validate_topic({"retention.ms": None}, NOTHING)
    validate_topic(
        {"retention.ms": " 10 ", "preallocate": "TRUE", "cleanup.policy": "compact, delete"}, NOTHING
    )


def test_the_upper_layer_wins() -> None:
    layers = BrokerLayers(
        static={"log.retention.hours": "1", "log.retention.minutes": "2"},
        cluster={"log.retention.ms": "3"},
        broker={"log.retention.ms": "4"},
    )
    assert topic_entry("retention.ms", {"retention.ms": "5"}, layers).value == "5"
    assert topic_entry("retention.ms", {}, layers).value == "4"
    entry = topic_entry("retention.ms", {}, BrokerLayers(static=layers.static, cluster=layers.cluster))
    assert (entry.value, entry.source) == ("3", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    entry = topic_entry("retention.ms", {}, BrokerLayers(static=layers.static))
    assert (entry.value, entry.source) == ("120000", ConfigSource.STATIC_BROKER)
    assert topic_entry("retention.ms", {}, NOTHING).source is ConfigSource.DEFAULT


def test_synonyms_list_every_place_from_the_top() -> None:
    layers = BrokerLayers(static={"log.retention.hours": "1"}, broker={"log.retention.ms": "4"})
    entry = topic_entry("retention.ms", {"retention.ms": "5"}, layers)
    assert [tuple(synonym) for synonym in entry.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "4", 2),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_a_negative_retention_time_is_no_limit() -> None:
    assert topic_values({}, BrokerLayers(static={"log.retention.hours": "-5"}))["retention.ms"] == -1
    with pytest.raises(InvalidConfig, match=r"unlimited \(-1\)"):
        validate_static({"log.retention.minutes": "0"})


def test_topic_entries_hide_internal_keys() -> None:
    names = [entry.name for entry in topic_entries({}, NOTHING)]
    assert names == sorted(names)
    assert "internal.segment.bytes" not in names
    assert len(names) == 33


def test_with_overrides_equals_topic_values() -> None:
    layers = BrokerLayers(static={"log.segment.bytes": "2000000", "log.roll.hours": "2"})
    overrides = {"segment.ms": "5", "cleanup.policy": "compact"}
    assert with_overrides(topic_values({}, layers), overrides) == topic_values(overrides, layers)


def test_broker_entries() -> None:
    layers = BrokerLayers(
        static={"node.id": "7", "ssl.key.password": "secret"}, cluster={"max.connections": "9"}
    )
    entries = {entry.name: entry for entry in broker_entries(layers)}
    assert (entries["node.id"].value, entries["node.id"].is_read_only) == ("7", True)
    assert (entries["max.connections"].value, entries["max.connections"].source) == ("9", 3)
    password = entries["ssl.key.password"]
    assert password.value is None and password.is_sensitive
    assert all(synonym.value is None for synonym in password.synonyms)
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    assert broker_value("auto.create.topics.enable", layers) is True


def test_a_broker_entry_shows_its_own_name_first() -> None:
    layers = BrokerLayers(static={"log.retention.minutes": "2"})
    assert broker_entry("log.retention.ms", layers).synonyms == ()
    hours = broker_entry("log.retention.hours", layers)
    assert (hours.value, hours.source) == ("168", ConfigSource.DEFAULT)


def test_dynamic_broker_settings() -> None:
    validate_broker(
        {"log.retention.ms": "1000", "some.plugin.key": "x", "max.connections": None}, for_all_brokers=True
    )
    with pytest.raises(InvalidConfig, match=r"Cannot update these configs dynamically: node\.id"):
        validate_broker({"node.id": "3"}, for_all_brokers=False)
    with pytest.raises(InvalidConfig, match=r"default cluster level: listeners"):
        validate_broker({"listeners": "PLAINTEXT://:1"}, for_all_brokers=True)
    with pytest.raises(InvalidConfig, match="Value must be at least 0"):
        validate_broker({"message.max.bytes": "-1"}, for_all_brokers=False)


def test_static_properties() -> None:
    assert validate_static({"node.id": "1", "strange.key": "x"}) == ["strange.key"]
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        validate_static({"num.partitions": "0"})


def test_a_password_is_not_repeated_in_an_objection() -> None:
    assert "hidden" in str(BROKER_CONFIGS["ssl.key.password"]._refusal("secret", "no"))
