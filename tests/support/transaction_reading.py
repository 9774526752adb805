"""What a reader of a partition sees up to its end, with either isolation, through librdkafka."""

from __future__ import annotations

from clients import CONFLUENT


def committed_values(
    bootstrap: str, topic: str, isolation: str = "read_committed", partition: int = 0
) -> list[bytes]:
    return [value for _, value in CONFLUENT.read_to_end(bootstrap, topic, isolation, partition=partition)]
