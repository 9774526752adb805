"""Consumer groups of the newer protocol in simulation; `simulations` says how to run more seeds, or one alone."""

from __future__ import annotations

from consumer_simulation import ConsumerSimulation
from simulations import run_seed, run_seeds

SIMULATION = ConsumerSimulation


def test_consumer_groups_keep_their_promises_under_random_trouble() -> None:
    run_seeds(SIMULATION, default=40)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
