"""Transactions in simulation; `transaction_simulation` says what happens, `simulations` how to run more seeds."""

from __future__ import annotations

from simulations import run_seed, run_seeds
from transaction_simulation import World

SIMULATION = World


def test_transactions_survive_everything_at_once() -> None:
    worlds = run_seeds(SIMULATION, default=40)
    fates = [data.fate for world in worlds for each in world.partitions.values() for data in each.data]
    if len(worlds) > 1:
        assert min(fates.count("committed"), fates.count("aborted")) > len(worlds), "too little happened"
        assert sum(max(world.offsets.committed().values(), default=0) for world in worlds) > len(worlds)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 4711), run_seed(SIMULATION, 4711)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log
