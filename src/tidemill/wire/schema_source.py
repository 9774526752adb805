"""Source code for what is read and written most: a struct's fields one behind the other, in one function.

A reader that walks a list of fields calls a function for each; a struct of numbers and short strings is read in half
the time by code that is made for it. For a struct (in version 4, flexible)

    class HeartbeatRequest(Message):        group_id: string, generation_id: int32, member_id: string, ...

`compile_reader` makes

    def read(data, position):
        size = len(data)
        length = data[position]
        if 0 < length < 0x80:                               # most lengths are one byte
            start = position + 1
            position += length
            if position > size:
                raise too_long("string", length - 1)
            v0 = str(data[start:position], "utf-8")
        else:
            v0, position = read0(data, position)            # the general reader of this field
        v1, = unpack1(data, position)                       # neighbours of fixed size are read together
        position += 4
        ...
        values = {"group_id": v0, "generation_id": v1, ...} # what this version lacks has its default
        if data[position]:                                  # tagged fields
            position = read_tagged(data, position, values)
        else:
            position += 1
        message = new(cls)
        message.__dict__ = values
        return message, position

and `compile_writer` the like of it. A string that may be null has a branch for that, an array one for having no
elements. What is not written out here (arrays with elements, structs, lengths of the older encoding when they are
read) goes through its general reader or writer.

Limits: names of fields go into the source as they stand; they come from our own classes only.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NamedTuple

from tidemill.model.errors import MalformedMessage
from tidemill.wire.schema_values import FIXED_CODES, Reader, Writer, write_unsigned_varint

_PACKED = FIXED_CODES | {"uuid": "16s"}
_SHORT = {"string": 'str(data[start:position], "utf-8")', "bytes": "bytes(data[start:position])"}
"""Kinds whose reading is written out where their length takes one byte."""
_ENCODED = {"string": ".encode()", "bytes": "", "records": ""}
_INT16, _INT32 = (_struct.Struct(">h").pack, b"\xff" * 2), (_struct.Struct(">i").pack, b"\xff" * 4)
_LENGTHS = {"string": _INT16, "bytes": _INT32, "records": _INT32}
"""How a length is written in the older encoding, and what stands for null."""
MISSING = object()


class PlainField(NamedTuple):
    """A field without a tag, with the function that does for it what is not written out."""

    name: str
    kind: str
    general: Reader | Writer
    is_nullable: bool = False


class _Run(NamedTuple):
    """Neighbours that are packed together, or a single field of another kind."""

    is_packed: bool
    fields: list[tuple[int, PlainField]]

    @property
    def code(self) -> str:
        return ">" + "".join(_PACKED[field.kind] for _, field in self.fields)


def _runs(fields: Iterable[PlainField]) -> list[_Run]:
    runs = []
    for is_packed, group in groupby(enumerate(fields), lambda entry: entry[1].kind in _PACKED):
        members = list(group)
        runs += [_Run(True, members)] if is_packed else [_Run(False, [member]) for member in members]
    return runs


def too_long(kind: str, length: int) -> MalformedMessage:
    return MalformedMessage(f"a {kind} of {length} bytes is longer than its message")


def _compiled(name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    exec("\n".join(lines), names)  # our own declarations, no input of anybody
    made: Callable[..., Any] = names[name]
    return made


# -- reading --------------------------------------------------------------------------------------------


def compile_reader(
    cls: type[Any],
    plain: list[PlainField],
    absent: dict[str, Any],
    made_anew: dict[str, Callable[[], Any]],
    read_tagged: Callable[[Any, int, dict[str, Any]], int] | None,
) -> Reader:
    """`absent` and `made_anew` say what the other fields hold; `read_tagged` is None before tagged fields existed."""
    names: dict[str, Any] = {"cls": cls, "new": cls.__new__, "too_long": too_long, "read_tagged": read_tagged}
    lines = ["def read(data, position):", " size = len(data)"]
    for run in _runs(plain):
        lines += _reading(run, names, is_flexible=read_tagged is not None)
    places = {field.name: f"v{number}" for number, field in enumerate(plain)}
    for number, (name, value) in enumerate(absent.items()):
        places[name], names[f"absent{number}"] = f"absent{number}", value
    for number, (name, factory) in enumerate(made_anew.items()):
        places[name], names[f"make{number}"] = f"make{number}()", factory
    lines.append(f" values = {{{', '.join(f'{name!r}: {place}' for name, place in places.items())}}}")
    if read_tagged is not None:
        lines.append(" position = read_tagged(data, position, values) if data[position] else position + 1")
    lines += [" message = new(cls)", " message.__dict__ = values", " return message, position"]
    return _compiled("read", lines, names)


def _reading(run: _Run, names: dict[str, Any], is_flexible: bool) -> list[str]:
    number, field = run.fields[0]
    if run.is_packed:
        packer = _struct.Struct(run.code)
        names[f"unpack{number}"] = packer.unpack_from
        targets = "".join(f"v{place}, " for place, _ in run.fields)
        return [f" {targets}= unpack{number}(data, position)", f" position += {packer.size}"]
    names[f"read{number}"] = field.general
    general = f"v{number}, position = read{number}(data, position)"
    if is_flexible and field.kind == "array":
        return [
            " if data[position] == 1:",
            f"  v{number} = []",
            "  position += 1",
            " else:",
            f"  {general}",
        ]
    if field.kind not in _SHORT or not is_flexible:
        return [f" {general}"]
    null = [" elif not length:", f"  v{number} = None", "  position += 1"] if field.is_nullable else []
    return [
        " length = data[position]",
        " if 0 < length < 0x80:",
        "  start = position + 1",
        "  position += length",
        "  if position > size:",
        f"   raise too_long({field.kind!r}, length - 1)",
        f"  v{number} = {_SHORT[field.kind]}",
        *null,
        " else:",
        f"  {general}",
    ]


# -- writing --------------------------------------------------------------------------------------------


def compile_writer(
    plain: list[PlainField], write_tagged: Callable[[bytearray, Any], None] | None, is_flexible: bool
) -> Writer:
    """`write_tagged` is None where a struct has no tagged fields; a flexible one ends with a zero then."""
    names: dict[str, Any] = {"write_varint": write_unsigned_varint, "write_tagged": write_tagged}
    lines = ["def write(out, message):", " pass"]
    runs = _runs(plain)
    for run in runs:
        ends_here = run is runs[-1] and is_flexible and write_tagged is None
        lines += _writing(run, names, is_flexible, ends_here)
    if write_tagged is not None:
        lines.append(" write_tagged(out, message)")
    elif is_flexible and not (runs and runs[-1].is_packed):
        lines.append(" out.append(0)")
    return _compiled("write", lines, names)


def _writing(run: _Run, names: dict[str, Any], is_flexible: bool, ends_here: bool) -> list[str]:
    """Numbers at the end take the zero that stands for no tagged fields along with them."""
    number, field = run.fields[0]
    if run.is_packed:
        names[f"pack{number}"] = _struct.Struct(run.code + ("x" if ends_here else "")).pack
        return [f" out += pack{number}({', '.join(f'message.{each.name}' for _, each in run.fields)})"]
    names[f"write{number}"] = field.general
    general = f"write{number}(out, message.{field.name})"
    if is_flexible and field.kind == "array":
        return [
            f" raw = message.{field.name}",
            " if raw or raw is None:",
            f"  write{number}(out, raw)",
            " else:",
            "  out.append(1)",
        ]
    if field.kind not in _ENCODED:
        return [f" {general}"]
    if not is_flexible:
        pack, null = _LENGTHS[field.kind]
        names[f"pack{number}"] = pack
        return [
            f" raw = message.{field.name}",
            " if raw is None:",
            f"  out += {null!r}",
            " else:",
            *([f"  raw = raw{_ENCODED[field.kind]}"] if _ENCODED[field.kind] else []),
            f"  out += pack{number}(len(raw))",
            "  out += raw",
        ]
    return [
        f" raw = message.{field.name}",
        " if raw is None:",
        "  out.append(0)",
        " else:",
        *([f"  raw = raw{_ENCODED[field.kind]}"] if _ENCODED[field.kind] else []),
        "  length = len(raw) + 1",
        "  if length < 0x80:",
        "   out.append(length)",
        "  else:",
        "   write_varint(out, length)",
        "  out += raw",
    ]


# -- making ---------------------------------------------------------------------------------------------


def compile_constructor(
    defaults: dict[str, Any], made_anew: dict[str, Callable[[], Any]]
) -> Callable[..., None]:
    """`__init__` with a keyword argument for each field."""
    names: dict[str, Any] = {"MISSING": MISSING}
    arguments, lines = [], []
    for number, (name, default) in enumerate(defaults.items()):
        value = name
        if name in made_anew:
            names[f"make{number}"] = made_anew[name]
            default, value = MISSING, f"make{number}() if {name} is MISSING else {name}"
        names[f"default{number}"] = default
        arguments.append(f", {name}=default{number}")
        lines.append(f" self.{name} = {value}")
    parameters = f"self, *{''.join(arguments)}" if arguments else "self"
    return _compiled("__init__", [f"def __init__({parameters}):", *(lines or [" pass"])], names)
