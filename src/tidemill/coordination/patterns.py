"""Regular expressions that clients send: compiled and matched by RE2, so that none of them can stall the broker.

RE2 matches in time linear in the name. What remains is the factor, and it grows with the compiled expression: one such
as `(a?b?){1000}c` makes a new state of its automaton with nearly every character of a name that is made for it, 20 ms
for 400 characters. So the memory of an expression is limited: the worst of those tried that still compiles
(`.*a.{500}`) takes 3 ms, and a list of 250 topics compiles as well. An ordinary expression takes a microsecond. A `Set`
uses the automaton alone:

    matches = whole_match("orders-.*")
    matches("orders-eu"), matches("my-orders-eu")       # True, False: the whole name must match

Limits: an expression that does not compile within `MAX_BYTES`, or is longer than `MAX_LENGTH`, is refused as invalid;
one whose automaton outgrows it while matching matches nothing. Who matches many names that clients chose does so in a
thread: RE2 lets go of the interpreter meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tidemill.model.errors import ApiError, ErrorCode

MAX_BYTES = 256 * 1024
MAX_LENGTH = 4096


def whole_match(regex: str) -> Callable[[str], bool]:
    """Whether a name matches from its first to its last character; raises ApiError for what is no expression."""
    found = _compile(regex)
    if isinstance(found, str):
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, found)
    return lambda name: bool(found.Match(name))


@functools.lru_cache(maxsize=64)
def _compile(regex: str) -> Any:
    """The set, or why there is none: also remembered, as finding it out may take milliseconds."""
    import re2  # few ever need it

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
