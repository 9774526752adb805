"""Looking for a timestamp inside one batch: apart from the log, so that it can be done in a thread.

The log finds the batch by its indexes; only the records know their own timestamps, and they may be compressed.

    batch = log.batch_for_timestamp(1_700_000_000_000)      on the loop
    batch.first_from(1_700_000_000_000)                     anywhere: (timestamp, offset, leader epoch) or None

A batch whose header claims a timestamp that none of its records has (the broker does not compare them), or whose
records cannot be read, is answered as a whole: its first offset. Only a batch that the start of the log cuts in two may
have had the message in its first half: then the search goes on behind it. So two batches are looked into at most.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import BatchHeader, iterate_records
from tidemill.wire.compression import decompress

FoundTimestamp = tuple[int, int, int]
"""Timestamp, offset, leader epoch."""
SMALL_BYTES = 16 * 1024


class TimestampedBatch(NamedTuple):
    header: BatchHeader
    payload: bytes
    """Empty where the header says it all (`LogAppendTime`)."""
    limit_bytes: int
    """It is not looked into if it unpacks to more."""
    log_start_offset: int

    @property
    def is_large(self) -> bool:
        """Whether looking into it may take longer than the loop should be held up."""
        return len(self.payload) > SMALL_BYTES or bool(self.header.compression and self.payload)

    def first_from(self, timestamp: int) -> FoundTimestamp | None:
        """The first record with at least this timestamp, at or above the start of the log.

        None if it is in the half that was cut off.
        """
        header = self.header
        if not header.is_log_append_time:
            try:
                for offset, record_timestamp in self._timestamps():
                    if record_timestamp >= timestamp and offset >= self.log_start_offset:
                        return record_timestamp, offset, header.leader_epoch
                if header.base_offset < self.log_start_offset:
                    return None
            except MalformedMessage:
                pass  # nobody can read these records; a reader that begins with them will say so itself
        return header.max_timestamp, max(header.base_offset, self.log_start_offset), header.leader_epoch

    def _timestamps(self) -> list[tuple[int, int]]:
        payload = self.payload
        if self.header.compression:
            payload = decompress(self.header.compression, payload, self.limit_bytes)
        return [(record.offset, record.timestamp) for record in iterate_records(self.header, payload)]
