"""Share partitions in simulation; `simulations` says how to run more seeds, or one alone."""

from __future__ import annotations

import pytest
from share_simulation import Simulation
from simulations import run_seed, run_seeds

from tidemill.coordination.share.partition import SharePartition
from tidemill.coordination.share.partition_contract import ShareLimits, Transition, Write
from tidemill.coordination.share.partition_runs import RecordState
from tidemill.model.errors import ApiError

SIMULATION = Simulation


def test_share_partitions_keep_their_promises_under_random_trouble() -> None:
    run_seeds(SIMULATION, default=100)


def test_a_seed_replays_identically() -> None:
    assert run_seed(SIMULATION, 7).transcript == run_seed(SIMULATION, 7).transcript


# -- the checks see what they should ----------------------------------------------------------------------


class ForgetsWaitingWrites(SharePartition):
    """A lock times out although the record is being acknowledged."""

    def expire_locks(self, limits: ShareLimits, now_ms: int) -> Write | None:
        for run in self.runs:
            if run.next_state is not None and run.lock_due_ms <= now_ms:
                run.become(RecordState.AVAILABLE)
        return super().expire_locks(limits, now_ms)


class ForgetsCounts(SharePartition):
    """A record that is committed as available begins to count anew."""

    def commit(self, transition: Transition) -> None:
        super().commit(transition)
        for run in transition.runs:
            run.delivery_count = 0


class RevivesArchived(SharePartition):
    """What was given up comes back."""

    def commit(self, transition: Transition) -> None:
        for run in transition.runs:
            if run.next_state is RecordState.ARCHIVED:
                run.next_state = RecordState.AVAILABLE
        super().commit(transition)


class IgnoresTimeouts(SharePartition):
    """A lock never ends."""

    def expire_locks(self, limits: ShareLimits, now_ms: int) -> Write | None:
        return None


@pytest.mark.parametrize("broken", [ForgetsWaitingWrites, ForgetsCounts, RevivesArchived, IgnoresTimeouts])
def test_a_broken_partition_is_found_out(broken: type[SharePartition]) -> None:
    def is_found(seed: int) -> bool:
        try:
            Simulation(seed, broken).run()
        except (AssertionError, ApiError):
            return True
        return False

    assert any(is_found(seed) for seed in range(10))
