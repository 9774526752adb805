"""Transactions in simulation; `transaction_simulation` says what happens, `simulations` how to run more seeds."""

from __future__ import annotations

from typing import Any

import pytest
import transaction_simulation
from simulations import is_found_out, run_seed, run_seeds
from transaction_simulation import World

from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.offsets import Offsets
from tidemill.coordination.transaction import shard
from tidemill.coordination.transaction.state import ProducerIdentity, TransactionMetadata
from tidemill.coordination.transaction.verification import Verdict
from tidemill.storage.producer_state import ProducerState

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


# -- the checks see what they should ----------------------------------------------------------------------


def commit_whatever_ends(offsets: Offsets, producer_id: int, is_commit: bool) -> None:
    END_TRANSACTION(offsets, producer_id, True)


def forget_epochs(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> Any:
    """A producer that was replaced goes on."""
    return CHECK_ADDING(metadata, identity if metadata is None else metadata.identity)


def forget_sequences(state: ProducerState, header: Any) -> Any:
    """Nothing is a duplicate, nothing out of order."""
    return CHECK(state, header._replace(base_sequence=-1))


def accept(*_: Any, **__: Any) -> None:
    """Nobody is refused."""


END_TRANSACTION, CHECK_ADDING, CHECK = Offsets.end_transaction, shard.check_adding, ProducerState.check
DEFECTS = [
    pytest.param(Offsets, "end_transaction", commit_whatever_ends, id="aborted offsets count"),
    pytest.param(Offsets, "is_pending", lambda *_: False, id="open offsets are taken for stable"),
    pytest.param(shard, "check_adding", forget_epochs, id="a new epoch fences nobody"),
    pytest.param(ProducerState, "check", forget_sequences, id="a batch is written twice"),
    pytest.param(transaction_simulation, "verdict", lambda *_: Verdict.ACCEPT, id="late batches hang"),
    pytest.param(ClassicGroup, "check_commit", accept, id="members of an older generation commit"),
]


@pytest.mark.parametrize("owner, name, broken", DEFECTS)
def test_a_planted_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert is_found_out(SIMULATION, seeds=30)
