"""Classic groups in simulation; see `group_simulation` for what happens in it and `simulations` for more seeds."""

from __future__ import annotations

from typing import Any

import pytest
from group_simulation import Simulation
from simulations import is_found_out, run_seed, run_seeds

from tidemill.coordination.group import classic_sync
from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.offsets import Offsets

SIMULATION = Simulation


def test_groups_keep_their_promises_under_random_trouble() -> None:
    run_seeds(SIMULATION, default=20)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log


# -- the checks see what they should ----------------------------------------------------------------------


def accept(*_: Any, **__: Any) -> None:
    """Nobody is refused."""


def commit_whatever_ends(offsets: Offsets, producer_id: int, is_commit: bool) -> None:
    END_TRANSACTION(offsets, producer_id, True)


def assign_all_alike(group: ClassicGroup, assignment: bytes) -> Any:
    return ASSIGNED(group, next(iter(group.members)).assignment)


END_TRANSACTION, ASSIGNED = Offsets.end_transaction, classic_sync._assigned
DEFECTS = [
    pytest.param(ClassicGroup, "check_commit", accept, id="fenced members commit"),
    pytest.param(Offsets, "end_transaction", commit_whatever_ends, id="aborted offsets count"),
    pytest.param(classic_sync, "_assigned", assign_all_alike, id="two members read the same"),
]


@pytest.mark.parametrize("owner, name, broken", DEFECTS)
def test_a_planted_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert is_found_out(SIMULATION, seeds=30)
