"""Produce and fetch in single protocol messages, for tests that look at bytes, sessions and error codes."""

from __future__ import annotations

import time
from typing import Any

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.batch import BatchHeader, Record, build_batch, iterate_headers
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE_WITH_NAMES = 12
FETCH_WITH_NAMES = 12
"""The last versions that name topics; later ones carry topic ids."""


def batch_of(*values: bytes, timestamp_ms: int | None = None, **fields: int) -> bytes:
    """An uncompressed batch of these values; `fields` are those of `build_batch`."""
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    records = [Record(n, now_ms, None, value) for n, value in enumerate(values)]
    return bytes(build_batch(records, **fields))


def produce_request(topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """A produce of one batch by topic name; send it in version PRODUCE_WITH_NAMES or older."""
    data = [PartitionProduceData(index=partition, records=batch)]
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def produce(connection: WireClient, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> Any:
    """The partition's part of the answer."""
    answer = connection.call(
        produce_request(topic, batch, partition=partition, acks=acks), PRODUCE_WITH_NAMES
    )
    return answer.responses[0].partition_responses[0]


def fetch_request(topic: str, offset: int, *, partition: int = 0, **fields: Any) -> FetchRequest:
    """A fetch of one partition by topic name, without a session unless `fields` say so."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000)
    defaults = {"max_wait_ms": 500, "min_bytes": 1, "session_epoch": -1}
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=[wanted])], **(defaults | fields))


def fetch(connection: WireClient, topic: str, offset: int = 0, *, partition: int = 0, **fields: Any) -> Any:
    """The partition's part of the answer."""
    answer = connection.call(fetch_request(topic, offset, partition=partition, **fields), FETCH_WITH_NAMES)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def fetch_batches(
    connection: WireClient, topic: str, offset: int = 0, partition: int = 0
) -> list[BatchHeader]:
    """Headers of all batches from this offset to the end."""
    headers: list[BatchHeader] = []
    while True:
        part = fetch(connection, topic, offset, partition=partition, max_wait_ms=0)
        assert part.error_code == 0
        found = [header for _, header in iterate_headers(part.records or b"")]
        if not found:
            return headers
        headers += found
        offset = found[-1].last_offset + 1


def topic_id(connection: WireClient, topic: str) -> bytes:
    wanted = MetadataRequestTopic(name=topic)
    answer = connection.call(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False))
    assert answer.topics[0].error_code == 0
    found: bytes = answer.topics[0].topic_id
    return found


def new_producer_id(connection: WireClient) -> tuple[int, int]:
    """Producer id and epoch for idempotent batches."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = connection.call(request)
    while answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # Kafka's first block of ids
        time.sleep(0.05)
        answer = connection.call(request)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch
