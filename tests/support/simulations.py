"""All simulations, from one list: every file of tests/simulation that says `SIMULATION = ...` is in it.

A simulation is a class that takes a seed, runs by `run()`, raises when a promise is broken, and tells in `transcript`
what happened; everything in it follows from the seed. A file of tests/simulation holds one, and its tests:

    SIMULATION = World

    def test_the_promises_hold() -> None:
        run_seeds(SIMULATION, default=100)

    def test_a_planted_defect_is_found_out(monkeypatch) -> None:
        monkeypatch.setattr(Core, "check_epoch", lambda *_: None)
        assert is_found_out(SIMULATION, seeds=20)

`make test` runs few seeds of each. More: TIDEMILL_SEEDS=10000; one, with its transcript: TIDEMILL_SEED=42. All
simulations with 10,000 seeds each: `make simulate` (simulate.py).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

FOLDER = Path(__file__).resolve().parents[1] / "simulation"
LAST_LINES = 40


class Simulated(Protocol):
    transcript: list[str]

    def run(self) -> None: ...


T = TypeVar("T", bound=Simulated)


class BrokenPromise(AssertionError):
    """The end of the story, what was broken, and the seed that tells it again."""


def run_seed(simulation: Callable[[int], T], seed: int) -> T:
    world = simulation(seed)
    try:
        world.run()
    except Exception as error:
        story = "\n".join(world.transcript[-LAST_LINES:])
        raise BrokenPromise(
            f"{story}\n{type(error).__name__}: {error}\nreplay with TIDEMILL_SEED={seed}"
        ) from error
    return world


def run_seeds(simulation: Callable[[int], T], default: int) -> list[T]:
    """Those that the environment names, else the first few; the finished worlds, to see that something happened."""
    if "TIDEMILL_SEED" in os.environ:
        world = run_seed(simulation, int(os.environ["TIDEMILL_SEED"]))
        print("\n".join(world.transcript))
        return [world]
    return [run_seed(simulation, seed) for seed in range(int(os.environ.get("TIDEMILL_SEEDS", default)))]


def is_found_out(simulation: Callable[[int], T], seeds: int) -> bool:
    """Whether a check of the simulation fails within so many seeds: for tests that plant a defect before."""
    return any(_fails(simulation, seed) for seed in range(seeds))


def _fails(simulation: Callable[[int], T], seed: int) -> bool:
    try:
        run_seed(simulation, seed)
    except BrokenPromise as broken:
        return isinstance(broken.__cause__, AssertionError)
    return False


def simulations() -> dict[str, Callable[[int], Simulated]]:
    """By the name of the file, without `test_`."""
    found = {}
    for path in sorted(FOLDER.glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(f"simulation_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        if hasattr(module, "SIMULATION"):
            found[path.stem.removeprefix("test_")] = module.SIMULATION
    return found
