"""Subscriptions by regular expression, see `coordination.patterns`:

    topics_matching("orders-.*", ["orders-eu", "my-orders-eu"])     # {"orders-eu"}: the whole name must match

Internal topics are never matched.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.patterns import whole_match

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def check_regex(regex: str) -> None:
    """Refuse an expression that cannot be used."""
    whole_match(regex)


def topics_matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    matches = whole_match(regex)
    return frozenset(name for name in names if matches(name) and name not in INTERNAL_TOPICS)
