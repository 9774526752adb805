"""Groups with members of both protocols, in simulation; `simulations` says how to run more seeds, or one alone."""

from __future__ import annotations

from mixed_simulation import MixedSimulation
from simulations import run_seed, run_seeds

SIMULATION = MixedSimulation


def test_mixed_groups_keep_their_promises_under_random_trouble() -> None:
    worlds = run_seeds(SIMULATION, default=40)
    if len(worlds) > 1:
        assert sum(world.changes for world in worlds) > len(worlds), "too few groups changed their protocol"


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
