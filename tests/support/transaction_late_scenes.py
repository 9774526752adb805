"""Transactions near the last epoch: states that are written into the log, and lived when the broker has loaded them.

No producer gets there by requests in reasonable time. See `transaction_life`.
"""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

from transaction_life import Life
from transaction_transcript import TIMEOUT_MS, Who

from tidemill.coordination.transaction.state import State, TransactionMetadata
from tidemill.model.ids import TopicPartition

FIRST_ID = 500_000
LAST_EPOCHS = 32_765
"""From here on Kafka answers a repeated request with UNKNOWN_SERVER_ERROR."""
STATES = (
    State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.PREPARE_COMMIT, State.PREPARE_ABORT
)  # fmt: skip
OPEN = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Late(NamedTuple):
    epoch: int
    state: State
    version: int
    producer_id: int
    is_fenced: bool = False

    @property
    def name(self) -> str:
        return f"late-{self.state.text}-{self.epoch}-{self.version}{'-fenced' if self.is_fenced else ''}"

    @property
    def who(self) -> Who:
        return Who(self.name, self.producer_id, self.epoch)


def _all() -> list[Late]:
    found: list[Late] = []
    for version, state, epoch in itertools.product((0, 2), STATES, (3, 32_765, 32_766, 32_767)):
        if (state, epoch) == (State.ONGOING, 32_767):
            continue
        for is_fenced in (False, True) if state is State.ONGOING else (False,):
            found.append(Late(epoch, state, version, FIRST_ID + len(found), is_fenced))
    return found


ALL = _all()


def late_states(life: Life) -> None:
    partition = TopicPartition(life.topic(1), 0)
    now_ms = int(time.time() * 1000)
    for each in ALL:
        is_renewed = each.state is State.PREPARE_COMMIT and each.epoch == 32_767
        life.write_state(
            TransactionMetadata(
                transactional_id=each.name,
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                timeout_ms=TIMEOUT_MS,
                state=each.state,
                last_update_ms=now_ms,
                partitions=frozenset({partition} if each.state in OPEN else ()),
                start_ms=now_ms,
                previous_producer_id=each.producer_id,
                next_producer_id=each.producer_id + 1000 if is_renewed else -1,
                client_version=each.version,
            )
        )


def late_lives(life: Life) -> None:
    for each in ALL:
        if each.is_fenced:
            _be_fenced(life, each)
        else:
            _live(life, each)


def _live(life: Life, each: Late) -> None:
    name, who = each.name, each.who
    life.settle(name)
    life.describe(name)
    if each.state is State.ONGOING:
        version = 5 if each.version == 2 else 4
        after = life.end(who, commit=True, version=version)
        life.describe(name)
        for commit in (True, False):
            life.end(who, commit=commit, version=version)
        life.end(after, commit=True, version=version)
        who = after
    life.init(name, who)
    if each.epoch < LAST_EPOCHS:
        life.init(name, who)
        life.init(name, who.at(each.epoch + 1))
    life.describe(name)
    who = life.init(name)
    life.init(name)
    life.describe(name)
    life.end(who, commit=False)
    life.describe(name)


def _be_fenced(life: Life, each: Late) -> None:
    """A successor ends what is open."""
    for _ in range(3):
        life.init(each.name)
        life.settle(each.name)
        life.describe(each.name)
    life.init(each.name, each.who)
    for version in (4, 5):
        life.end(each.who, commit=True, version=version)
    life.add(each.who, "late_states", 0)
