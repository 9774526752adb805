"""kio as the judge of our schemas: random messages, and both shapes brought to one neutral form.

kio has one class per version and turns some numbers into richer values; `neutral` undoes that on both sides:

    kio                          here                neutral
    timeout=timedelta(...)       timeout_ms=1500     {"timeout": 1500}
    timestamp=None               timestamp=-1        {"timestamp": -1}
    topic_id=UUID / None         16 bytes            16 bytes
    tuples, enum members         lists, numbers      lists, numbers

Its native decoder ends the process when a count is absurd, so it is only ever given what we encoded.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import io
import pkgutil
import random
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

import tidemill.wire.messages
from tidemill.wire.schema import Message, WireField, WireType

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LAST_DATETIME_SECONDS = 4_000_000_000


def top_level_messages() -> Iterator[tuple[type[Message], int]]:
    """Every request and response class of `wire.messages`, with every version it has."""
    for module_info in pkgutil.iter_modules(tidemill.wire.messages.__path__):
        module = importlib.import_module(f"tidemill.wire.messages.{module_info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.__name__:
                first, last = cls.VERSIONS
                if "versions" in cls.__dict__ or last != Message.VERSIONS[1]:
                    yield from ((cls, version) for version in range(first, last + 1))


def their_class(cls: type[Message], version: int) -> type[Any]:
    kind = "request" if cls.__name__.endswith("Request") else "response"
    module_name = cls.__module__.rsplit(".", 1)[1]
    module = importlib.import_module(f"kio.schema.{module_name}.v{version}.{kind}")
    found: type[Any] = getattr(module, cls.__name__)
    return found


def their_decode(theirs: type[Any], data: bytes) -> Any:
    entity, size = entity_reader(theirs)(data, 0)
    assert size == len(data)
    return entity


def their_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


# -- one neutral form ---------------------------------------------------------------------------------


def fields_of(cls: type[Message], version: int) -> Iterator[tuple[str, WireField]]:
    for name, wire in cls.FIELDS.items():
        if wire.is_in(version):
            yield name, wire


def neutral_name(name: str) -> str:
    return name.removesuffix("_ms")


def neutral_ours(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return {
            neutral_name(name): neutral_ours(getattr(value, name), version)
            for name, _ in fields_of(type(value), version)
        }
    if isinstance(value, list):
        return [neutral_ours(element, version) for element in value]
    return value


def neutral_theirs(value: Any, kafka_type: str | None = None) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            neutral_name(field.name): neutral_theirs(
                getattr(value, field.name), field.metadata.get("kafka_type")
            )
            for field in dataclasses.fields(value)
        }
    if value is None:
        return {"datetime_i64": -1, "uuid": bytes(16)}.get(kafka_type or "")
    if isinstance(value, tuple):
        return [neutral_theirs(element, kafka_type) for element in value]
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    return value


# -- random messages ----------------------------------------------------------------------------------


class Generator:
    """Random messages of ours that kio can represent; `theirs` guides it where kio is narrower."""

    def __init__(self, seed: int, maximum_length: int = 3) -> None:
        self._random = random.Random(seed)
        self._maximum_length = maximum_length
        self._makers: dict[str, Callable[[], Any]] = {
            "bool": lambda: self._random.random() < 0.5,
            "int8": lambda: self._integer(7),
            "int16": lambda: self._integer(15),
            "int32": lambda: self._integer(31),
            "int64": lambda: self._integer(63),
            "uint16": lambda: self._random.randrange(1 << 16),
            "uint32": lambda: self._random.randrange(1 << 32),
            "float64": self._random.random,
            "string": self._string,
            "bytes": self._bytes,
            "records": self._bytes,
            "uuid": lambda: self._random.choice([bytes(16), self._random.randbytes(16)]),
        }

    def message(self, cls: type[Message], version: int, theirs: type[Any]) -> Message:
        their_fields = {neutral_name(field.name): field for field in dataclasses.fields(theirs)}
        hints = typing.get_type_hints(theirs)
        ours = dict(fields_of(cls, version))
        assert {neutral_name(name) for name in ours} == set(their_fields), f"{cls.__name__} v{version}"
        values = {}
        for name, wire in ours.items():
            their_field = their_fields[neutral_name(name)]
            values[name] = self._value(wire, version, hints[their_field.name], their_field.metadata)
        return cls(**values)

    def _value(self, wire: WireField, version: int, hint: Any, metadata: Any) -> Any:
        if version >= wire.nullable_since and self._random.random() < 0.25:
            return None
        if wire.tag is not None and wire.is_tagged(version) and self._random.random() < 0.3:
            return self._default(wire)
        return self._of_type(wire.type, version, hint, metadata.get("kafka_type"))

    def _default(self, wire: WireField) -> Any:
        """Something small; whether it is the very default does not matter to a comparison."""
        if wire.type.name == "array":
            return []
        if wire.type.name == "struct":
            assert isinstance(wire.type.element, type)
            return wire.type.element()
        return {"uuid": bytes(16), "string": "", "bytes": b"", "records": b"", "bool": False}.get(
            wire.type.name, 0
        )

    def _of_type(self, wire: WireType, version: int, hint: Any, kafka_type: str | None) -> Any:
        if wire.name == "array":
            element = wire.element if isinstance(wire.element, WireType) else WireType("struct", wire.element)
            count = self._random.randrange(self._maximum_length + 1)
            return [self._of_type(element, version, hint, kafka_type) for _ in range(count)]
        if wire.name == "struct":
            assert isinstance(wire.element, type)
            return self.message(wire.element, version, _entity_in(hint))
        if kafka_type == "error_code":
            return int(self._random.choice(list(ErrorCode)).value)
        if kafka_type == "datetime_i64":
            # Whole seconds: kio goes through floats and may lose a millisecond.
            none = [-1] if type(None) in typing.get_args(hint) else []
            return self._random.choice([*none, 0, self._random.randrange(LAST_DATETIME_SECONDS) * 1000])
        if kafka_type == "timedelta_i64":
            return self._random.randrange(LAST_DATETIME_SECONDS) * 1000
        return self._makers[wire.name]()

    def _integer(self, bits: int) -> int:
        limit = 1 << bits
        corners = (0, 1, -1, limit - 1, -limit)
        return self._random.choice((*corners, self._random.randrange(-limit, limit)))

    def _string(self) -> str:
        alphabet = "abc.-_é\N{SNOWMAN}\N{GRINNING FACE}"
        length = self._random.choice((0, 1, 5, 150))
        return "".join(self._random.choices(alphabet, k=length))

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 200)))


def _entity_in(hint: Any) -> type[Any]:
    """The entity class inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return hint
    return next(_entity_in(part) for part in typing.get_args(hint) if part not in (type(None), Ellipsis))
