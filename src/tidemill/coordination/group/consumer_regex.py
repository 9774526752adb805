"""Subscriptions by regular expression: compiled and matched by RE2, so that no expression can stall the broker.

RE2 matches in time linear in the name. What remains is the factor: an expression such as `(.{0,30}a){20}b` makes RE2's
slower engine take milliseconds for each name. A `Set` uses its automaton only (some microseconds for each name, 0.1 s
for ten thousand topics at worst) and does not fall back:

    topics_matching("orders-.*", ["orders-eu", "my-orders-eu"])     # {"orders-eu"}: the whole name must match

Limits: an expression that does not compile within `MAX_BYTES`, or is longer than `MAX_LENGTH`, is refused as invalid;
one whose automaton outgrows it while matching matches nothing. Internal topics are never matched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import re2

from tidemill.model.errors import ApiError, ErrorCode

MAX_BYTES = 1024 * 1024
MAX_LENGTH = 4096
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def check_regex(regex: str) -> None:
    """Refuse an expression that cannot be used."""
    _compiled(regex)


def topics_matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    compiled = _compiled(regex)
    return frozenset(name for name in names if compiled.Match(name) and name not in INTERNAL_TOPICS)


def _compiled(regex: str) -> Any:
    found = _compile(regex)
    if isinstance(found, str):
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, found)
    return found


@functools.lru_cache(maxsize=64)
def _compile(regex: str) -> Any:
    """The set, or why there is none: also remembered, as finding it out may take milliseconds."""
    if len(regex) > MAX_LENGTH:
        return f"an expression has at most {MAX_LENGTH} characters"
    options = re2.Options()
    options.max_mem = MAX_BYTES
    options.never_capture = True
    options.log_errors = False
    compiled = re2.Set.FullMatchSet(options)
    try:
        compiled.Add(regex)
        compiled.Compile()
    except re2.error as failure:
        return f"{regex!r} is not a regular expression: {failure}"
    return compiled
