"""Offsets, limits and ranges: the arithmetic of planning a read, without a cluster.

An offset of a query is the next record to read of each partition, as JSON:

    {"orders":{"0":23,"1":-2}}             -1 is the latest, -2 the earliest

Spark compares offsets as text, so topics and partitions are always in the same order: topics by name,
partitions by number. A checkpoint of Spark's own connector holds the same JSON.

A *rate limit* of n records is shared among partitions in proportion to what waits in each, and never
starves a small one: with 90 waiting in a and 10 in b, a limit of 20 takes 18 of a and 2 of b.

A *range* is what one task reads. One partition is one range, unless `minPartitions` or
`maxRecordsPerPartition` ask for more: then large ranges are cut, first to the size limit, then in
proportion until there are about as many as asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.errors import BadOption

PartitionOffsets = dict[TopicPartition, int]
LARGEST_OFFSET = (1 << 63) - 1


class OffsetRange(NamedTuple):
    """Records from `start` up to, and without, `end`."""

    where: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The JSON value, in an order that never changes."""
    out: dict[str, dict[str, int]] = {}
    for where in sorted(offsets):
        out.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return out


def from_json(value: Mapping[str, Mapping[str, int]]) -> PartitionOffsets:
    """Offsets of a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def parse_numbers(option: str, value: Any, minimum: int) -> PartitionOffsets:
    """{"topic":{"0":n}} as a user wrote it, each number at least `minimum`."""
    example = 'JSON like {"topic":{"0":23,"1":45}}' + (", where -1 is latest and -2 earliest" * (minimum < 0))
    if not isinstance(value, dict) or not value or not all(isinstance(v, dict) for v in value.values()):
        raise BadOption(option, f"is {value!r}", example)
    for topic, partitions in value.items():
        for partition, number in partitions.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not partition.isdecimal() or not is_number or not minimum <= number <= LARGEST_OFFSET:
                raise BadOption(option, f"says {number!r} for {topic}-{partition}", example)
    return from_json(value)


def parse_partitions(option: str, value: Any) -> list[TopicPartition]:
    """{"topic":[0,1]} as a user wrote it."""
    example = 'JSON like {"topic":[0,1]}'
    if not isinstance(value, dict) or not value or not all(isinstance(v, list) for v in value.values()):
        raise BadOption(option, f"is {value!r}", example)
    for topic, partitions in value.items():
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise BadOption(option, f"says {partition!r} for {topic}", example)
    found = [TopicPartition(topic, partition) for topic, numbers in value.items() for partition in numbers]
    if not found:
        raise BadOption(option, "names no partition", example)
    return sorted(set(found))


def limit_rate(start: PartitionOffsets, latest: PartitionOffsets, limit: int) -> PartitionOffsets:
    """Where a batch of at most about `limit` records ends; `start` must hold every partition of `latest`."""
    sizes = {where: latest[where] - start[where] for where in latest if latest[where] > start[where]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(latest)
    limited = dict(latest)
    for where, size in sizes.items():
        share = limit * size / total
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[where] = min(latest[where], start[where] + taken)
    return limited


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges of the tasks; empty ones are gone."""
    wanted = [each for each in ranges if each.size > 0]
    if max_records is not None:
        wanted = [part for each in wanted for part in _cut(each, math.ceil(each.size / max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(each.size for each in wanted)
    small = [each for each in wanted if _share(each.size, total, min_partitions) == 1]
    total -= sum(each.size for each in small)
    left = max(min_partitions - len(small), 1)
    parts = {each: 1 if each in small else _share(each.size, total, left) for each in wanted}
    return [part for each in wanted for part in _cut(each, parts[each])]


def _share(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """`parts` ranges of nearly the same size; none is empty."""
    start, cut = whole.start, []
    for part in range(parts):
        end = start + (whole.end - start) // (parts - part)
        cut.append(whole._replace(start=start, end=end))
        start = end
    return [each for each in cut if each.size > 0]
