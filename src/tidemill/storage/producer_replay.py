"""Rebuilding producer state: the newest snapshot, then the batches after it.

Only headers are read, except for control batches, whose one record says commit or abort. A log of segments 0,
500, 900 ending at 950 with a snapshot at 900 reads the headers of the third segment alone.
"""

from __future__ import annotations

from tidemill.storage.producer_snapshots import ProducerSnapshots
from tidemill.storage.producer_state import ProducerState
from tidemill.storage.segment import Segment
from tidemill.storage.segments import Segments
from tidemill.wire.batch import CONTROL_MASK


def load_producers(
    segments: Segments, snapshots: ProducerSnapshots, start_offset: int, end_offset: int
) -> ProducerState:
    """The state after all batches below `end_offset` of a log that begins at `start_offset`."""
    found = snapshots.newest(end_offset)
    position, state = (found[0], ProducerState(found[1])) if found else (start_offset, ProducerState())
    if position < end_offset:
        for segment in segments.from_offset(position):
            if segment.base_offset < end_offset:
                replay_segment(state, segment, position, end_offset)
    return state


def replay_segment(state: ProducerState, segment: Segment, start_offset: int, end_offset: int) -> None:
    """Take over the batches of this segment in [start, end)."""
    if start_offset > segment.base_offset:
        found = segment.locate(start_offset)
        if found is None:
            return
        first_position = found[0]
    else:
        first_position = 0
    for position, header in segment.headers(first_position):
        if header.base_offset >= end_offset:
            return
        if header.producer_id >= 0 and header.base_offset >= start_offset:
            is_control = header.attributes & CONTROL_MASK
            state.settle(segment.read_batch(position, header) if is_control else b"", header)
