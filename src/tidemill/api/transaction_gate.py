"""The gate before a transactional write: nothing enters a partition whose transaction is not open (KIP-890).

    if not gate.is_open(partition, header.producer_id, header.producer_epoch):
        partition.leader_log().check_epoch(header.producer_id, header.producer_epoch)
        guard = await gate.admit(partition.topic_partition, transactional_id, identity, context.version)
        gate.pass_through(partition.topic_partition, header.producer_id, guard)
    append, without another await in between

`is_open` is the fast path: from the second batch of a transaction on, the partition itself knows. It also knows who was
replaced there, which need not wait for the coordinator. `admit` asks the coordinator, and `pass_through` makes sure
that no marker came between its word and the append. See `coordination.transaction.verification` for the rules.
`transaction.partition.verification.enable=false` lets producers of the first version in unverified, as Kafka does: then
a late batch of theirs can hang.

A producer of version 2 may begin its next transaction while the markers of the last one are still being written. Its
first batch then waits here for a moment (`Patience`) instead of going back and forth between client and broker.

Limits: the coordinator must be on this broker. Requests of one connection must not overtake one that waits here, or
its batches arrive out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidemill.api.coordination import Coordinator
from tidemill.coordination.core import Outcome, Token
from tidemill.coordination.transaction.driven import DrivenShard
from tidemill.coordination.transaction.state import EPOCH_BUMP_SINCE, ProducerIdentity
from tidemill.coordination.transaction.verification import (
    PRODUCE,
    Operation,
    Verdict,
    VerificationGuards,
    client_error,
    verdict,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.replication.partition import Partition

Ask = Callable[[TopicPartition, str, ProducerIdentity], Awaitable[ErrorCode]]


class Patience(NamedTuple):
    """How a batch waits for the end of the transaction before its own."""

    backoff_ms: int = 20
    limit_ms: int = 100


class TransactionGate:
    def __init__(
        self,
        transactions: Coordinator[DrivenShard],
        guards: VerificationGuards,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._transactions = transactions
        self._guards = guards
        self._clock = clock
        self._patience = patience

    def wait_until_ms(self) -> int:
        """Until when the batches of a request that comes now may wait; by the monotonic clock."""
        return self._clock.monotonic_ms() + self._patience.limit_ms

    def is_open(self, partition: Partition, producer_id: int, epoch: int) -> bool:
        """Whether this producer has its transaction open on the partition: its batches may pass."""
        open_epoch = partition.leader_log().open_transaction_epoch(producer_id)
        return verdict(open_epoch, epoch, 0) is Verdict.ACCEPT

    async def admit(
        self,
        name: TopicPartition,
        transactional_id: str,
        identity: ProducerIdentity,
        api_version: int,
        operation: Operation = PRODUCE,
        *,
        is_verifying: bool = True,
        until_ms: int = 0,
    ) -> int:
        """Make the partition part of the transaction, or verify that it is. Returns a guard; raises ApiError.

        Until `until_ms` a partition that cannot be added yet, because the transaction before has not ended, is tried
        again, each time with a new guard: the marker that ends that transaction takes the one before away.
        """
        is_adding = verdict(None, identity.epoch, api_version, operation) is Verdict.ADD_FIRST
        if not is_adding and not is_verifying:
            return self._guards.take(name, identity.producer_id)
        while True:
            guard = self._guards.take(name, identity.producer_id)
            ask = self._add if is_adding else self._verify
            error = await _answer(ask, name, transactional_id, identity)
            if not error:
                return guard
            self._guards.drop(name, identity.producer_id, guard)
            is_busy = is_adding and error is ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_busy or self._clock.monotonic_ms() >= until_ms:
                told = client_error(error, api_version, operation)
                raise ApiError(told, f"{name} is not part of the transaction: {error.name}")
            await asyncio.sleep(self._patience.backoff_ms / 1000)

    def pass_through(self, name: TopicPartition, producer_id: int, guard: int) -> None:
        """The last check, right before the append."""
        is_held = self._guards.is_held(name, producer_id, guard)
        self._guards.drop(name, producer_id, guard)
        if not is_held:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"the transaction ended on {name} meanwhile")

    async def _add(
        self, name: TopicPartition, transactional_id: str, identity: ProducerIdentity
    ) -> ErrorCode:
        def call(core: DrivenShard, token: Token, now_ms: int) -> Outcome:
            shard = core.shard
            return core.carry_out(
                shard.add_partitions(token, now_ms, transactional_id, identity, {name}, EPOCH_BUMP_SINCE)
            )

        error: ErrorCode = await self._transactions.submit(transactional_id, call)
        return error

    async def _verify(
        self, name: TopicPartition, transactional_id: str, identity: ProducerIdentity
    ) -> ErrorCode:
        def call(core: DrivenShard, token: Token, now_ms: int) -> Outcome:
            return core.shard.verify_partitions(token, now_ms, transactional_id, identity, {name})

        errors: dict[TopicPartition, ErrorCode] = await self._transactions.submit(transactional_id, call)
        return errors[name]


async def _answer(
    ask: Ask, name: TopicPartition, transactional_id: str, identity: ProducerIdentity
) -> ErrorCode:
    """What the coordinator says, or why it cannot be asked."""
    try:
        return await ask(name, transactional_id, identity)
    except ApiError as failure:
        return failure.code
