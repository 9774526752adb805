"""One configuration key: its type, its default, what it accepts, and how a text becomes a value.

Values travel as text (in properties files, in requests, in the metadata log) and are used as Python values:
a `ConfigKey` is the border between the two. Bad text is refused with one sentence that says what is allowed:

    >>> SEGMENT_BYTES.parse("1000")
    InvalidConfig: Invalid value 1000 for configuration segment.bytes: Value must be at least 1048576

The rules are Kafka's: text is stripped, booleans are `true` or `false` in any case, a list is separated by
commas, and an integer must fit the width of its type.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable

from tidemill.model.errors import ApiError, ErrorCode

Value = bool | int | float | str | tuple[str, ...] | None
Rule = Callable[[Value], str | None]
"""Judges a parsed value: None if it is allowed, else a sentence that says what is."""

LONG_MAX = 0x7FFF_FFFF_FFFF_FFFF
INT_MAX = 0x7FFF_FFFF
DOUBLE_MAX = 1.7976931348623157e308


class ConfigType(enum.IntEnum):
    """The numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(enum.Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(enum.Enum):
    """How a broker key may change while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    """For one broker at a time: the value makes no sense for all of them (listeners, key stores)."""
    CLUSTER_WIDE = "cluster-wide"
    """For one broker, or as the default of the whole cluster."""


class InvalidConfig(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


_INTEGER_BITS = {ConfigType.INT: 32, ConfigType.LONG: 64, ConfigType.SHORT: 16}
_NOUNS = {ConfigType.INT: "an int", ConfigType.LONG: "a long", ConfigType.SHORT: "a short"}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TEXTS = {ConfigType.STRING, ConfigType.CLASS, ConfigType.PASSWORD}


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    type: ConfigType
    default: Value
    rule: Rule | None
    importance: Importance
    update_mode: UpdateMode
    documentation: str

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def is_internal(self) -> bool:
        """For tests of storage: accepted, never shown."""
        return self.name.startswith("internal.")

    def parse(self, text: str) -> Value:
        """The value of this text; raises InvalidConfig with a sentence for people."""
        value = self._convert(text.strip())
        objection = self.rule(value) if self.rule else None
        if objection:
            raise self._refusal(text, objection)
        return value

    def text(self, value: Value) -> str | None:
        """A value as Kafka prints it; None has no text."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return "1.7976931348623157E308" if value == DOUBLE_MAX else str(value)

    def _convert(self, text: str) -> Value:
        if self.type is ConfigType.BOOLEAN:
            return self._convert_boolean(text)
        if self.type in _INTEGER_BITS:
            return self._convert_integer(text)
        if self.type is ConfigType.DOUBLE:
            return self._convert_double(text)
        if self.type is ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        assert self.type in _TEXTS
        return text

    def _convert_boolean(self, text: str) -> bool:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise self._refusal(text, "Expected value to be either true or false")
        return lowered == "true"

    def _convert_integer(self, text: str) -> int:
        bits = _INTEGER_BITS[self.type]
        if not _INTEGER.fullmatch(text) or len(text) > 20:
            raise self._refusal(text, f"Not a number of type {self.type.name}")
        value = int(text)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise self._refusal(text, f"Value does not fit {_NOUNS[self.type]} of {bits} bits")
        return value

    def _convert_double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._refusal(text, "Not a number of type DOUBLE") from None
        if value != value or "_" in text:
            raise self._refusal(text, "Not a number of type DOUBLE")
        return value

    def _refusal(self, text: str, objection: str) -> InvalidConfig:
        shown = "[hidden]" if self.is_sensitive else text
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: {objection}")


# -- rules ---------------------------------------------------------------------------------------------


def at_least(minimum: float) -> Rule:
    def judge(value: Value) -> str | None:
        assert isinstance(value, int | float)
        return None if value >= minimum else f"Value must be at least {minimum}"

    return judge


def between(minimum: float, maximum: float) -> Rule:
    def judge(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < minimum:
            return f"Value must be at least {minimum}"
        return None if value <= maximum else f"Value must be no more than {maximum}"

    return judge


def exactly_or(exception: int, rule: Rule) -> Rule:
    """One value outside the range that is allowed too, such as -1 for "the library's own choice"."""

    def judge(value: Value) -> str | None:
        if value == exception:
            return None
        objection = rule(value)
        return f"{objection}, or {exception}" if objection else None

    return judge


def one_of(*allowed: str) -> Rule:
    def judge(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return judge


def one_of_ignoring_case(*allowed: str) -> Rule:
    def judge(value: Value) -> str | None:
        if str(value).upper() in allowed:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return judge


def each_of(*allowed: str) -> Rule:
    """A list of distinct names out of these; it may be empty."""

    def judge(value: Value) -> str | None:
        assert isinstance(value, tuple)
        if len(set(value)) != len(value):
            return "Values must not be duplicated"
        strange = [item for item in value if item not in allowed]
        return f"{strange[0]!r} is not one of: {', '.join(allowed)}" if strange else None

    return judge


def unlimited_or_positive(value: Value) -> str | None:
    """Retention times: any negative number means no limit, zero would delete everything at once."""
    return "Value must be unlimited (-1) or at least 1" if value == 0 else None


def without_blanks(value: Value) -> str | None:
    assert isinstance(value, tuple)
    return "Values must not be empty" if "" in value else None


_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def throttled_replicas(value: Value) -> str | None:
    assert isinstance(value, tuple)
    if value in ((), ("*",), ("none",)) or all(_THROTTLED_REPLICA.fullmatch(item) for item in value):
        return None
    return "Value must be '*', or a list of [partitionId]:[brokerId] separated by commas"
