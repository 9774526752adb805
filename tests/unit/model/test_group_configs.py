"""Configurations of groups: what may be set, what counts, what is inherited."""

from __future__ import annotations

import pytest

from tidemill.model.config_keys import InvalidConfig
from tidemill.model.configs import BrokerLayers, ConfigSource
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
        ("share.no.such.key", "1"),
    ],
)
def test_what_a_group_may_not_set(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig):
        validate_group({name: text}, BrokerLayers())


def test_the_broker_sets_the_bounds() -> None:
    layers = BrokerLayers(static={"group.share.min.record.lock.duration.ms": "1000"})
    validate_group(
        {LOCK: "1000", "share.auto.offset.reset": "by_duration:P1DT2H", "consumer.session.timeout.ms": None},
        layers,
    )


@pytest.mark.parametrize(
    ("reset", "milliseconds"),
    [
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:P2D", 172_800_000),
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
    assert entries["share.auto.offset.reset"].source is ConfigSource.DEFAULT
