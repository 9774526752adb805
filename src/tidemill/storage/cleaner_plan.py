"""Which log to compact next, and how far.

A log's cleanable part ends at the first of: the active segment, the last stable offset (what lies above may
still be aborted, or lost), the first segment with a record younger than `min.compaction.lag.ms`. It is rounded
down to whole segments.

    clean | dirty | not yet          ratio = dirty bytes / (clean + dirty bytes)

The log with the highest ratio goes first, if its ratio is above its `min.cleanable.dirty.ratio`, or if its oldest
dirty record has waited longer than `max.compaction.lag.ms`.

Example: 60 MB clean, 80 MB dirty, 10 MB in the active segment: ratio 80 / 140 = 0.57, above the default of 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.storage.cleaner_job import CleanerJob, LastRecord, SegmentFiles
from tidemill.storage.config import FOREVER_MS
from tidemill.storage.log import Log
from tidemill.storage.segment import Segment


class Candidate(NamedTuple):
    log: Log
    segments: tuple[Segment, ...]
    """The clean and the dirty ones, from the start of the log."""
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        overdue = self.is_overdue and self.dirty_bytes > 0
        return overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def filthiest(candidates: Iterable[Candidate]) -> Candidate | None:
    return max((each for each in candidates if each.is_due), key=lambda each: each.dirty_ratio, default=None)


def assess(log: Log, clean_until: int | None, now_ms: int) -> Candidate:
    """How dirty a log is that was compacted up to `clean_until` (None: never)."""
    segments = log.segments
    first_dirty = log.log_start_offset
    if clean_until is not None and first_dirty <= clean_until <= log.log_end_offset:
        first_dirty = clean_until
    cleanable = _cleanable_count(log, segments, first_dirty, now_ms)
    end = segments[cleanable].base_offset
    chosen = segments[:cleanable]
    dirty = [
        segment
        for segment, after in zip(chosen, segments[1:], strict=False)
        if after.base_offset > first_dirty
    ]
    dirty_bytes = sum(segment.size for segment in dirty)
    clean_bytes = sum(segment.size for segment in chosen) - dirty_bytes
    return Candidate(log, chosen, first_dirty, end, clean_bytes, dirty_bytes, _is_overdue(log, dirty, now_ms))


def _cleanable_count(log: Log, segments: tuple[Segment, ...], first_dirty: int, now_ms: int) -> int:
    """How many segments from the start end at or below everything that must not be touched."""
    limit = min(log.last_stable_offset, segments[-1].base_offset)
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    for place in range(len(segments) - 1):
        end = segments[place + 1].base_offset
        is_too_young = end > first_dirty and segments[place].largest_timestamp > youngest_ms
        if end > limit or (is_too_young and log.config.min_compaction_lag_ms > 0):
            return place
    return len(segments) - 1


def _is_overdue(log: Log, dirty: list[Segment], now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= FOREVER_MS:
        return False
    firsts = [segment.first_timestamp for segment in dirty]
    oldest_ms = min((first for first in firsts if first is not None and first > 0), default=None)
    return oldest_ms is not None and now_ms - oldest_ms > lag_ms


def job_for(candidate: Candidate, now_ms: int, offset_map_bytes: int) -> CleanerJob:
    log, config = candidate.log, candidate.log.config
    start = candidate.segments[0].base_offset
    return CleanerJob(
        directory=log.directory,
        segments=tuple(
            SegmentFiles(
                segment.base_offset,
                segment.size,
                segment.offset_index.size_bytes,
                segment.time_index.size_bytes,
            )
            for segment in candidate.segments
        ),
        first_dirty_offset=candidate.first_dirty_offset,
        first_uncleanable_offset=candidate.first_uncleanable_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        offset_map_bytes=offset_map_bytes,
        aborted=tuple(log.aborted_transactions(start, candidate.first_uncleanable_offset)),
        last_records={
            entry.producer_id: LastRecord(entry.last_offset if entry.last_offset >= 0 else None, entry.epoch)
            for entry in log.producers()
        },
    )
