"""`make simulate`: ten thousand seeds of every simulation, on all processors, resumable.

    make simulate                                        all of them, 10,000 seeds each
    make simulate SIMULATION=transactions SEEDS=100000   one of them, further
    make simulate SIMULATION=transactions SEED=42        one seed, with its transcript

Progress is kept in .cache/simulate, for the sources as they are: after a change everything begins anew, after an
interruption it goes on where it stopped. Seeds that fail are printed at the end, each with the command that replays it,
and the exit code is 1. The processor time for a seed is measured and printed; half a second is what it may take.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from simulations import BrokenPromise, run_seed, simulations

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "simulate"
CHUNK = 25
CPU_SECONDS_PER_SEED = 0.5
SHOWN_FAILURES = 20


class Chunk(NamedTuple):
    simulation: str
    first: int
    end: int


class Outcome(NamedTuple):
    chunk: Chunk
    failures: dict[int, str]
    cpu_seconds: float
    longest_seconds: float


def run_chunk(chunk: Chunk) -> Outcome:
    simulation = simulations()[chunk.simulation]
    failures, seconds = {}, []
    for seed in range(chunk.first, chunk.end):
        began = time.process_time()
        try:
            run_seed(simulation, seed)
        except BrokenPromise as error:
            failures[seed] = str(error)
        seconds.append(time.process_time() - began)
    return Outcome(chunk, failures, sum(seconds), max(seconds))


class Progress:
    """What is done of one simulation: which chunks, what failed, and what it cost. Lives in a file."""

    def __init__(self, simulation: str, sources: str) -> None:
        self._path = CACHE / f"{simulation}-{sources}.json"
        self.state: dict[str, Any] = {"done": [], "failures": {}, "cpu_seconds": 0.0, "longest_seconds": 0.0}
        if self._path.exists():
            self.state = json.loads(self._path.read_text())

    @property
    def seeds_done(self) -> int:
        return sum(end - first for first, end in self.state["done"])

    @property
    def failures(self) -> dict[str, str]:
        failures: dict[str, str] = self.state["failures"]
        return failures

    def missing(self, simulation: str, seeds: int) -> list[Chunk]:
        done = {first for first, _ in self.state["done"]}
        return [
            Chunk(simulation, first, first + CHUNK) for first in range(0, seeds, CHUNK) if first not in done
        ]

    def add(self, outcome: Outcome) -> None:
        self.state["done"].append(outcome.chunk[1:])
        self.state["failures"].update({str(seed): story for seed, story in outcome.failures.items()})
        self.state["cpu_seconds"] += outcome.cpu_seconds
        self.state["longest_seconds"] = max(self.state["longest_seconds"], outcome.longest_seconds)
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.replace(self._path)

    def summary(self) -> str:
        mean = self.state["cpu_seconds"] / max(1, self.seeds_done)
        longest = self.state["longest_seconds"]
        return (
            f"{self.seeds_done} seeds, {len(self.failures)} failed; processor time a seed: "
            f"{mean:.3f} s on average, {longest:.3f} s at most (allowed: {CPU_SECONDS_PER_SEED} s)"
        )


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    for folder in ("src/tidemill", "tests/support", "tests/simulation"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def run_all(names: list[str], seeds: int, workers: int, seconds: float) -> bool:
    """Whether all went well; ends early, to be resumed, when `seconds` are over."""
    sources = digest_of_sources()
    progress = {name: Progress(name, sources) for name in names}
    chunks = [chunk for name in names for chunk in progress[name].missing(name, seeds)]
    deadline = time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    with context.Pool(workers) as pool:
        for outcome in pool.imap_unordered(run_chunk, chunks):
            mine = progress[outcome.chunk.simulation]
            mine.add(outcome)
            show(
                f"{outcome.chunk.simulation}: {mine.seeds_done} of {seeds} seeds, {len(mine.failures)} failed"
            )
            if time.monotonic() > deadline:
                pool.terminate()
                break
    if sys.stdout.isatty():
        print()
    for name in names:
        report(name, progress[name])
    return not any(progress[name].failures for name in names)


def show(line: str) -> None:
    """On a terminal one line that changes; elsewhere a line now and then."""
    if sys.stdout.isatty():
        print(f"\r{line}\x1b[K", end="", flush=True)
    elif line.split()[1].endswith(("000", "500")):
        print(line, flush=True)


def report(name: str, progress: Progress) -> None:
    print(f"{name}: {progress.summary()}")
    for seed, story in sorted(progress.failures.items(), key=lambda item: int(item[0]))[:SHOWN_FAILURES]:
        reason = story.splitlines()[-2]
        print(f"  seed {seed}: {reason}\n    make simulate SIMULATION={name} SEED={seed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("simulations", nargs="*", help="names; all without any")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="this one alone, with its transcript")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--for-seconds", type=float, default=float("inf"), help="stop then; resume later")
    options = parser.parse_args()
    known = simulations()
    names = options.simulations or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no simulation {unknown[0]}; there are {', '.join(known)}")
    if options.seed is None:
        return 0 if run_all(names, options.seeds, options.workers, options.for_seconds) else 1
    for name in names:
        print("\n".join(run_seed(known[name], options.seed).transcript))
    return 0


if __name__ == "__main__":
    sys.exit(main())
