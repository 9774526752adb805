"""Runs of a simulation: which seeds, and what a person needs when one fails.

TIDEMILL_SEEDS=10000 runs that many, TIDEMILL_SEED=42 that one alone, with its transcript.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

LAST_LINES = 40


class Seeded(Protocol):
    transcript: list[str]

    def run(self) -> object: ...


S = TypeVar("S", bound=Seeded)


def seeds(default: int) -> list[int]:
    if "TIDEMILL_SEED" in os.environ:
        return [int(os.environ["TIDEMILL_SEED"])]
    return list(range(int(os.environ.get("TIDEMILL_SEEDS", default))))


def run_seed(make: Callable[[int], S], seed: int) -> S:
    simulation = make(seed)
    try:
        simulation.run()
    except Exception as error:
        transcript = "\n".join(simulation.transcript[-LAST_LINES:])
        pytest.fail(f"{transcript}\n{error!r}\nreplay with TIDEMILL_SEED={seed}")
    return simulation


def run_seeds(make: Callable[[int], Seeded], default: int) -> None:
    for seed in seeds(default):
        simulation = run_seed(make, seed)
        if len(seeds(default)) == 1:
            print("\n".join(simulation.transcript))
