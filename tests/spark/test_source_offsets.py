"""Offsets, rates and ranges: the arithmetic of planning."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.spark.client.cluster import TopicPartition
from tidemill.spark.source.offsets import OffsetRange, from_json, limit_rate, split_ranges, to_json

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
sizes = st.lists(st.integers(0, 5000), min_size=1, max_size=8)


def ranges_of(lengths: list[int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", n), 10 * n, 10 * n + length) for n, length in enumerate(lengths)]


def test_offsets_are_written_in_one_order_only() -> None:
    given = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert json.dumps(to_json(given)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert from_json(to_json(given)) == given


def test_a_rate_is_shared_in_proportion_and_starves_nobody() -> None:
    assert limit_rate({A: 0, B: 100}, {A: 90, B: 110}, 20) == {A: 18, B: 102}
    assert limit_rate({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}
    assert limit_rate({A: 5, B: 5}, {A: 5, B: 7}, 100) == {A: 5, B: 7}


@given(sizes, st.integers(1, 3000))
def test_a_rate_never_passes_the_end_and_always_moves(lengths: list[int], limit: int) -> None:
    start = {TopicPartition("t", n): 7 for n in range(len(lengths))}
    latest = {where: 7 + lengths[where.partition] for where in start}
    end = limit_rate(start, latest, limit)
    assert all(start[where] <= end[where] <= latest[where] for where in start)
    assert sum(end.values()) - sum(start.values()) <= limit + len(lengths)
    assert end != start or latest == start


@settings(deadline=None)
@given(sizes, st.none() | st.integers(1, 40), st.none() | st.integers(1, 2000))
def test_split_ranges_cover_everything_once(
    lengths: list[int], at_least: int | None, at_most: int | None
) -> None:
    whole = ranges_of(lengths)
    cut = split_ranges(whole, at_least, at_most)
    covered = [(each.where, offset) for each in cut for offset in range(each.start, each.end)]
    assert covered == [(each.where, offset) for each in whole for offset in range(each.start, each.end)]
    assert all(each.size > 0 for each in cut)
    if at_most is not None:
        assert all(each.size <= at_most for each in cut)


def test_ranges_split_as_in_the_connector_of_spark() -> None:
    cut = split_ranges(ranges_of([1000, 10, 0]), min_partitions=5)
    assert [each.size for each in cut] == [250, 250, 250, 250, 10]
    assert [each.size for each in split_ranges(ranges_of([10]), max_records=4)] == [3, 3, 4]
    assert len(split_ranges(ranges_of([10, 20]))) == 2


def test_an_end_before_its_start_reads_nothing() -> None:
    assert split_ranges([OffsetRange(A, 9, 4)], 4, 2) == []
