r"""Java's properties format: `key=value` lines, as in server.properties and meta.properties.

    # a comment (or !)                      nothing
    node.id=1                               node.id  -> "1"
    log.dirs : /a,\                         log.dirs -> "/a,/b"   (white space before b is dropped)
        /b
    greeting = caf\u00e9\ttab               greeting -> "café<tab>tab"
    a\:b value                              a:b      -> "value"

A key ends at the first `=`, `:` or white space that no backslash escapes; white space around the separator
is dropped, white space at the end of a value is kept. The last of several equal keys wins. Limit: the text is
Unicode already, so both UTF-8 files and Java's `\uXXXX` escapes are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tidemill.model.errors import TidemillError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_NEWLINE = re.compile(r"\r\n|\r|\n")


class BadProperties(TidemillError):
    """A properties file with an escape that means nothing."""


def parse_properties(text: str) -> dict[str, str]:
    properties = {}
    for number, line in _logical_lines(text):
        split = _end_of_key(line)
        value = line[split:].lstrip(_BLANK)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANK)
        properties[_unescape(line[:split], number)] = _unescape(value, number)
    return properties


def format_properties(properties: Mapping[str, str], comment: str | None = None) -> str:
    lines = [f"#{comment}"] if comment else []
    lines += [f"{_escape_key(name)}={_escape(value)}" for name, value in properties.items()]
    return "".join(f"{line}\n" for line in lines)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each entry, continuation lines joined, comments left out."""
    joined, start = "", 0
    for number, raw in enumerate(_NEWLINE.split(text), 1):
        line = raw.lstrip(_BLANK)
        if not joined:
            if not line or line[0] in "#!":
                continue
            start = number
        if _is_continued(line):
            joined += line[:-1]
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _is_continued(line: str) -> bool:
    """An odd number of backslashes at the end: the last one escapes the line break."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _end_of_key(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 1
        elif line[position] in "=:" or line[position] in _BLANK:
            return position
        position += 1
    return len(line)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out, position = [], 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character, position = _escaped(text, position, number)
        out.append(character)
    return "".join(out)


def _escaped(text: str, position: int, number: int) -> tuple[str, int]:
    """What the escape means whose backslash stands before `position`, and where the text goes on."""
    letter = text[position]
    if letter != "u":
        return _ESCAPES.get(letter, letter), position + 1
    digits = text[position + 1 : position + 5]
    if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
        raise BadProperties(f"line {number}: \\u must be followed by four hexadecimal digits, not {digits!r}")
    return chr(int(digits, 16)), position + 5


def _escape(text: str) -> str:
    escaped = _escape_controls(text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape_key(text: str) -> str:
    return re.sub(r"([=: #!])", r"\\\1", _escape_controls(text))


def _escape_controls(text: str) -> str:
    return "".join(_UNESCAPES.get(character, character) for character in text)
