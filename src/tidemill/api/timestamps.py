"""Records by their time, without holding up the event loop.

The search holds it up for one walk in an index; a batch that must be unpacked is unpacked in a thread, unless it is
small.
"""

from __future__ import annotations

import asyncio

from tidemill.storage.log import Log
from tidemill.storage.timestamps import FoundTimestamp, TimestampedBatch


async def find_by_time(log: Log, timestamp: int) -> FoundTimestamp | None:
    """The first record that is not older."""
    return await find_from_batch(log, timestamp, log.batch_for_timestamp(timestamp))


async def find_from_batch(log: Log, timestamp: int, batch: TimestampedBatch | None) -> FoundTimestamp | None:
    """The same, from this batch on."""
    while batch is not None:
        found = await _look_into(batch, timestamp)
        if found is not None:
            return found
        batch = log.batch_for_timestamp(timestamp, batch.header.last_offset + 1)
    return None


async def _look_into(batch: TimestampedBatch, timestamp: int) -> FoundTimestamp | None:
    if batch.is_large:
        return await asyncio.to_thread(batch.first_from, timestamp)
    await asyncio.sleep(0)
    return batch.first_from(timestamp)
