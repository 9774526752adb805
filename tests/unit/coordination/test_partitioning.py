"""Java's hash of a string, and the partition that follows from it."""

from __future__ import annotations

import pytest

from tidemill.coordination.partitioning import java_hash_code, partition_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("orders", -1008770331),
        ("polygenelubricants", -(1 << 31)),  # the known string with the smallest hash of all
        ("\N{GRINNING FACE}", 31 * 0xD83D + 0xDE00),  # two UTF-16 units
    ],
)
def test_hash_is_that_of_java(text: str, expected: int) -> None:
    assert java_hash_code(text) == expected


def test_partition_is_never_negative() -> None:
    assert partition_for("orders", 50) == 31
    assert partition_for("polygenelubricants", 50) == 0
