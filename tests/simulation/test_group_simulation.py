"""Classic groups in simulation. More seeds: TIDEMILL_SEEDS=10000; one seed, with its transcript: TIDEMILL_SEED=42."""

from __future__ import annotations

from group_simulation import Simulation
from seeded_runs import run_seed, run_seeds

DEFAULT_SEEDS = 20


def test_groups_keep_their_promises_under_random_trouble() -> None:
    run_seeds(Simulation, DEFAULT_SEEDS)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(Simulation, 7), run_seed(Simulation, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
