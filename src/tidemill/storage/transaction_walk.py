"""Before an index of aborted transactions is believed: what the log itself says, found out in steps.

The index has no checksum, and its absence looks like "nothing was aborted": a lost file or a flipped bit would show
aborted records as committed ones. So the entries of a segment that an earlier process wrote are derived from its
batches once, as after a crash, before the first reader of committed data gets records of a transaction; the file is
made anew where it says something else.

Only the headers of batches are looked at, and the markers, whose one record says commit or abort. Which transactions
were open where the segment begins is in the snapshot of the producers there. A walk goes on in steps of `STEP_BATCHES`
or `STEP_BYTES`, because it holds up the loop; what it knows can be used before it has come to the end:

    segment of 1 GiB, a fetch of 1 MiB at its beginning; the transactions there ended within 2 MiB
    one step (32 MiB); no transaction is open that began below the end of the fetch: its aborts are known
    a fetch at 500 MiB gets nothing until 16 steps were made, one with each time it asks

Limits: where the batches themselves are damaged, a file is believed that begins with what was derived up to there and
whose other entries point to markers. A log without snapshots is walked from its start.
"""

from __future__ import annotations

import struct

from tidemill.ports.files import OpenFile
from tidemill.storage.batch_scan import DamagedBatch
from tidemill.storage.producer_snapshots import ProducerSnapshots
from tidemill.storage.producer_state import ProducerState
from tidemill.storage.segment import Segment
from tidemill.storage.segments import Segments
from tidemill.storage.sparse_index import CorruptIndex
from tidemill.storage.transaction_index import AbortedTransaction
from tidemill.wire.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    checksum,
    read_header,
)

STEP_BATCHES = 20_000
STEP_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
SPARSE_CHUNK_BYTES = 4 * 1024
_KIND = struct.Struct(">qi4xb4xhi")
"""Base offset, length, magic, attributes and last offset delta of a header."""
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_OF_TRANSACTIONS = TRANSACTIONAL_MASK | CONTROL_MASK


class TransactionWalk:
    """Goes through the segments of a log, from a snapshot of the producers on, and checks their indexes."""

    __slots__ = ("_position", "_state", "entries", "is_whole", "offset", "segment")

    def __init__(
        self, segments: Segments, snapshots: ProducerSnapshots, target: Segment, log_start_offset: int
    ) -> None:
        """Begins at or before `target`, the segment to be checked."""
        found = snapshots.newest(target.base_offset)
        offset = found[0] if found else min(log_start_offset, target.base_offset)
        self._state = ProducerState(found[1] if found else ())
        self._enter(segments.floor(offset))
        if offset > self.segment.base_offset:
            position = self.segment.position_of(offset)
            self._position = position if position >= 0 else self.segment.size
            self.is_whole = False

    def _enter(self, segment: Segment) -> None:
        self.segment = segment
        self.offset = segment.base_offset
        """Everything below it was seen."""
        self.entries: list[AbortedTransaction] = []
        """Of this segment, as far as it was seen."""
        self._position = 0
        self.is_whole = True

    @property
    def stable_offset(self) -> int:
        """Below it everything is decided by what was seen."""
        first = self._state.first_open_offset
        return self.offset if first is None else min(first, self.offset)

    def step(self, segments: Segments) -> None:
        """Go on a little; after a DamagedBatch the walk is of no use any more (`believe_file`)."""
        self._look_further()
        if self._position >= self.segment.size:
            self._finish()
            following = segments.after(self.segment)
            if following is not None:
                self._enter(following)

    def _look_further(self) -> None:
        segment = self.segment
        file = segment.handle()
        found, self._position, self.offset = _find_transactional(
            file, self._position, segment.size, self.offset
        )
        for position, header in found:
            batch = b""
            if header.attributes & CONTROL_MASK:
                batch = segment.read_batch(position, header)
                if checksum(batch, 0, len(batch)) != header.crc:
                    raise DamagedBatch(position, "its checksum is wrong")
            aborted = self._state.settle(batch, header)
            if aborted is not None:
                self.entries.append(aborted)
        self._state.forget_completed_below(self.offset)

    def _finish(self) -> None:
        self.offset = self.segment.next_offset
        if self.is_whole:
            self.segment.transaction_index.settle(self.entries, self.stable_offset)


def _find_transactional(
    file: OpenFile, position: int, end: int, offset: int
) -> tuple[list[tuple[int, BatchHeader]], int, int]:
    """The batches of transactions in one step, and how far it came: position and offset.

    It ends before damage; a step that begins with it raises DamagedBatch.
    """
    found: list[tuple[int, BatchHeader]] = []
    begin, limit, count, chunk_bytes = position, min(end, position + STEP_BYTES), 0, CHUNK_BYTES
    while position < limit and count < STEP_BATCHES:
        chunk = file.read(position, min(chunk_bytes, end - position))
        start, last, length = 0, len(chunk) - HEADER_SIZE, 0
        reason = f"{len(chunk)} bytes are less than a header" if last < 0 else ""
        while start <= last:
            base, length, magic, attributes, delta = _KIND.unpack_from(chunk, start)
            if magic != MAGIC or length < _MIN_LENGTH or position + start + length + LOG_OVERHEAD > end:
                reason = f"magic {magic}, length {length}"
            elif base < offset or delta < 0:
                reason = f"base offset {base} is below {offset}"
            if reason:
                break
            if attributes & _OF_TRANSACTIONS:
                found.append((position + start, read_header(chunk, start)))
            offset = base + delta + 1
            start += LOG_OVERHEAD + length
            count += 1
        position += start
        if reason:
            if position == begin:
                raise DamagedBatch(position, reason)
            break
        chunk_bytes = SPARSE_CHUNK_BYTES if length > 2 * SPARSE_CHUNK_BYTES else CHUNK_BYTES
    return found, position, offset


def believe_file(segment: Segment, walk: TransactionWalk) -> bool:
    """Damaged batches stopped the walk: take the file over, if nothing that could be seen speaks against it."""
    seen = walk.entries if walk.segment is segment else []
    index = segment.transaction_index
    try:
        entries = index.entries
        is_sound = entries[: len(seen)] == seen and all(_points_to_marker(each, segment) for each in entries)
    except (CorruptIndex, DamagedBatch):
        return False
    index.is_checked = index.is_checked or is_sound
    return is_sound


def _points_to_marker(entry: AbortedTransaction, segment: Segment) -> bool:
    """Whether the batch at the entry's end is a marker of its producer, if that batch is still there."""
    found = segment.locate(entry.last_offset)
    if found is None or found[1].base_offset > entry.last_offset:
        return True
    header = found[1]
    return header.is_control and header.producer_id == entry.producer_id
