"""Drives a share partition by short lines and writes down what it has in flight after each.

share = ShareTranscript(batch=5, end=20)          # a log of batches of five records, offsets 0 to 19
share.acquire("ann", 10)                          # "0-9 x1"
share.acknowledge("ann", "0-3 accept")            # written and committed at once
share.state                                       # "4-9 acquired x1 ann"
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.coordination.share.partition import SharePartition
from tidemill.coordination.share.partition_contract import (
    AcknowledgedRange,
    Acknowledgement,
    FetchedBatch,
    ShareLimits,
    Transition,
    Wish,
)
from tidemill.coordination.share.persister import StateBatch

LOCK_MS = 30_000
LIMITS = ShareLimits(LOCK_MS, delivery_count_limit=5, max_record_locks=200)
BATCH_SIZE = 500


class ShareTranscript:
    def __init__(
        self, *, batch: int = 5, end: int = 100, start: int = 0, limits: ShareLimits = LIMITS
    ) -> None:
        self.partition = SharePartition(start)
        self.limits = limits
        self.now_ms = 0
        self.batches = [FetchedBatch(base, min(end, base + batch) - 1) for base in range(0, end, batch)]
        self.written: dict[int, StateBatch] = {}
        self.written_start = start

    def acquire(
        self, member: str, records: int, *, is_exact: bool = False, batch_size: int = BATCH_SIZE
    ) -> str:
        partition = self.partition
        if not partition.can_acquire(self.limits):
            return ""
        offset = partition.next_fetch_offset
        wish = Wish(member, records, batch_size, is_exact)
        acquired = partition.acquire(offset, self._fetched(offset), wish, self.limits, self.now_ms)
        return ", ".join(f"{span(*each[:2])} x{each.delivery_count}" for each in acquired)

    def _fetched(self, offset: int) -> Iterator[FetchedBatch]:
        return (batch for batch in self.batches if batch.last_offset >= offset)

    def begin(self, member: str, *texts: str) -> Transition | None:
        """Acknowledge without the end of the write: `texts` are like "0-3 accept" or "4-5 accept,reject"."""
        ranges = [_range(text) for text in texts]
        return self.partition.acknowledge(member, ranges, self.limits, self.now_ms)

    def acknowledge(self, member: str, *texts: str) -> None:
        self.finish(self.begin(member, *texts))

    def finish(self, transition: Transition | None) -> None:
        if transition is not None:
            self.persist(transition.write.start_offset, transition.write.batches)
            self.partition.commit(transition)

    def release(self, member: str) -> None:
        self.finish(self.partition.release_member(member, self.limits))

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        write = self.partition.expire_locks(self.limits, self.now_ms)
        if write is not None:
            self.persist(write.start_offset, write.batches)

    def persist(self, start_offset: int, batches: tuple[StateBatch, ...]) -> None:
        """As the state coordinator does, offset by offset."""
        self.written_start = max(self.written_start, start_offset)
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.written[offset] = batch._replace(first_offset=offset, last_offset=offset)
        self.written = {
            offset: batch for offset, batch in self.written.items() if offset >= self.written_start
        }

    def reload(self) -> None:
        """A crash: only what was written remains."""
        self.partition = SharePartition.load(self.written_start, self.written.values())

    @property
    def state(self) -> str:
        """Everything in flight, neighbours that look the same joined."""
        lines: list[list[int | str]] = []
        for run in self.partition.runs:
            look = f"{run.state.name.lower()} x{run.delivery_count} {run.member_id}".strip()
            if run.next_state is not None:
                look += f" -> {run.next_state.name.lower()}"
            if lines and lines[-1][2] == look:
                lines[-1][1] = run.last
            else:
                lines.append([run.first, run.last, look])
        return "; ".join(f"{span(int(first), int(last))} {look}" for first, last, look in lines)


def span(first: int, last: int) -> str:
    return f"{first}-{last}" if first != last else str(first)


def _range(text: str) -> AcknowledgedRange:
    offsets, words = text.split()
    first, _, last = offsets.partition("-")
    spoken = tuple(Acknowledgement[word.upper()] for word in words.split(","))
    return AcknowledgedRange(int(first), int(last or first), spoken)
