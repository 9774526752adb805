"""Rows of an Arrow batch, sorted by where they go.

    for target, rows in Router(settings, partition_counts, first_partition=0).route(batch):
        accumulator.append(target, rows)

`partition_counts` says how many partitions a topic has, from the cluster's metadata. Rows of one partition keep their
order. A batch whose rows all go to one partition is passed on as it is, without a copy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.sink.encoding import Numbers, Rows, encode_headers
from tidemill.spark.sink.partitioning import partitions_of_keys
from tidemill.spark.sink.settings import SinkSettings

_MICROSECONDS_PER_MS = 1_000


class Router:
    def __init__(
        self, settings: SinkSettings, partition_counts: Callable[[str], int], first_partition: int
    ) -> None:
        """`first_partition` is where rows without a key begin, so that tasks do not all begin with partition 0."""
        self._settings = settings
        self._partition_counts = partition_counts
        self._turn = itertools.count(first_partition)

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Rows]]:
        if batch.num_rows == 0:
            return
        rows, turn = self._rows(batch), next(self._turn)
        for topic, places in self._by_topic(batch):
            partitions = self._partitions(topic, places, batch, rows.keys, turn)
            for partition, chosen in _grouped(partitions):
                mine = chosen if places is None else places[chosen]
                yield TopicPartition(topic, partition), rows if len(mine) == len(rows) else rows.take(mine)

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        columns = self._settings.columns
        headers = encode_headers(batch.column("headers")) if columns.headers else None
        return Rows(
            _binary(batch.column("key")) if columns.key else None,
            _binary(batch.column("value")),
            headers,
            _timestamps_ms(batch.column("timestamp") if columns.timestamp else None, batch.num_rows),
        )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Numbers | None]]:
        """Topics and the places of their rows; None stands for all rows."""
        if self._settings.topic is not None:
            yield self._settings.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            raise ValueError(
                "column topic is null in a row; name a topic in each row, or set the option topic"
            )
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == code)

    def _partitions(
        self,
        topic: str,
        places: Numbers | None,
        batch: pa.RecordBatch,
        keys: pa.BinaryArray | None,
        turn: int,
    ) -> Numbers:
        """The partition of each of a topic's rows."""
        count = self._partition_counts(topic)
        length = batch.num_rows if places is None else len(places)
        partitions = np.full(length, -1, np.int64)
        if keys is not None:
            mine = keys if places is None else keys.take(pa.array(places))
            partitions = partitions_of_keys(mine, count)
        partitions[partitions < 0] = turn % count
        if self._settings.columns.partition:
            _apply_column(partitions, batch.column("partition"), places, topic, count)
        return partitions


def _apply_column(
    partitions: Numbers, column: pa.Array, places: Numbers | None, topic: str, count: int
) -> None:
    """Rows that name a partition get it."""
    named = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    named = named if places is None else named[places]
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    is_null = is_null if places is None else is_null[places]
    wrong = named[~is_null & ((named < 0) | (named >= count))]
    if len(wrong):
        raise ValueError(
            f"column partition is {wrong[0]} in a row; topic {topic} has the partitions 0 to {count - 1}"
        )
    partitions[~is_null] = named[~is_null]


def _grouped(partitions: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Each partition that occurs, with the places of its rows in their order."""
    order = np.argsort(partitions, kind="stable")
    present, starts = np.unique(partitions[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    for partition, start, stop in zip(present.tolist(), bounds, bounds[1:], strict=False):
        yield partition, order[start:stop]


def _binary(column: pa.Array) -> pa.BinaryArray:
    """Strings as their UTF-8 bytes, which costs nothing; Arrow's large kinds as the plain one."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _timestamps_ms(column: pa.Array | None, count: int) -> Numbers:
    now_ms = time.time_ns() // 1_000_000
    if column is None:
        return np.full(count, now_ms, np.int64)
    microseconds = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    filled = microseconds.fill_null(now_ms * _MICROSECONDS_PER_MS).to_numpy(zero_copy_only=False)
    return cast(Numbers, filled // _MICROSECONDS_PER_MS)
