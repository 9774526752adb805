"""Comparing the leader epochs of the checkpoint file with those that the batches carry.

The file is plain text without a checksum, so one flipped bit can turn epoch 3 into 2, or offset 120 into 130; and
it may be older than the log after a power loss. But each batch knows its epoch: the batch at an entry's start must
carry that epoch, the one before it the epoch of the entry before, the last one of the log that of the last entry.

    entries (0 -> 0), (3 -> 130)   batches 0..99 epoch 0, 100..119 epoch 0, 120..139 epoch 3, ...
    the batch with offset 129 has epoch 3, not 0: the file is wrong, `epochs_of_batches` gives (3 -> 120)

Where compaction removed the batch itself, the next one may carry a larger epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.storage.leader_epochs import EpochEntry
from tidemill.storage.segments import Segments
from tidemill.wire.batch import BatchHeader

NO_EPOCH = -1


def epochs_agree(
    entries: Sequence[EpochEntry], segments: Segments, start_offset: int, end_offset: int
) -> bool:
    """Whether no batch contradicts the entries; raises DamagedBatch if the log itself cannot be walked."""
    earlier = NO_EPOCH
    for epoch, start in entries:
        if start >= end_offset:
            return False
        if start > start_offset and not _is_written_by(segments, start - 1, earlier):
            return False
        if start >= start_offset and not _is_written_by(segments, start, epoch):
            return False
        earlier = epoch
    return end_offset <= start_offset or _is_written_by(segments, end_offset - 1, earlier)


def last_epoch_agrees(
    entries: Sequence[EpochEntry], segments: Segments, start_offset: int, end_offset: int
) -> bool:
    """The quick form: only the last batch is looked at."""
    latest = entries[-1].epoch if entries else NO_EPOCH
    return end_offset <= start_offset or _is_written_by(segments, end_offset - 1, latest)


def _is_written_by(segments: Segments, offset: int, epoch: int) -> bool:
    """Whether the batch with this offset carries this epoch; if the batch is gone, later ones may be later."""
    batch = _batch_from(segments, offset)
    if batch is None:
        return True
    if batch.base_offset > offset:
        return batch.leader_epoch >= epoch
    return batch.leader_epoch == epoch


def _batch_from(segments: Segments, offset: int) -> BatchHeader | None:
    """The first batch that reaches this offset."""
    for segment in segments.from_offset(offset):
        found = segment.locate(offset)
        if found is not None:
            return found[1]
    return None


def epochs_of_batches(segments: Segments, start_offset: int) -> list[EpochEntry]:
    """What the file should say, from all batch headers of the log."""
    entries: list[EpochEntry] = []
    for segment in segments:
        for _, header in segment.headers():
            if header.leader_epoch > (entries[-1].epoch if entries else -1):
                if entries and entries[-1].start_offset == header.base_offset:
                    entries.pop()
                entries.append(EpochEntry(header.leader_epoch, max(header.base_offset, start_offset)))
    while len(entries) > 1 and entries[1].start_offset <= start_offset:
        del entries[0]
    return entries
