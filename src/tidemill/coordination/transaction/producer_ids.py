"""Producer ids in stock: taken one by one without waiting, filled up in blocks from the metadata log.

A core may need an id in the middle of a decision (a new transactional id, an epoch that is used up, even in a
timer), where it cannot wait for the controller. So the broker keeps a stock and fills it up ahead of need:

    stock = ProducerIdStock()
    if stock.is_low:
        stock.add(await allocate_a_block())
    stock.take()                    # the next id, or None: then the client is told to try again

Ids that are in stock when the broker stops are never used by anybody.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

LOW = 100
"""A tenth of a block."""


class ProducerIds(Protocol):
    def take(self) -> int | None:
        """An id that nobody has, or None if there is none at the moment."""
        ...


class ProducerIdStock:
    def __init__(self) -> None:
        self._blocks: deque[range] = deque()

    @property
    def remaining(self) -> int:
        return sum(len(block) for block in self._blocks)

    @property
    def is_low(self) -> bool:
        return self.remaining < LOW

    def add(self, block: range) -> None:
        if block:
            self._blocks.append(block)

    def take(self) -> int | None:
        if not self._blocks:
            return None
        block = self._blocks[0]
        if len(block) == 1:
            self._blocks.popleft()
        else:
            self._blocks[0] = block[1:]
        return block[0]
