"""What goes into and comes out of a share partition: plain values, no wire messages."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

from tidemill.coordination.share.partition_runs import RecordState, Run
from tidemill.coordination.share.persister import StateBatch

LEAST_SUSPECT_DELIVERIES = 2


class Acknowledgement(enum.IntEnum):
    """What a member says about a record it holds."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgedRange(NamedTuple):
    """Offsets, both included, and what is said of them: one word for all, or one for each."""

    first_offset: int
    last_offset: int
    words: tuple[Acknowledgement, ...]


class ShareLimits(NamedTuple):
    """What bounds a share partition; a group may set its own at any time, so every call is told."""

    record_lock_duration_ms: int
    delivery_count_limit: int
    max_record_locks: int

    @property
    def suspect_delivery_count(self) -> int:
        """A record that came back this often may be the one that breaks its readers."""
        return max(LEAST_SUSPECT_DELIVERIES, (self.delivery_count_limit + 1) // 2)


class FetchedBatch(NamedTuple):
    """A batch that the log holds; `is_hidden` where no reader may see its records (markers, aborted ones)."""

    base_offset: int
    last_offset: int
    is_hidden: bool = False


class Wish(NamedTuple):
    """What a member asks for: `max_records` is exact in the mode `is_exact`, else whole batches may exceed it."""

    member_id: str
    max_records: int
    batch_size: int
    is_exact: bool = False


class AcquiredRange(NamedTuple):
    first_offset: int
    last_offset: int
    delivery_count: int

    @property
    def size(self) -> int:
        return self.last_offset - self.first_offset + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """What must be persisted: where the partition then starts, and what changed."""

    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int
    """Records behind the start that are done with, although an earlier one is not; writes under way count as done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """Runs that wait for their write: the caller persists it, then commits or rolls back."""

    runs: tuple[Run, ...]
    write: Write


def target_state(word: Acknowledgement, delivery_count: int, limits: ShareLimits) -> RecordState:
    """What an acquired record becomes; one that may not be delivered again is given up."""
    if word is Acknowledgement.ACCEPT:
        return RecordState.ACKNOWLEDGED
    if word is Acknowledgement.RELEASE:
        return released_state(delivery_count, limits)
    return RecordState.ARCHIVED


def released_state(delivery_count: int, limits: ShareLimits) -> RecordState:
    if delivery_count >= limits.delivery_count_limit:
        return RecordState.ARCHIVED
    return RecordState.AVAILABLE
