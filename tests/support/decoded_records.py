"""Records of internal topics as Kafka's decoders print them, made comparable between two brokers.

without_chance(decoded(record.payload), ("timestamp", "clienthost"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def decoded(text: str | None) -> Any:
    """Fields and values where the decoder knew the record, else the text itself."""
    return json.loads(text) if text is not None and text.startswith("{") else text


def without_chance(
    value: Any,
    chance: tuple[str, ...],
    names: Mapping[str, str] | None = None,
    *,
    is_in_order: bool = True,
) -> Any:
    """Left out: fields whose names end so, in small letters. `names` stand for values that nobody can foretell.

    Where Kafka takes the order of a list from a hash table (`is_in_order=False`), lists are sorted.
    """
    if isinstance(value, dict):
        return {
            key: "..."
            if key.lower().endswith(chance)
            else without_chance(each, chance, names, is_in_order=is_in_order)
            for key, each in value.items()
        }
    if isinstance(value, list):
        found = [without_chance(each, chance, names, is_in_order=is_in_order) for each in value]
        return found if is_in_order else sorted(found, key=str)
    return names.get(value, value) if names and isinstance(value, str) else value
