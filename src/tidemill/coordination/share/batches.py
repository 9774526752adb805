"""State batches of a share partition, put one over the other.

A batch says of a run of offsets in which state they are and how often they were delivered. Runs of several writes
overlap; what is kept has no overlaps, and is as short as possible:

    stored      0-9 available, 1 delivery
    new              5-14 acknowledged, 1 delivery
    combined    0-4 available, 5-14 acknowledged

For an offset that several batches speak of, the highest delivery count is right, and with equal counts the highest
state (available < acknowledged < archived): deliveries only become more, and what is finished stays so. That makes the
result independent of the order in which batches are put together. Offsets that no batch speaks of were never delivered.
What lies below the start offset is cut away. Neighbours in the same state become one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tidemill.coordination.share.persister import StateBatch


def combine(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """All of these in one list without overlaps, from `start_offset` on (-1: everything)."""
    combined: list[StateBatch] = []
    for piece in _pieces(_cut(batches, start_offset)):
        last = combined[-1] if combined else None
        if last is not None and last.last_offset + 1 == piece.first_offset and last[2:] == piece[2:]:
            combined[-1] = last._replace(last_offset=piece.last_offset)
        else:
            combined.append(piece)
    return tuple(combined)


def _cut(batches: Iterable[StateBatch], start_offset: int) -> Iterator[StateBatch]:
    for batch in batches:
        if batch.last_offset >= start_offset:
            yield batch._replace(first_offset=max(batch.first_offset, start_offset, 0))


def _pieces(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Between any two offsets where a batch begins or ends: the batch that counts there.

    A sweep over the offsets: `open_batches` is a heap with the batch that counts on top; those that have ended are
    taken off when they come up.
    """
    begins = sorted(batches)
    edges = sorted({batch.first_offset for batch in begins} | {batch.last_offset + 1 for batch in begins})
    open_batches: list[tuple[int, int, int]] = []
    upcoming = 0
    for edge, next_edge in pairwise(edges):
        while upcoming < len(begins) and begins[upcoming].first_offset == edge:
            batch = begins[upcoming]
            heapq.heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            upcoming += 1
        while open_batches and open_batches[0][2] < edge:
            heapq.heappop(open_batches)
        if open_batches:
            count, state, _ = open_batches[0]
            yield StateBatch(edge, next_edge - 1, -state, -count)
