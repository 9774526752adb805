"""What a reader of a partition sees up to its end, with either isolation, through librdkafka."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_SECONDS = 30


def committed_values(
    bootstrap: str, topic: str, isolation: str = "read_committed", partition: int = 0
) -> list[bytes]:
    return [value for _, value in committed_messages(bootstrap, topic, isolation, partition)]


def committed_messages(
    bootstrap: str, topic: str, isolation: str = "read_committed", partition: int = 0
) -> list[tuple[int, bytes]]:
    """(offset, value) of everything that this reader may see."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            for message in consumer.consume(10_000, 0.1):
                if message.error():
                    return found
                found.append((message.offset(), message.value()))
    finally:
        consumer.close()
