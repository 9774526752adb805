"""Configurations of groups: what may be set, what counts, what is inherited."""

from __future__ import annotations

import pytest

from tidemill.model.config_keys import InvalidConfig
from tidemill.model.configs import BrokerLayers, ConfigSource, ConfigSynonym
from tidemill.model.group_configs import group_entries, group_value, reset_duration_ms, validate_group

LAYERS = BrokerLayers(static={"group.share.record.lock.duration.ms": "20000"})
LOCK = "share.record.lock.duration.ms"


def test_a_group_inherits_from_its_broker() -> None:
    assert group_value(LOCK, {}, BrokerLayers()) == 30_000
    assert group_value(LOCK, {}, LAYERS) == 20_000
    assert group_value(LOCK, {LOCK: "40000"}, LAYERS) == 40_000
    assert group_value("share.auto.offset.reset", {}, LAYERS) == "latest"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (LOCK, "14999"),
        (LOCK, "60001"),
        (LOCK, "long"),
        ("share.delivery.count.limit", "1"),
        ("share.partition.max.record.locks", "4001"),
        ("share.isolation.level", "read_everything"),
        ("share.auto.offset.reset", "by_duration:PT"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "Latest"),
        ("share.auto.offset.reset", "BY_DURATION:PT1H"),
        ("share.no.such.key", "1"),
    ],
)
def test_what_a_group_may_not_set(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig):
        validate_group({name: text}, {name: text}, BrokerLayers())


def test_the_broker_sets_the_bounds() -> None:
    layers = BrokerLayers(static={"group.share.min.record.lock.duration.ms": "1000"})
    after = {LOCK: "1000", "share.auto.offset.reset": "by_duration:P1DT2H"}
    validate_group({**after, "consumer.session.timeout.ms": None, "share.no.such.key": None}, after, layers)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_session_lasts_longer_than_a_heartbeat(kind: str) -> None:
    """Whichever of the two is set last, and wherever the other one comes from."""
    layers = BrokerLayers(static={f"group.{kind}.min.session.timeout.ms": "1000"})
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    validate_group({session: "5001"}, {session: "5001"}, layers)
    for changes, after in (
        ({session: "5000"}, {session: "5000"}),
        ({session: None}, {session: "5000"}),
        ({heartbeat: "6000"}, {heartbeat: "6000", session: "6000"}),
    ):
        with pytest.raises(InvalidConfig):
            validate_group(changes, after, layers)
    validate_group({LOCK: "30000"}, {LOCK: "30000", session: "5000"}, layers)


@pytest.mark.parametrize(
    ("reset", "milliseconds"),
    [
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:P2D", 172_800_000),
        ("by_duration:+pt1s", 1000),
        ("by_duration:PT0.5S", 500),
        ("by_duration:P", None),
        ("by_duration:P1DT", None),
        ("earliest", None),
    ],
)
def test_durations(reset: str, milliseconds: int | None) -> None:
    assert reset_duration_ms(reset) == milliseconds


def test_entries_say_where_a_value_comes_from() -> None:
    entries = {
        entry.name: entry for entry in group_entries({"share.isolation.level": "read_committed"}, LAYERS)
    }
    assert (entries["share.isolation.level"].value, entries["share.isolation.level"].source) == (
        "read_committed",
        ConfigSource.GROUP,
    )
    assert (entries[LOCK].value, entries[LOCK].source) == ("20000", ConfigSource.STATIC_BROKER)
    reset = entries["share.auto.offset.reset"]
    assert reset.source is ConfigSource.DEFAULT
    assert reset.synonyms == (ConfigSynonym("share.auto.offset.reset", "latest", ConfigSource.DEFAULT),)
    places = [synonym.source for synonym in entries["share.isolation.level"].synonyms]
    assert places == [ConfigSource.GROUP, ConfigSource.DEFAULT]
