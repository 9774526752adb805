"""Consumer groups in simulation. More seeds: TIDEMILL_SEEDS=10000; one seed, with its transcript: TIDEMILL_SEED=42."""

from __future__ import annotations

import os

import pytest
from consumer_simulation import ConsumerSimulation

DEFAULT_SEEDS = 40
LAST_LINES = 40


def seeds() -> list[int]:
    if "TIDEMILL_SEED" in os.environ:
        return [int(os.environ["TIDEMILL_SEED"])]
    return list(range(int(os.environ.get("TIDEMILL_SEEDS", DEFAULT_SEEDS))))


def run(seed: int) -> ConsumerSimulation:
    simulation = ConsumerSimulation(seed)
    try:
        simulation.run()
    except Exception as error:
        transcript = "\n".join(simulation.transcript[-LAST_LINES:])
        pytest.fail(f"{transcript}\n{error!r}\nreplay with TIDEMILL_SEED={seed}")
    return simulation


def test_consumer_groups_keep_their_promises_under_random_trouble() -> None:
    for seed in seeds():
        simulation = run(seed)
        if len(seeds()) == 1:
            print("\n".join(simulation.transcript))


def test_a_seed_replays_identically() -> None:
    first, second = run(7), run(7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
