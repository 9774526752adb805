"""What the broker tells the cleaner, and what the cleaner answers: two values that travel as JSON.

The cleaner is another process and touches nothing but the files named here. The broker decides everything
that needs its memory (how far the log may be cleaned, which transactions were aborted, which batch is a
producer's last) when it makes the job, and swaps the result in when it is done.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from tidemill.storage.transaction_index import AbortedTransaction


class SegmentFiles(NamedTuple):
    """A sealed segment, as large as it was when the job was made."""

    base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


class LastRecord(NamedTuple):
    """The newest trace of an active producer: the end of its last data, or only a marker of this epoch."""

    last_data_offset: int | None
    producer_epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class CleanerJob:
    directory: str
    segments: tuple[SegmentFiles, ...]
    """All sealed segments below `first_uncleanable_offset`, from the start of the log, in order."""
    first_dirty_offset: int
    first_uncleanable_offset: int
    """Base offset of the segment after the last one here."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    offset_map_bytes: int
    aborted: tuple[AbortedTransaction, ...] = ()
    last_records: dict[int, LastRecord] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CleanerJob:
        fields: dict[str, Any] = json.loads(text)
        fields["segments"] = tuple(SegmentFiles(*segment) for segment in fields["segments"])
        fields["aborted"] = tuple(AbortedTransaction(*entry) for entry in fields["aborted"])
        fields["last_records"] = {
            int(key): LastRecord(*value) for key, value in fields["last_records"].items()
        }
        return cls(**fields)


class Replacement(NamedTuple):
    """One cleaned segment (its files end in `.cleaned`) and the base offsets of those it stands for."""

    base_offset: int
    replaced: tuple[int, ...]
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class CleanerResult:
    end_offset: int
    """The log is clean below; the first dirty offset of the next pass."""
    replacements: tuple[Replacement, ...] = ()
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    map_is_full: bool = False
    """The pass ended early because the memory for keys was full; the rest is still dirty."""
    error: str | None = None
    """Why this log cannot be cleaned; nothing was replaced then."""
    is_disk_error: bool = False
    """The disk failed, not the data: another try may succeed."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CleanerResult:
        fields: dict[str, Any] = json.loads(text)
        fields["replacements"] = tuple(
            Replacement(base, tuple(replaced), size) for base, replaced, size in fields["replacements"]
        )
        return cls(**fields)
