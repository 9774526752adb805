"""Times as people write them, to milliseconds since the epoch."""

from __future__ import annotations

import datetime
import re
import time

from tidemill.cli.errors import CommandError

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)(\s+ago)?")


def parse_duration_ms(text: str) -> int:
    """`30s`, `15m`, `2h`, to milliseconds."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{text!r} is no length of time: write 30s, 15m, 2h or 7d")
    return int(found[1]) * _UNIT_MS[found[2]]


def parse_time_ms(text: str, now_ms: int | None = None) -> int:
    """`1700000000000`, `2026-01-31`, `2026-01-31T12:00:00+01:00` (local without a zone), or `10m` for "ago"."""
    text = text.strip()
    if text.isdigit():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        present_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return max(0, present_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"{text!r} is no time: write 2026-01-31T12:00, milliseconds since 1970, or how long ago, such as 10m"
        ) from error
    return max(0, int(moment.timestamp() * 1000))
