"""How many messages a query has still to read: the brokers' log ends minus its own positions.

    Lag({"kafka.bootstrap.servers": "127.0.0.1:9092"}).behind({"orders": {"0": 41}})      # 9 when the log ends at 50

The options are those of the source, read by the same code: what the source connects with, the lag connects with, also
where a setting is written as Java's client has it (`kafka.sasl.jaas.config`) or means nothing here
(`kafka.max.poll.records`). With read_committed the end is the last stable offset, which is where the source ends too.

Asked once per batch, with a time limit; when no broker answers, the lag is unknown (None) and the job goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemill.model.errors import TidemillError
from tidemill.spark.client.cluster import LATEST, Cluster, TopicPartition
from tidemill.spark.options import Options

TIMEOUT_MS = 3_000


class Lag:
    """One client that only asks where the partitions end."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = Options(options)
        self._cluster: Cluster | None = None

    def behind(self, offsets: Any) -> int | None:
        """`offsets` as the source writes them: `{topic: {partition: next offset}}`, as JSON text or read."""
        try:
            positions = _flat(offsets)
            ends = self._connected().list_offsets(
                dict.fromkeys(positions, LATEST), self._options.reads_committed
            )
        except (TidemillError, ValueError, TypeError, AttributeError):
            self.close()
            return None
        return sum(max(0, ends[where] - position) for where, position in positions.items())

    def _connected(self) -> Cluster:
        if self._cluster is None:
            settings = self._options.kafka
            quick = min(TIMEOUT_MS, settings.request_timeout_ms)
            self._cluster = Cluster(settings._replace(request_timeout_ms=quick))
        return self._cluster

    def close(self) -> None:
        """After a failure too: an answer that comes late must not be taken for that to a later question."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _flat(offsets: Any) -> dict[TopicPartition, int]:
    read = json.loads(offsets) if isinstance(offsets, str) else offsets
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, each in read.items()
        for partition, offset in each.items()
    }
