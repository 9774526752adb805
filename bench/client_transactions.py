"""The load of W9: consume, transform, produce, with the offsets in the transaction. Roles of `bench.client`."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

CALL_SECONDS = 60.0
RETRY_SOON = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
"""A broker that still writes the markers of the last transaction sends the next one away: the client's patience, 100 ms
by default, must not be what is measured."""


def copy(job: dict[str, Any], wait_go: Any) -> dict[str, Any]:
    """`count` messages from `topic` to `target`, `per_transaction` at a time.

    A latency is that of a whole transaction, from its begin to the answer to its commit. Reading is ahead of it all
    the time, because the source was filled before.
    """
    common = {"bootstrap.servers": job["bootstrap"]}
    consumer = Consumer(
        common
        | {
            "group.id": job["group"],
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,
        }
    )
    producer = Producer(common | {"transactional.id": job["group"], "linger.ms": 0, **RETRY_SOON})
    producer.init_transactions(CALL_SECONDS)
    consumer.subscribe([job["topic"]])
    _copy_some(consumer, producer, job)  # the first one finds the coordinators
    wait_go()
    latencies, copied, began = [], 0, time.monotonic_ns()
    while copied < job["count"]:
        size, latency = _copy_some(consumer, producer, job)
        copied += size
        latencies.append(latency)
    seconds = (time.monotonic_ns() - began) / 1e9
    consumer.close()
    return {"seconds": seconds, "messages": copied, "latencies": latencies}


def _copy_some(consumer: Consumer, producer: Producer, job: dict[str, Any]) -> tuple[int, int]:
    messages = consumer.consume(job["per_transaction"], CALL_SECONDS)
    if len(messages) < job["per_transaction"]:
        raise TimeoutError(f"only {len(messages)} messages came")
    began = time.monotonic_ns()
    producer.begin_transaction()
    for message in messages:
        producer.produce(job["target"], message.value()[::-1], partition=message.partition())
    producer.send_offsets_to_transaction(_ends(messages), consumer.consumer_group_metadata(), CALL_SECONDS)
    producer.commit_transaction(CALL_SECONDS)
    return len(messages), time.monotonic_ns() - began


def _ends(messages: list[Message]) -> list[TopicPartition]:
    ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
    return [TopicPartition(*place, offset) for place, offset in ends.items()]
