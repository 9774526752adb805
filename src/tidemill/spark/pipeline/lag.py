"""How many messages a query has still to read: the brokers' log ends minus its own positions.

    behind = Lag("127.0.0.1:9092", {}).behind({"orders": {"0": 41}})      # 9 when the log ends at 50

Asked once per batch, with a time limit; when no broker answers, the lag is unknown (None) and the job goes on.
"""

from __future__ import annotations

import json
from typing import Any

TIMEOUT_SECONDS = 3.0


class Lag:
    """One consumer that only asks for watermarks."""

    def __init__(self, bootstrap: str, options: dict[str, Any]) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "group.id": "tidemill-pipeline", "log_level": 0}
        self._settings |= {
            name.removeprefix("kafka."): str(value)
            for name, value in options.items()
            if name.startswith("kafka.")
        }
        self._consumer: Any = None

    def behind(self, offsets: Any) -> int | None:
        """`offsets` as the source writes them: `{topic: {partition: next offset}}`, as JSON text or read."""
        from confluent_kafka import KafkaException

        try:
            return sum(
                self._missing(topic, int(partition), int(offset))
                for topic, partition, offset in _flat(offsets)
            )
        except (KafkaException, ValueError, TypeError, AttributeError):
            return None

    def _missing(self, topic: str, partition: int, offset: int) -> int:
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS)
        return max(0, int(end) - offset)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _flat(offsets: Any) -> list[tuple[str, str, int]]:
    read = json.loads(offsets) if isinstance(offsets, str) else offsets
    return [(topic, partition, offset) for topic, each in read.items() for partition, offset in each.items()]
