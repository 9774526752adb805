"""Consumer groups of the newer protocol in simulation; `simulations` says how to run more seeds, or one alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from consumer_simulation import ConsumerSimulation
from simulations import is_found_out, run_seed, run_seeds

from tidemill.coordination.group import shard
from tidemill.coordination.group.consumer_draft import Draft
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.offsets import Offsets, PartitionKey

SIMULATION = ConsumerSimulation


def test_consumer_groups_keep_their_promises_under_random_trouble() -> None:
    run_seeds(SIMULATION, default=40)


def test_a_seed_replays_identically() -> None:
    first, second = run_seed(SIMULATION, 7), run_seed(SIMULATION, 7)
    assert first.transcript == second.transcript and first.driver.log == second.driver.log


# -- the checks see what they should ----------------------------------------------------------------------


def expire_by_age(group: Any, offsets: Offsets, retention_ms: int, now_ms: int) -> Iterator[PartitionKey]:
    for key, committed in offsets.of_group(group.group_id).items():
        if now_ms - committed.commit_timestamp_ms >= retention_ms:
            yield key


def accept(*_: Any, **__: Any) -> None:
    """Nobody is refused."""


DEFECTS = [
    pytest.param(Draft, "is_free_for", lambda *_: True, id="a partition is given to two members"),
    pytest.param(ConsumerGroup, "check_commit", accept, id="fenced members commit"),
    pytest.param(ConsumerGroup, "check_offset_fetch", accept, id="fenced members are told offsets"),
    pytest.param(shard, "expired_offsets", expire_by_age, id="offsets expire that are in use"),
    pytest.param(
        ConsumerGroup, "is_subscribed_to", lambda *_: False, id="offsets are deleted that are in use"
    ),
    pytest.param(ConsumerGroup, "check_delete", accept, id="a group with members is deleted"),
]


@pytest.mark.parametrize("owner, name, broken", DEFECTS)
def test_a_planted_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert is_found_out(SIMULATION, seeds=30)
