"""Java's properties format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.properties import BadProperties, format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b\r\nc\td\re", {"a": "b", "c": "d", "e": ""}),
        ("# a=b\n ! c=d\n\n  e=f", {"e": "f"}),
        ("log.dirs=/a,\\\n    /b\nx=1", {"log.dirs": "/a,/b", "x": "1"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\:b\\=c\\ d=e", {"a:b=c d": "e"}),
        ("a=caf\\u00e9\\t\\n\\q", {"a": "café\t\nq"}),
        ("a==b", {"a": "=b"}),
        ("a : : b", {"a": ": b"}),
        ("a=1\na=2", {"a": "2"}),
        ("=x", {"": "x"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("", {}),
    ],
)
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(BadProperties, match="line 2"):
        parse_properties("a=1\nb=\\u12x4")


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties, comment="made by a test")) == properties
