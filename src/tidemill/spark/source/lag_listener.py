"""How far behind a query is: offsets between what it has read and what is there, after every batch.

    listener = LagListener(lambda lag: print(lag.name, lag.total, lag.largest))
    spark.streams.addListener(listener)
    ...
    listener.lags[query.id].behind            # {TopicPartition("orders", 0): 1200, ...}

Spark's own connector shows minimum, maximum and average as metrics of its JVM class, which a Python source
has no access to; the progress that Spark reports to listeners holds both offsets, and the difference is the
same.

Limits: as of the last batch. What a query that waits for its trigger falls behind is seen with its next
batch; lag by the clock is what `commitGroupId` and any tool for consumer groups show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.source.offsets import PartitionOffsets, from_json


class Lag(NamedTuple):
    """Offsets behind the latest, by partition, as of one batch of one query."""

    query_id: str
    name: str | None
    batch_id: int
    behind: dict[TopicPartition, int]

    @property
    def total(self) -> int:
        return sum(self.behind.values())

    @property
    def largest(self) -> int:
        return max(self.behind.values(), default=0)

    @property
    def smallest(self) -> int:
        return min(self.behind.values(), default=0)

    @property
    def average(self) -> float:
        return self.total / len(self.behind) if self.behind else 0.0


class LagListener(StreamingQueryListener):
    """Keeps the newest lag of each query, and reports each to whoever asked for it."""

    def __init__(self, report: Callable[[Lag], None] | None = None) -> None:
        super().__init__()
        self.lags: dict[str, Lag] = {}
        self._report = report

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's names)
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        lag = lag_of(event.progress)
        if lag is not None:
            self.lags[lag.query_id] = lag
            if self._report is not None:
                self._report(lag)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """The last lag stays."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.lags.pop(str(event.id), None)


def lag_of(progress: Any) -> Lag | None:
    """The lag in a progress of Spark's; None when none of its sources tells offsets."""
    behind: dict[TopicPartition, int] = {}
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        for where, offset in latest.items():
            behind[where] = max(offset - end.get(where, 0), 0)
    return Lag(str(progress.id), progress.name, progress.batchId, behind) if behind else None


def _offsets(text: str | None) -> PartitionOffsets:
    """Offsets as this source writes them; anything else, from another kind of source, is none."""
    try:
        return from_json(json.loads(text or "{}"))
    except (AttributeError, TypeError, ValueError):
        return {}
