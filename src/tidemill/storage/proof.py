"""Proof before serving: batches that an earlier process wrote are checked once before they leave.

Records leave by `sendfile`, which looks at nothing. What this process wrote it had checked when it was produced; what
it found on the disk at the start may have changed since (a flipped bit, a file cut short or restored wrongly). So the
first read of such bytes walks their batches: header, checksum, order of offsets. What was proven is remembered as
ranges of the file, and a segment whose bytes are all proven costs nothing any more:

    segment of 100 KB found at the start          unproven [0, 100 KB)
    a fetch of 30 KB from its beginning           30 KB are read and summed; proven [0, 30 KB)
    the same fetch again                          nothing to do
    a flipped bit at 52 KB, in the batch at 50    a fetch gets what lies before 50 KB; the next one, that begins there,
                                                  gets CORRUPT_MESSAGE; a reader may seek to the batch after it

The checksum does not cover base offset and leader epoch, which the broker sets. The epoch must be the one of the
leader-epoch checkpoint. A base offset out of order is noticed at the batch after it; then neither of the two is served.
Where a read finds nothing at its offset but something later, as compaction leaves it, the batches before are walked
too: one of them may have been the right one.

Limits: bytes that change after they were proven, while the broker runs, are found by the reader's own checksum only. A
fetch that meets unproven bytes gets at most `MOST_BYTES` and `MOST_BATCHES` at a time, because the walk holds up the
loop. A base offset that was changed in the last batch of a log is found at the start, by the recovery point; a leader
epoch that was changed there cannot be told from a checkpoint that was.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable

from tidemill.ports.files import OpenFile
from tidemill.storage.batch_scan import DamagedBatch, scan_checked
from tidemill.wire.batch import HEADER_SIZE, TRANSACTIONAL_MASK, BatchHeader, read_header

MOST_BYTES = 4 * 1024 * 1024
MOST_BATCHES = 2_000
UNKNOWN = -1


class Proof:
    """Which bytes of a file, below `end`, were found sound."""

    __slots__ = ("_ranges", "end", "has_transactions", "reported")

    def __init__(self, end: int) -> None:
        self.end = end
        self._ranges: list[tuple[int, int]] = []
        """Ascending, disjoint."""
        self.has_transactions = False
        """Whether a batch among those that were walked belongs to a transaction."""
        self.reported: set[int] = set()
        """Where damage was met; it is worth a line in the log only once."""

    @property
    def is_complete(self) -> bool:
        return self.end <= 0 or (len(self._ranges) == 1 and self._ranges[0] == (0, self.end))

    def proven_to(self, position: int) -> int:
        """How far the bytes from this position on are proven; the position itself if they are not."""
        place = bisect_right(self._ranges, (position, self.end))
        if place and self._ranges[place - 1][1] > position:
            return self._ranges[place - 1][1]
        return position

    def add(self, start: int, stop: int) -> None:
        kept = []
        for low, high in self._ranges:
            if high < start or low > stop:
                kept.append((low, high))
            else:
                start, stop = min(low, start), max(high, stop)
        insort(kept, (start, stop))
        self._ranges = kept

    def prove(
        self, file: OpenFile, position: int, stop: int, end_offset: int, epoch_of: Callable[[int], int]
    ) -> int:
        """Walk the batches from `position`, where one begins, until `stop` is reached; how far they are sound.

        `end_offset` is where the next segment begins; `epoch_of` gives the leader epoch that a batch with this base
        offset must carry, or UNKNOWN. Raises DamagedBatch if already the first is not sound.
        """
        limit = min(stop, self.end, position + MOST_BYTES)
        sound = position
        while sound < limit:
            known = self.proven_to(sound)
            if known > sound:
                sound = known
                continue
            try:
                sound = self._walk(file, sound, limit, end_offset, epoch_of)
            except DamagedBatch:
                if sound == position:
                    raise
                return sound
            break
        return max(sound, stop) if sound >= self.end else sound

    def _walk(
        self, file: OpenFile, start: int, limit: int, end_offset: int, epoch_of: Callable[[int], int]
    ) -> int:
        """Where the last sound batch ends that begins before the limit; raises if there is none."""
        suspect, sound = start, start
        last: BatchHeader | None = None
        try:
            for count, (position, header, _) in enumerate(scan_checked(file, start, self.end), 1):
                _require_place(position, header, end_offset, epoch_of(header.base_offset))
                suspect, last = position, header
                if header.attributes & TRANSACTIONAL_MASK:
                    self.has_transactions = True
                sound = position + header.size
                if sound >= limit or count >= MOST_BATCHES:
                    break
            if last is not None and sound < self.end:
                _require_order(file, sound, last)
        except DamagedBatch as error:
            sound = suspect if "base offset" in error.reason else sound
            if sound == start:
                raise
        self.add(start, sound)
        return sound


def _require_place(position: int, header: BatchHeader, end_offset: int, epoch: int) -> None:
    """Base offset and leader epoch are not under the checksum."""
    if header.last_offset >= end_offset:
        raise DamagedBatch(
            position, f"it reaches offset {header.last_offset}, its segment ends at {end_offset}"
        )
    if epoch not in (UNKNOWN, header.leader_epoch):
        raise DamagedBatch(position, f"leader epoch {header.leader_epoch}, but {epoch} wrote at its offset")


def _require_order(file: OpenFile, position: int, last: BatchHeader) -> None:
    """The batch behind the walk must not begin before the walk's last one ends."""
    data = file.read(position, HEADER_SIZE)
    if len(data) == HEADER_SIZE and read_header(data).base_offset <= last.last_offset:
        raise DamagedBatch(position, f"base offset is not above {last.last_offset}")


def require_no_hidden_batch(file: OpenFile, start: int, end: int, least_offset: int) -> None:
    """Walk what a search passed over; raises DamagedBatch."""
    for _ in scan_checked(file, start, end, least_offset):
        pass
