"""What a configuration may say, as tables of settings; reading one refuses everything else by name.

    SOURCE = {"topics": Setting("texts", help="topics to read"), "starting": Setting("text", "earliest", STARTS)}
    read_section("source", {"topics": ["orders"]}, SOURCE)      # {"topics": ["orders"], "starting": "earliest"}

All problems of a file are collected before anything is refused, so that one look repairs them all. Every
sentence names the setting, what was found and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """Every problem of a configuration, one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


@dataclasses.dataclass(frozen=True)
class Setting:
    """One name of a section: its kind (a key of KINDS), its default, and the words it is limited to."""

    kind: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    help: str = ""
    minimum: float | None = None


Section = Mapping[str, Setting]
_DURATION = re.compile(r"\d+ (second|minute|hour|day|week)s?")

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a text"),
    "number": ((int,), "a whole number"),
    "decimal": ((int, float), "a number"),
    "flag": ((bool,), "true or false"),
    "texts": ((list,), "a list of texts"),
    "table": ((dict,), "a table of names and texts"),
    "duration": ((str,), "a number and a unit, such as '10 minutes' (second, minute, hour, day, week)"),
    "columns": ((dict, str), "a table of columns and types, or 'infer'"),
}


def read_section(name: str, given: Any, section: Section, problems: list[str]) -> dict[str, Any]:
    """The settings of one section with defaults filled in; what is wrong is added to `problems`."""
    if not isinstance(given, dict):
        problems.append(f"[{name}] is no section: write it as a table")
        return {}
    for key in given:
        if key not in section:
            problems.append(
                f"{name}.{key} is unknown{_nearest(key, section)}; allowed are {', '.join(section)}"
            )
    found = {}
    for key, setting in section.items():
        if key in given:
            found[key] = given[key]
            problems += _value_problems(f"{name}.{key}", given[key], setting)
        elif setting.default is REQUIRED:
            problems.append(f"{name}.{key} is missing: {setting.help or KINDS[setting.kind][1]}")
        else:
            found[key] = setting.default
    return found


def _value_problems(name: str, value: Any, setting: Setting) -> list[str]:
    allowed, wanted = KINDS[setting.kind]
    if not _is_a(value, allowed):
        return [f"{name} is {value!r}; allowed is {wanted}"]
    if setting.kind == "texts" and not all(isinstance(each, str) for each in value):
        return [f"{name} is {value!r}; allowed is {wanted}"]
    if setting.kind == "duration" and not _DURATION.fullmatch(value):
        return [f"{name} is {value!r}; allowed is {wanted}"]
    if setting.kind == "columns" and isinstance(value, str) and value != "infer":
        return [f"{name} is {value!r}; allowed is {wanted}"]
    if setting.choices:
        return _choice_problems(name, value, setting.choices)
    if setting.minimum is not None and value < setting.minimum:
        return [f"{name} is {value!r}; allowed is {setting.minimum:g} or more"]
    return []


def _is_a(value: Any, allowed: tuple[type, ...]) -> bool:
    """In TOML true is no number."""
    return type(value) in allowed


def _choice_problems(name: str, value: Any, choices: tuple[str, ...]) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [
        f"{name} is {each!r}{_nearest(each, choices)}; allowed are {', '.join(choices)}"
        for each in values
        if each not in choices
    ]


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
