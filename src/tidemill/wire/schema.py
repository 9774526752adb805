"""Kafka's message schemas, declared once for all versions.

A message is a class; its annotations are the neutral shape that handlers see, its field specifiers say how
each version puts it on the wire:

    class DescribeClusterRequest(Message, versions=(0, 2), flexible=0):
        include_cluster_authorized_operations: bool = boolean()
        endpoint_type: int = int8(since=1, default=1)

`encode(message, version)` and `decode(DescribeClusterRequest, version, data)` do the rest. For each
(class, version) the fields are compiled once into plain functions. What a version lacks is not written,
and is its default when read, so version differences never reach a handler.

Input is hostile until read: every count and length is checked against the bytes that remain *before*
anything is allocated, unknown tagged fields are skipped (as Kafka does), and any violation raises
`MalformedMessage`. A message with n bytes left can therefore hold at most n array elements, and never more than
`MAX_ELEMENTS`.

Limits: `struct` fields of type float64 and uint16/32 exist because Kafka's schemas use them; generics,
maps and default expressions do not exist because Kafka's schemas have none.
"""

from __future__ import annotations

import functools
import struct as _struct
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from tidemill.model.errors import MalformedMessage
from tidemill.wire.schema_source import PlainField, compile_constructor, compile_reader, compile_writer
from tidemill.wire.schema_values import (
    BUDGET,
    FIXED,
    MAX_ELEMENTS,
    MAX_TAGGED_FIELDS,
    MINIMUM_SIZES,
    TOO_MANY_ELEMENTS,
    Reader,
    Writer,
    blob_reader,
    blob_writer,
    length_reader,
    length_writer,
    read_unsigned_varint,
    read_uuid,
    write_unsigned_varint,
)

FOREVER = 0x7FFF
ZERO_UUID = bytes(16)
C = TypeVar("C")


class WireType(NamedTuple):
    """One primitive of the protocol; arrays and structs refer to their element."""

    name: str
    element: WireType | type[Message] | None = None


class WireField(NamedTuple):
    """How a field travels: in which versions, from when it may be null, and under which tag."""

    type: WireType
    since: int = 0
    until: int = FOREVER
    nullable_since: int = FOREVER
    tag: int | None = None
    tag_since: int = 0

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and version >= self.tag_since


class Specified:
    """What a field specifier leaves in the class body: the field on the wire, and its default."""

    __slots__ = ("default", "factory", "wire")

    def __init__(self, wire: WireField, default: Any, factory: Callable[[], Any] | None = None) -> None:
        self.wire = wire
        self.default = default
        self.factory = factory


def _specifier(name: str, empty: Any) -> Callable[..., Any]:
    def specify(
        *,
        default: Any = empty,
        since: int = 0,
        until: int = FOREVER,
        nullable_since: int = FOREVER,
        tag: int | None = None,
        tag_since: int = 0,
    ) -> Any:
        return Specified(WireField(WireType(name), since, until, nullable_since, tag, tag_since), default)

    return specify


boolean = _specifier("bool", False)
int8 = _specifier("int8", 0)
int16 = _specifier("int16", 0)
int32 = _specifier("int32", 0)
int64 = _specifier("int64", 0)
uint16 = _specifier("uint16", 0)
uint32 = _specifier("uint32", 0)
float64 = _specifier("float64", 0.0)
string = _specifier("string", "")
blob = _specifier("bytes", b"")
records = _specifier("records", None)
uuid = _specifier("uuid", ZERO_UUID)

INT8, INT16, INT32, INT64 = WireType("int8"), WireType("int16"), WireType("int32"), WireType("int64")
STRING, UUID, BYTES = WireType("string"), WireType("uuid"), WireType("bytes")


def array(of: WireType | type[Message], *, default: tuple[()] | None = (), **where: Any) -> Any:
    """`where` as for the specifiers above: since, until, nullable_since, tag, tag_since."""
    wire = WireField(WireType("array", of), **where)
    return Specified(wire, None, None if default is None else list)


