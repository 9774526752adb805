"""Producer ids are handed out in blocks of a thousand (KIP-730).

The log remembers only the first id that nobody has; a broker that asks gets the block from there, and what
it does not use of it before it stops is never used by anybody. Ids are never given twice, because the record
is committed before the block is answered.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.metadata.brokers import check_broker_epoch
from tidemill.metadata.decisions import Decision
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.records import ProducerIdsRecord
from tidemill.model.errors import ApiError, ErrorCode

BLOCK_SIZE = 1000
LAST_PRODUCER_ID = 0x7FFF_FFFF_FFFF_FFFF


class ProducerIdBlock(NamedTuple):
    first: int
    size: int

    @property
    def end(self) -> int:
        """The first id after this block."""
        return self.first + self.size


def allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int
) -> Decision[ProducerIdBlock]:
    check_broker_epoch(image, broker_id, broker_epoch)
    block = ProducerIdBlock(image.next_producer_id, BLOCK_SIZE)
    if block.end > LAST_PRODUCER_ID:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids")
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.end)
    return Decision([record], block)
