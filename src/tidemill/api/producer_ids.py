"""Producer ids for whoever asks: one stock for idempotent producers and transactions, filled from the metadata.

    supply = ProducerIdSupply(services)
    await supply.take()          # an id that nobody has

A block of a thousand ids is one record in the metadata log; what is left of it when the broker ends is never used.
"""

from __future__ import annotations

import asyncio

from tidemill.api.services import Services
from tidemill.metadata.producer_ids import allocate_producer_ids


class ProducerIdSupply:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._filling = asyncio.Lock()

    async def fill_up(self) -> None:
        """Ids are asked for before they are needed, because a shard cannot wait for them."""
        stock = self._services.coordinators.producer_ids
        if not stock.is_low:
            return
        async with self._filling:
            if stock.is_low:
                node_id = self._services.node_id
                block = await self._services.metadata.change(
                    lambda image: allocate_producer_ids(image, node_id, image.brokers[node_id].epoch)
                )
                stock.add(range(block.first, block.end))

    async def take(self) -> int:
        while (producer_id := self._services.coordinators.producer_ids.take()) is None:
            await self.fill_up()
        return producer_id
