"""Groups with members of both protocols, in simulation; `simulations` says how to run more seeds, or one alone."""

from __future__ import annotations

from typing import Any

import pytest
from mixed_simulation import MixedSimulation
from simulations import is_found_out, run_seed, run_seeds

from tidemill.coordination.group import consumer_migration
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import ConsumerGroup

SIMULATION = MixedSimulation


def test_mixed_groups_keep_their_promises_under_random_trouble() -> None:
    worlds = run_seeds(SIMULATION, default=40)
    if len(worlds) > 1:
        assert 2 * sum(world.changes for world in worlds) > len(worlds), (
            "too few groups changed their protocol"
        )


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log


# -- the checks see what they should ----------------------------------------------------------------------


def accept(*_: Any, **__: Any) -> None:
    """Nobody is refused."""


def begin_anew(group: ConsumerGroup, value: Any) -> None:
    """An upgrade forgets the generation."""
    value.epoch -= 1 if group.epoch == 0 and value.epoch > 1 else 0
    REPLAY_EPOCH(group, value)


REPLAY_EPOCH = ConsumerGroup.replay_epoch
DEFECTS = [
    pytest.param(Draft, "is_free_for", lambda *_: True, id="a partition is given to two members"),
    pytest.param(consumer_migration, "read_assignment", lambda _: {}, id="an upgrade forgets who reads what"),
    pytest.param(ConsumerGroup, "check_commit", accept, id="fenced members commit"),
    pytest.param(ConsumerGroup, "replay_epoch", begin_anew, id="an upgrade takes the epoch back"),
    pytest.param(
        ConsumerGroup, "has_only_classic_members", True, id="a downgrade with members of the newer protocol"
    ),
    pytest.param(consumer_migration, "_check_upgrade", accept, id="an upgrade that is forbidden"),
]


@pytest.mark.parametrize("owner, name, broken", DEFECTS)
def test_a_planted_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert is_found_out(SIMULATION, seeds=60)
