"""Every known setting is read somewhere or is listed, with the reason, as having no effect; never both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tidemill.model.config_effects import render, why_without_effect
from tidemill.model.configs import BROKER_CONFIGS
from tidemill.model.group_configs import GROUP_CONFIGS
from tidemill.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS
from tidemill.storage.config import LogConfig

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "tidemill"
NOT_A_BROKER = {"model", "messaging", "spark", "console", "cli", "testing"}
"""The list of keys itself, and clients, whose settings have the same names."""
OF_INTERNAL_TOPICS = {
    f"{keys}.{rest}"
    for keys in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    for rest in ("replication.factor", "segment.bytes", "min.isr", "num.partitions")
}
"""`api.internal_topics` puts these names together."""
NAMED_BUT_NOT_READ = {"unclean.leader.election.enable"}
"""A topic of the coordinators is created with it, as Kafka does; nobody asks for its value."""
TOPIC_KEY_OF = {synonym.name: key for key, group in TOPIC_SYNONYMS.items() for synonym in group}
GROUP_KEY_OF = {
    f"group.{kind}.{bound}{rest}": f"{kind}.{rest}"
    for kind, _, rest in (name.partition(".") for name in GROUP_CONFIGS)
    for bound in ("", "min.", "max.")
}
"""What a group's own configuration falls back to, and its limits: `model.group_configs` puts these together."""


@cache
def sources() -> str:
    files = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in NOT_A_BROKER)
    return "\n".join(path.read_text() for path in files)


def is_read(name: str) -> bool:
    if name in NAMED_BUT_NOT_READ:
        return False
    return (
        f'"{name}"' in sources()
        or name in OF_INTERNAL_TOPICS
        or _is_read_from_log_config(TOPIC_KEY_OF.get(name, name))
        or (name in GROUP_KEY_OF and is_read(GROUP_KEY_OF[name]))
    )


def _is_read_from_log_config(name: str) -> bool:
    field = name.replace(".", "_")
    return field in LogConfig.__dataclass_fields__ and re.search(rf"\.{field}\b", sources()) is not None


@pytest.mark.parametrize("name", sorted({*BROKER_CONFIGS, *TOPIC_CONFIGS, *GROUP_CONFIGS}))
def test_a_setting_has_an_effect_or_a_reason_to_have_none(name: str) -> None:
    reason = why_without_effect(name)
    assert is_read(name) or reason, f"{name} is accepted, read nowhere, and not listed"
    assert not (is_read(name) and reason), f"{name} is read, and listed as having no effect: {reason}"


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "configs.md").read_text()
    assert page == render(), "run: python -m tidemill.model.config_effects > docs/configs.md"
