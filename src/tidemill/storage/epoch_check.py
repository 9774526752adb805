"""Comparing the leader epochs of the checkpoint file with those that the batches carry.

The file is plain text without a checksum, so one flipped bit can turn epoch 3 into 2, or offset 120 into 130. But
each batch knows its epoch: the batch at an entry's start must carry that epoch, the one before it a smaller one.

    entries (0 -> 0), (3 -> 130)   batches 0..99 epoch 0, 100..119 epoch 0, 120..139 epoch 3, ...
    the batch with offset 129 has epoch 3, not less: the file is wrong, `epochs_of_batches` gives (3 -> 120)

Where compaction removed the batch itself, the next one may carry a larger epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.storage.leader_epochs import EpochEntry
from tidemill.storage.segments import Segments
from tidemill.wire.batch import BatchHeader


def epochs_agree(
    entries: Iterable[EpochEntry], segments: Segments, start_offset: int, end_offset: int
) -> bool:
    """Whether no batch contradicts an entry; raises DamagedBatch if the log itself cannot be walked."""
    return all(_agrees(entry, segments, start_offset, end_offset) for entry in entries)


def _agrees(entry: EpochEntry, segments: Segments, start_offset: int, end_offset: int) -> bool:
    epoch, start = entry
    if start < start_offset or start >= end_offset:
        return start < end_offset
    first = _batch_from(segments, start)
    if first is not None and not _may_follow(first, entry):
        return False
    before = _batch_from(segments, start - 1) if start > start_offset else None
    return before is None or before.base_offset >= start or before.leader_epoch < epoch


def _may_follow(batch: BatchHeader, entry: EpochEntry) -> bool:
    if batch.base_offset <= entry.start_offset:
        return batch.leader_epoch == entry.epoch
    return batch.leader_epoch >= entry.epoch


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
