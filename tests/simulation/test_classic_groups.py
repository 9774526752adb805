"""Classic groups in simulation; see `group_simulation` for what happens in it and `simulations` for more seeds."""

from __future__ import annotations

from group_simulation import Simulation
from simulations import run_seed, run_seeds

SIMULATION = Simulation


def test_groups_keep_their_promises_under_random_trouble() -> None:
    run_seeds(SIMULATION, default=20)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
