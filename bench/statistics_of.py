"""Percentiles, medians and spreads; small on purpose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NANOSECONDS_PER_MS = 1e6


class Summary(NamedTuple):
    """A figure: the median of its samples and how far they spread."""

    median: float
    low: float
    high: float
    rounds: int


def summarise(samples: Sequence[float]) -> Summary:
    return Summary(statistics.median(samples), min(samples), max(samples), len(samples))


def percentile(values: Iterable[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def percentile_ms(nanoseconds: Iterable[float], percent: float) -> float:
    return percentile(nanoseconds, percent) / NANOSECONDS_PER_MS
