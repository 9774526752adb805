"""Every known setting is read somewhere or is listed, with the reason, as having no effect; never both."""

from __future__ import annotations

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
BUILT_BY_PREFIX = ("offsets.topic.", "transaction.state.log.", "share.coordinator.state.topic.")
"""`api.internal_topics` puts these names together."""
OF_GROUPS = {
    f"group.{kind}.{bound}{rest}"
    for kind, _, rest in (name.partition(".") for name in GROUP_CONFIGS)
    for bound in ("", "min.", "max.")
}
"""What a group's own configuration falls back to, and its limits: `model.group_configs` puts these together."""


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.parent.name != "model")


def is_read(name: str) -> bool:
    synonyms = {synonym.name for group in TOPIC_SYNONYMS.values() for synonym in group}
    return (
        f'"{name}"' in sources()
        or name.replace(".", "_") in LogConfig.__dataclass_fields__
        or name in synonyms
        or name.startswith(BUILT_BY_PREFIX)
        or name in OF_GROUPS
    )


@pytest.mark.parametrize("name", sorted({*BROKER_CONFIGS, *TOPIC_CONFIGS, *GROUP_CONFIGS}))
def test_a_setting_has_an_effect_or_a_reason_to_have_none(name: str) -> None:
    assert is_read(name) or why_without_effect(name), f"{name} is accepted, read nowhere, and not listed"


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "configs.md").read_text()
    assert page == render(), "run: python -m tidemill.model.config_effects > docs/configs.md"