def struct(of: type[Message], *, default: tuple[()] | None = (), **where: Any) -> Any:
    wire = WireField(WireType("struct", of), **where)
    return Specified(wire, None, None if default is None else of)


@dataclass_transform(kw_only_default=True)
class Message:
    """Base of everything that travels; a subclass without `versions` is a nested struct.

    Type checkers take a subclass for a dataclass with keyword arguments. It is none: a dataclass compiles its
    methods when it is defined, and with some two hundred messages a broker would be up noticeably later.
    """

    VERSIONS: ClassVar[tuple[int, int]] = (0, FOREVER)
    FLEXIBLE: ClassVar[int] = FOREVER
    FIELDS: ClassVar[dict[str, WireField]] = {}
    _DEFAULTS: ClassVar[dict[str, Any]] = {}
    _FACTORIES: ClassVar[dict[str, Callable[[], Any]]] = {}
    _READERS: ClassVar[dict[int, Reader]] = {}
    _WRITERS: ClassVar[dict[int, Writer]] = {}
    """By version, as far as they have been asked for."""

    def __init_subclass__(cls, versions: tuple[int, int] = (0, FOREVER), flexible: int = FOREVER) -> None:
        cls.VERSIONS = versions
        cls.FLEXIBLE = flexible
        cls._READERS, cls._WRITERS = {}, {}
        specified = {name: value for name, value in vars(cls).items() if isinstance(value, Specified)}
        for name in specified:
            delattr(cls, name)
        cls.FIELDS = {name: field.wire for name, field in specified.items()}
        cls._DEFAULTS = {name: field.default for name, field in specified.items()}
        cls.__init__ = Message.__init__  # type: ignore[method-assign]
        cls._FACTORIES = {name: field.factory for name, field in specified.items() if field.factory}

    def __init__(self, **values: Any) -> None:
        """The constructor of a class is made when it is first called, and takes this one's place in that class."""
        cls = type(self)
        assert cls is not Message, "a message without a schema"
        cls.__init__ = compile_constructor(cls._DEFAULTS, cls._FACTORIES)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Only what differs from the defaults: a request reads like the client meant it."""
        plain = type(self)().__dict__
        values = [f"{name}={value!r}" for name, value in self.__dict__.items() if value != plain[name]]
        return f"{type(self).__name__}({', '.join(values)})"


M = TypeVar("M", bound=Message)


def encode(message: Message, version: int) -> bytes:
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: Message, version: int) -> None:
    cls = type(message)
    write = cls._WRITERS.get(version)
    if write is None:
        write = cls._WRITERS[version] = _struct_writer(cls, version, version >= cls.FLEXIBLE)
    write(out, message)


def decode(
    cls: type[M], version: int, data: bytes, position: int = 0, *, max_elements: int = MAX_ELEMENTS
) -> M:
    return decode_from(cls, version, data, position, max_elements=max_elements)[0]


def decode_in_place(cls: type[M], version: int, data: memoryview, position: int) -> M:
    """Like `decode`, but `records` stay slices of `data`, which nobody may write to as long as they are used."""
    BUDGET.copies_records = False
    try:
        return decode(cls, version, data, position)  # type: ignore[arg-type]
    finally:
        BUDGET.copies_records = True


def decode_from(
    cls: type[M], version: int, data: bytes, position: int, *, max_elements: int = MAX_ELEMENTS
) -> tuple[M, int]:
    """The message and the position after it; strangers get few `max_elements`, a client trusts its broker."""
    BUDGET.elements = max_elements
    read = cls._READERS.get(version)
    if read is None:
        read = cls._READERS[version] = _struct_reader(cls, version, version >= cls.FLEXIBLE)
    try:
        return read(data, position)
    except (_struct.error, IndexError) as error:
        raise MalformedMessage(f"{cls.__name__} v{version} ends early") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{cls.__name__} v{version} holds a string that is not UTF-8") from error


def _array_reader(wire: WireType, version: int, flexible: bool, nullable: bool) -> Reader:
    read_count = length_reader("array", flexible)
    read_element = _value_reader(_element(wire), version, flexible, nullable=False)
    minimum = max(1, _minimum_size(_element(wire), version, flexible))

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if flexible and data[position] < 0x80:  # most counts are one byte, and a call would cost more
            count = data[position] - 1
            position += 1
        else:
            count, position = read_count(data, position)
        if count < 0:
            if nullable and count == -1:
                return None, position
            raise MalformedMessage(f"an array that must not be null has {count} elements")
        if count * minimum > len(data) - position:
            raise MalformedMessage(f"an array of {count} elements is longer than its message")
        BUDGET.elements -= count
        if BUDGET.elements < 0:
            raise MalformedMessage(TOO_MANY_ELEMENTS)
        values = []
        for _ in range(count):
            value, position = read_element(data, position)
            values.append(value)
        return values, position

    return read


def _array_writer(wire: WireType, version: int, flexible: bool) -> Writer:
    write_count = length_writer("array", flexible)
    write_element = _value_writer(_element(wire), version, flexible, nullable=False)

    def write(out: bytearray, values: Any) -> None:
        if values is None:
            write_count(out, -1)
            return
        count = len(values)
        if flexible and count < 0x7F:
            out.append(count + 1)
        else:
            write_count(out, count)
        for value in values:
            write_element(out, value)

    return write


def _element(wire: WireType) -> WireType:
    assert wire.element is not None
    return wire.element if isinstance(wire.element, WireType) else WireType("struct", wire.element)


def _minimum_size(wire: WireType, version: int, flexible: bool) -> int:
    """Fewest bytes one value takes, so that a count can be refused before anything is allocated."""
    if wire.name == "struct":
        assert isinstance(wire.element, type)
        fields = _fields_of(wire.element, version)
        sizes = [
            _minimum_size(field.type, version, flexible)
            for _, field in fields
            if not field.is_tagged(version)
        ]
        return sum(sizes) + (1 if flexible else 0)
    if wire.name in MINIMUM_SIZES:
        return MINIMUM_SIZES[wire.name]
    return 1 if flexible else 2 if wire.name == "string" else 4


def _field_reader(field: WireField, version: int, flexible: bool) -> Reader:
    nullable = version >= field.nullable_since
    if nullable and field.type.name == "struct" and field.is_tagged(version):
        return _nullable_struct_reader(_value_reader(field.type, version, flexible, False), is_tagged=True)
    return _value_reader(field.type, version, flexible, nullable)


def _field_writer(field: WireField, version: int, flexible: bool) -> Writer:
    nullable = version >= field.nullable_since
    if nullable and field.type.name == "struct" and field.is_tagged(version):
        return _nullable_struct_writer(_value_writer(field.type, version, flexible, False), is_tagged=True)
    return _value_writer(field.type, version, flexible, nullable)


def _value_reader(wire: WireType, version: int, flexible: bool, nullable: bool) -> Reader:
    if wire.name in FIXED:
        return FIXED[wire.name][0]
    if wire.name == "uuid":
        return read_uuid
    if wire.name == "array":
        return _array_reader(wire, version, flexible, nullable)
    if wire.name == "struct":
        assert isinstance(wire.element, type)
        read = _struct_reader(wire.element, version, flexible)
        return _nullable_struct_reader(read) if nullable else read
    return blob_reader(wire.name, flexible, nullable)


def _value_writer(wire: WireType, version: int, flexible: bool, nullable: bool) -> Writer:
    if wire.name in FIXED:
        return FIXED[wire.name][1]
    if wire.name == "uuid":
        return bytearray.extend
    if wire.name == "array":
        return _array_writer(wire, version, flexible)
    if wire.name == "struct":
        assert isinstance(wire.element, type)
        write = _struct_writer(wire.element, version, flexible)
        return _nullable_struct_writer(write) if nullable else write
    return blob_writer(wire.name, flexible)


def _nullable_struct_reader(read: Reader, is_tagged: bool = False) -> Reader:
    """Under a tag a struct that is null says 0, where it says -1 elsewhere."""

    def read_nullable(data: bytes, position: int) -> tuple[Any, int]:
        is_null = data[position] == 0 if is_tagged else data[position] >= 0x80
        return (None, position + 1) if is_null else read(data, position + 1)

    return read_nullable


def _nullable_struct_writer(write: Writer, is_tagged: bool = False) -> Writer:
    null = 0 if is_tagged else 0xFF

    def write_nullable(out: bytearray, value: Any) -> None:
        out.append(null if value is None else 1)
        if value is not None:
            write(out, value)

    return write_nullable


def _per_class_and_version(
    compile_one: Callable[[type[Message], int, bool], C],
) -> Callable[[type[Message], int, bool], C]:
    """Compile each (class, version) once."""
    compiled: dict[tuple[type[Message], int, bool], C] = {}

    def lookup(cls: type[Message], version: int, flexible: bool) -> C:
        found = compiled.get((cls, version, flexible))
        if found is None:
            found = compiled[cls, version, flexible] = compile_one(cls, version, flexible)
        return found

    return lookup


# -- structs ------------------------------------------------------------------------------------------


def _fields_of(cls: type[Message], version: int) -> list[tuple[str, WireField]]:
    return [(name, wire) for name, wire in cls.FIELDS.items() if wire.is_in(version)]


@_per_class_and_version
def _struct_reader(cls: type[Message], version: int, flexible: bool) -> Reader:
    plain: list[PlainField] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for name, field in _fields_of(cls, version):
        reader = _field_reader(field, version, flexible)
        if field.tag is not None and field.is_tagged(version):
            tagged[field.tag] = (name, reader)
        else:
            plain.append(PlainField(name, field.type.name, reader, version >= field.nullable_since))

    here = {field.name for field in plain}
    made_anew = {name: factory for name, factory in cls._FACTORIES.items() if name not in here}
    absent = {name: value for name, value in cls._DEFAULTS.items() if name not in here | made_anew.keys()}
    read_tagged = functools.partial(_read_tagged, tagged) if flexible else None
    return compile_reader(cls, plain, absent, made_anew, read_tagged)


def _read_tagged(
    known: dict[int, tuple[str, Reader]], data: bytes, position: int, values: dict[str, Any]
) -> int:
    count, position = read_unsigned_varint(data, position)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedMessage(f"{count} tagged fields in one struct, at most {MAX_TAGGED_FIELDS} are read")
    for _ in range(count):
        tag, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        end = position + size
        if end > len(data):
            raise MalformedMessage(f"tagged field {tag} of {size} bytes is longer than its message")
        if tag in known:
            name, reader = known[tag]
            values[name], stop = reader(data, position)
            if stop != end:
                raise MalformedMessage(f"tagged field {tag} says {size} bytes and takes {stop - position}")
        position = end
    return position


@_per_class_and_version
def _struct_writer(cls: type[Message], version: int, flexible: bool) -> Writer:
    plain: list[PlainField] = []
    tagged: list[tuple[int, str, Writer, Any]] = []
    defaults = cls()
    for name, field in _fields_of(cls, version):
        writer = _field_writer(field, version, flexible)
        if field.tag is not None and field.is_tagged(version):
            tagged.append((field.tag, name, writer, getattr(defaults, name)))
        else:
            plain.append(PlainField(name, field.type.name, writer))
    tagged.sort(key=lambda entry: entry[0])
    return compile_writer(plain, functools.partial(_write_tagged, tagged) if tagged else None, flexible)


def _write_tagged(tagged: list[tuple[int, str, Writer, Any]], out: bytearray, message: Any) -> None:
    """Tagged fields in the order of their tags; what equals its default is left out."""
    present = [entry for entry in tagged if getattr(message, entry[1]) != entry[3]]
    write_unsigned_varint(out, len(present))
    for tag, name, writer, _ in present:
        value = bytearray()
        writer(value, getattr(message, name))
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(value))
        out += value
