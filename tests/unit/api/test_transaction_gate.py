"""A batch waits for the end of the transaction before its own, as long as the settings say, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from transaction_driver import TransactionDriver, partition

from tidemill.api.transaction_gate import Patience, TransactionGate
from tidemill.coordination.transaction.state import ProducerIdentity
from tidemill.coordination.transaction.verification import VerificationGuards
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.clock import SystemClock

T0 = partition("t-0")
PATIENCE = Patience(backoff_ms=5, limit_ms=60)
NEW_PRODUCE, OLD_PRODUCE = 12, 11


class Coordinator:
    """The real shard, driven by hand; it counts how often it is asked."""

    def __init__(self) -> None:
        self.driver = TransactionDriver()
        self.asked = 0
        self.on_answered: Callable[[], None] = lambda: None

    async def submit(self, key: str, call: Callable[..., Any]) -> Any:
        self.asked += 1
        core = SimpleNamespace(shard=self.driver.shard, carry_out=lambda outcome: outcome)
        answer = self.driver.carry_out(call(core, "token", self.driver.now_ms))
        self.on_answered()
        return answer


class Gate:
    """A transaction was just ended; its marker has not been written yet."""

    def __init__(self) -> None:
        self.coordinator, self.guards, self.clock = Coordinator(), VerificationGuards(), SystemClock()
        coordinator: Any = self.coordinator
        self.gate = TransactionGate(coordinator, self.guards, self.clock, PATIENCE)
        driver = self.coordinator.driver
        first = driver.init().identity
        assert driver.add(first, "t-0") is ErrorCode.NONE
        self.identity: ProducerIdentity = driver.end(first, commit=True).identity

    def admit(self, version: int = NEW_PRODUCE, until_ms: int | None = None) -> int:
        limit_ms = self.gate.wait_until_ms() if until_ms is None else until_ms
        return asyncio.run(self.gate.admit(T0, "orders", self.identity, version, until_ms=limit_ms))

    def write_marker(self) -> None:
        self.guards.on_marker(T0, self.identity.producer_id)
        self.coordinator.driver.write_markers()


def test_a_batch_that_waits_is_let_in_when_the_marker_is_written() -> None:
    world = Gate()
    world.coordinator.on_answered = lambda: world.write_marker() if world.coordinator.asked == 2 else None
    guard = world.admit()
    assert world.coordinator.asked == 3
    world.gate.pass_through(T0, world.identity.producer_id, guard)


def test_patience_has_an_end() -> None:
    world = Gate()
    began_ms = world.clock.monotonic_ms()
    with pytest.raises(ApiError) as refused:
        world.admit()
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.clock.monotonic_ms() - began_ms >= PATIENCE.limit_ms
    assert 2 <= world.coordinator.asked <= 2 + PATIENCE.limit_ms // PATIENCE.backoff_ms
    assert not world.guards.is_held(T0, world.identity.producer_id, 1)


@pytest.mark.parametrize(
    ("version", "until_ms", "code"),
    [
        (NEW_PRODUCE, 0, ErrorCode.CONCURRENT_TRANSACTIONS),
        (OLD_PRODUCE, None, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_who_does_not_wait_at_all(version: int, until_ms: int | None, code: ErrorCode) -> None:
    """One whose request has waited enough, and one that adds its partitions by itself."""
    world = Gate()
    with pytest.raises(ApiError) as refused:
        world.admit(version, until_ms)
    assert refused.value.code is code
    assert world.coordinator.asked == 1
