"""What client processes of both group protocols have in common in a simulation: they read partitions and commit.

`reads` is what the process reads, from the answer that gives it until it really stops; `positions` how far it got with
what it knows the beginning of. Partitions have topic ids, offsets are committed under names.
"""

from __future__ import annotations

import random
from typing import Protocol

from consumer_driver import ConsumerDriver
from offset_ledger import Key, OffsetLedger

from tidemill.model.errors import ErrorCode

Partition = tuple[bytes, int]


class Surroundings(Protocol):
    """What a process needs of its simulation."""

    dice: random.Random
    driver: ConsumerDriver
    ledger: OffsetLedger

    def new_id(self, name: str) -> str: ...

    def wish(self) -> tuple[list[str], str | None]:
        """Topics to subscribe to, and an expression."""
        ...

    def is_lost(self) -> bool:
        """Whether the next answer gets lost."""
        ...

    def note(self, line: str) -> None: ...


class ReadingProcess:
    """A `Reader` for the ledger; what it does about its membership is up to the protocol that it speaks."""

    names_itself_in_fetches = True
    member_id: str

    def __init__(self, simulation: Surroundings, name: str, instance_id: str | None) -> None:
        self.simulation = simulation
        self.driver = simulation.driver
        self.name = name
        self.instance_id = instance_id
        self.slowness = simulation.dice.choice([0.0, 0.0, 0.3, 0.9])
        """How likely it is not done yet with giving partitions up."""
        self.reads: set[Partition] = set()
        self.positions: dict[Partition, int] = {}
        self.stalled_until_ms = 0

    # -- what each protocol has its own way for -------------------------------------------------------------

    @property
    def commit_epoch(self) -> int:
        raise NotImplementedError

    @property
    def is_in(self) -> bool:
        """Whether it takes itself for a member."""
        raise NotImplementedError

    def beat(self) -> None:
        """Go on as a member, or become one."""
        raise NotImplementedError

    def quit(self, *, for_good: bool) -> int | str:
        """Leave the group; the code of the answer."""
        raise NotImplementedError

    def change_mind(self) -> None:
        """Subscribe to something else."""
        raise NotImplementedError

    def on_refused_commit(self, code: int) -> None:
        """By default it goes on, and learns from its next heartbeat what it is."""

    # -- acting ---------------------------------------------------------------------------------------------

    def act(self) -> None:
        if self.driver.now_ms < self.stalled_until_ms:
            return
        if self.is_in and self.reads and self.simulation.dice.random() < 0.4:
            self.read()
        else:
            self.beat()

    def live(self) -> None:
        """In quiet times: everything that is to be done."""
        self.beat()
        if self.is_in:
            self.read()

    def haunt(self) -> None:
        """It was taken for dead, and commits what it read."""
        known = self._known(set(self.positions))
        if known:
            self._commit(*self.simulation.dice.choice(list(known.items())))

    # -- reading --------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Ask where to begin, or once more; or read on, and commit."""
        known = self._known(self.reads)
        asks_again = self.names_itself_in_fetches and self.simulation.dice.random() < 0.1
        new = {each: key for each, key in known.items() if asks_again or each not in self.positions}
        if new:
            self._begin(new)
        elif known:
            self._commit(*self.simulation.dice.choice(list(known.items())))

    def _known(self, partitions: set[Partition]) -> dict[Partition, Key]:
        """Without those of topics that are gone."""
        named = ((each, self.driver.topics.by_id(each[0])) for each in sorted(partitions))
        return {each: (topic.name, each[1]) for each, topic in named if topic is not None}

    def _begin(self, wanted: dict[Partition, Key]) -> None:
        found = self.simulation.ledger.fetch(self, wanted.values())
        if found is None:
            self.simulation.note(f"{self.name} is not told its offsets")
        else:
            self.positions.update({each: found[key] for each, key in wanted.items()})

    def _commit(self, partition: Partition, key: Key) -> None:
        offset = self.positions[partition] + self.simulation.dice.randrange(1, 10)
        code = self.simulation.ledger.commit(self, key, offset)
        self.simulation.note(f"{self.name} commits {offset} for {key} at {self.commit_epoch}: {code}")
        if code == ErrorCode.NONE:
            self.positions[partition] = offset
        else:
            self.on_refused_commit(code)

    def stop_reading(self, partitions: set[Partition]) -> None:
        self.reads -= partitions
        for partition in partitions:
            self.positions.pop(partition, None)

    def is_still_busy(self) -> bool:
        return self.simulation.dice.random() < self.slowness
