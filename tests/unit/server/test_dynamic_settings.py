"""Settings that may be changed while the broker runs reach those who use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from raw import batch_of, new_producer_id, produce

from tidemill.model.ids import TopicPartition
from tidemill.server.broker import Broker
from tidemill.server.main import StartOptions, start_broker
from tidemill.testing import WireClient
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKER = 4
TOPIC = "orders"


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[Broker]:
    broker = await start_broker(StartOptions(data_dirs=[str(home)], listen="127.0.0.1:0"))
    try:
        yield broker
    finally:
        await broker.stop()


def change(broker: Broker, key: str, value: str) -> None:
    setting = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[setting])
    with WireClient(f"{broker.host}:{broker.port}") as client:
        (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert answer.error_code == 0, answer.error_message


def write_with_a_producer_id(broker: Broker) -> None:
    with WireClient(f"{broker.host}:{broker.port}") as client:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        producer_id, epoch = new_producer_id(client)
        batch = batch_of(b"value", producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        assert produce(client, TOPIC, batch).error_code == 0


def test_how_long_idle_producers_are_remembered(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as broker:
            await asyncio.to_thread(write_with_a_producer_id, broker)
            log = broker._logs.logs[TopicPartition(TOPIC, 0)]
            in_an_hour_ms = int(time.time() * 1000) + 3_600_000
            broker._logs.run_retention(in_an_hour_ms)
            assert len(log.producers()) == 1
            await asyncio.to_thread(change, broker, "producer.id.expiration.ms", "60000")
            broker._logs.run_retention(in_an_hour_ms)
            assert log.producers() == []

    asyncio.run(story())


def test_the_memory_of_the_cleaner(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as broker:
            assert broker._logs.compaction.offset_map_bytes == 134_217_728
            await asyncio.to_thread(change, broker, "log.cleaner.dedupe.buffer.size", "2000000")
            assert broker._logs.compaction.offset_map_bytes == 2_000_000

    asyncio.run(story())
