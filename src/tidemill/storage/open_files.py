"""A bound on open files and memory maps, for brokers with many thousands of segments.

Segments and indexes open what they need when they need it and hold it in a field of their own; here they
only enrol, so that the least used can be asked to let go. "Least used" is decided by the second-chance rule
(CLOCK): whoever uses its handle sets `recently_used`, one attribute store and no list to reorder. When the
bound is passed, the holders are visited in order of enrolment; one that was used since the last visit gets
another round, one that was not must release.

    open_files = OpenFiles(capacity=2)
    open_files.enrol(a); open_files.enrol(b)     # both open
    a.recently_used = True
    open_files.enrol(c)                          # b releases: a was used, c is new

Limits: not thread safe; a released file stays open while a reader under way holds its object.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

DEFAULT_CAPACITY = 8192


class HandleHolder(Protocol):
    recently_used: bool

    def release(self) -> None:
        """Close the handle; the next use opens it again."""
        ...


class OpenFiles:
    """The holders of open handles, at most `capacity` of them."""

    __slots__ = ("_holders", "capacity", "released_count")

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        assert capacity >= 1
        self.capacity = capacity
        self.released_count = 0
        self._holders: OrderedDict[HandleHolder, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def enrol(self, holder: HandleHolder) -> None:
        """Call after opening; may make others release."""
        holder.recently_used = True
        self._holders[holder] = None
        while len(self._holders) > self.capacity:
            self._release_one(newest=holder)
        assert len(self._holders) <= self.capacity

    def withdraw(self, holder: HandleHolder) -> None:
        """Call after closing for a reason of its own."""
        self._holders.pop(holder, None)

    def _release_one(self, newest: HandleHolder) -> None:
        while True:
            holder, _ = self._holders.popitem(last=False)
            if holder is newest or holder.recently_used:
                holder.recently_used = False
                self._holders[holder] = None
                if len(self._holders) == 1:
                    return
            else:
                holder.release()
                self.released_count += 1
                return
