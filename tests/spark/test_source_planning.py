"""What a read plans and reads on a live cluster, step by step as Spark would ask, but without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from source_rows import produce, rows, stream_reader, transactions, values
from waiting import wait_until

from tidemill.spark.client.cluster import TopicPartition as Place
from tidemill.spark.errors import BadOption, DataLoss
from tidemill.spark.source import reading
from tidemill.spark.source import stream_reader as stream_module
from tidemill.spark.source.batch_reader import FilteringReader, batch_reader
from tidemill.spark.source.fetching import Fetched, fetch_range
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.planning import ReadTask, SharedTask, share_tasks
from tidemill.spark.source.schema import source_schema
from tidemill.spark.source.settings import stream_settings
from tidemill.testing import SubprocessBroker

ALL = ReadAllAvailable()


def numbers(found: list[bytes]) -> list[int]:
    return sorted(int(value) for value in found)


def read(reader: object, start: dict, end: dict) -> list[int]:  # type: ignore[type-arg]
    """The values between two offsets of a stream."""
    tasks = reader.partitions(start, end)  # type: ignore[attr-defined]
    return sorted(int(v) for t in tasks for b in reader.read(t) for v in b.column("value").to_pylist())  # type: ignore[attr-defined]


# -- what to read -------------------------------------------------------------------------------------------


def test_subscribe_pattern_and_assign(cluster: Cluster) -> None:
    first, second = cluster.topic(partitions=2), cluster.topic()
    produce(cluster.bootstrap, first, 3, partition=0)
    produce(cluster.bootstrap, first, 3, partition=1, first=10)
    produce(cluster.bootstrap, second, 3, first=20)
    everything = [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert numbers(values(cluster.bootstrap, subscribe=f"{first} , {second}")) == everything
    pattern = (
        f"{first}|{second[:-1]}[{second[-1]}]"  # of these two alone: other tests have topics here as well
    )
    assert numbers(values(cluster.bootstrap, subscribePattern=pattern)) == everything
    assert numbers(values(cluster.bootstrap, assign=f'{{"{first}":[1],"{second}":[0]}}')) == [
        10,
        11,
        12,
        20,
        21,
        22,
    ]
    assert values(cluster.bootstrap, subscribePattern="no-such-topic.*") == []
    with pytest.raises(BadOption, match="subscribe names missing-topic"):
        values(cluster.bootstrap, subscribe="missing-topic")
    with pytest.raises(BadOption, match=f"assign names {second}-7"):
        values(cluster.bootstrap, assign=f'{{"{second}":[7]}}')


def test_starts_and_ends_by_offset(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    produce(cluster.bootstrap, topic, 10, partition=0)
    produce(cluster.bootstrap, topic, 10, partition=1, first=100)
    window = {
        "startingOffsets": f'{{"{topic}":{{"0":4,"1":-2}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":-1,"1":2}}}}',
    }
    assert numbers(values(cluster.bootstrap, subscribe=topic, **window)) == [4, 5, 6, 7, 8, 9, 100, 101]
    with pytest.raises(BadOption, match=f"startingOffsets differs from the partitions at {topic}-1"):
        values(cluster.bootstrap, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":4}}}}')
    beyond = f'{{"{topic}":{{"0":50,"1":5}}}}'
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at 10, before 50"):
        values(cluster.bootstrap, subscribe=topic, endingOffsets=beyond)
    kept = numbers(values(cluster.bootstrap, subscribe=topic, endingOffsets=beyond, failOnDataLoss="false"))
    assert kept == [*range(10), *range(100, 105)]


def test_starts_and_ends_by_time(cluster: Cluster, topic: str) -> None:
    for number in range(10):
        produce(cluster.bootstrap, topic, 1, first=number, timestamp=1_700_000_000_000 + number * 1000)
    assert numbers(values(cluster.bootstrap, subscribe=topic, startingTimestamp=1_700_000_004_500)) == [
        5,
        6,
        7,
        8,
        9,
    ]
    by_partition = {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":1700000002000}}}}'}
    end = {"endingOffsetsByTimestamp": f'{{"{topic}":{{"0":1700000004000}}}}'}
    assert numbers(values(cluster.bootstrap, subscribe=topic, **by_partition, **end)) == [2, 3]
    late = {"subscribe": topic, "endingTimestamp": 1_900_000_000_000}
    assert len(values(cluster.bootstrap, **late)) == 10
    with pytest.raises(BadOption, match=f"startingTimestamp finds nothing .*{topic}-0"):
        values(cluster.bootstrap, subscribe=topic, startingTimestamp=1_800_000_000_000)
    latest = {"startingTimestamp": 1_800_000_000_000, "startingOffsetsByTimestampStrategy": "latest"}
    assert values(cluster.bootstrap, subscribe=topic, **latest) == []


def test_tasks_follow_min_partitions_and_max_records(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 100)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    for extra, tasks in [({}, 1), ({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "30"}, 4)]:
        assert len(batch_reader(source_schema({}), {**options, **extra}).partitions()) == tasks
    assert numbers(values(cluster.bootstrap, subscribe=topic, minPartitions=6)) == list(range(100))


def test_small_tasks_know_that_the_query_is_large(cluster: Cluster) -> None:
    """What a process will probably read decides how it scans."""
    topic = cluster.topic(partitions=2)
    for partition, count in ((0, 100), (1, 20)):
        produce(cluster.bootstrap, topic, count, partition=partition)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    for extra, expected in [({}, [100, 60]), ({"maxRecordsPerPartition": "10"}, [30] * 12)]:
        tasks = batch_reader(source_schema({}), {**options, **extra}).partitions()
        assert [task.expected for task in tasks] == expected  # type: ignore[attr-defined]


def test_filters_narrow_what_is_read(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    for partition in range(3):
        produce(cluster.bootstrap, topic, 20, partition=partition, first=partition * 100)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "filterPushdown": "true"}
    reader = batch_reader(source_schema({}), given)
    assert isinstance(reader, FilteringReader)
    other = EqualTo(("topic",), topic)
    filters = [
        GreaterThanOrEqual(("offset",), 5),
        LessThan(("offset",), 8),
        In(("partition",), (0, 2)),
        other,
    ]
    assert list(reader.pushFilters(filters)) == [other]
    found = [
        v for task in reader.partitions() for b in reader.read(task) for v in b.column("value").to_pylist()
    ]
    assert numbers(found) == [5, 6, 7, 205, 206, 207]


def test_a_filter_on_time_moves_the_start_of_what_is_read(cluster: Cluster, topic: str) -> None:
    for number in range(10):
        produce(cluster.bootstrap, topic, 1, first=number, timestamp=1_700_000_000_000 + number * 1000)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "filterPushdown": "true"}
    reader = batch_reader(source_schema({}), given)
    assert isinstance(reader, FilteringReader)
    seventh = datetime.datetime.fromtimestamp(1_700_000_006.5, datetime.UTC)
    since, before = GreaterThanOrEqual(("timestamp",), seventh), LessThan(("timestamp",), seventh)
    assert list(reader.pushFilters([since])) == [since]
    (task,) = reader.partitions()
    assert (task.offsets.start, task.offsets.end) == (7, 10)  # type: ignore[attr-defined]
    assert [v for b in reader.read(task) for v in b.column("value").to_pylist()] == [b"7", b"8", b"9"]
    assert list(reader.pushFilters([before])) == [before]
    (task,) = reader.partitions()
    assert (task.offsets.start, task.offsets.end) == (0, 10)  # type: ignore[attr-defined]


# -- streams --------------------------------------------------------------------------------------------------


def test_a_start_at_the_end_is_pinned_by_an_empty_first_batch(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 5)
    query = stream_reader(cluster.bootstrap, subscribe=topic)
    start = query.initialOffset()
    assert start == {topic: {"0": 5}}
    produce(cluster.bootstrap, topic, 3, first=5)
    assert query.latestOffset(start, ALL) == start
    assert query.partitions(start, start) == []
    restarted = stream_reader(cluster.bootstrap, subscribe=topic)
    moved = restarted.initialOffset()
    assert moved == {topic: {"0": 8}}
    assert restarted.partitions(moved, start) == []
    end = restarted.latestOffset(start, ALL)
    assert read(restarted, start, end) == [5, 6, 7]


def test_a_fixed_start_needs_no_empty_batch(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 5)
    query = stream_reader(cluster.bootstrap, subscribe=topic, startingOffsets="earliest")
    start = query.initialOffset()
    assert read(query, start, query.latestOffset(start, ALL)) == [0, 1, 2, 3, 4]


def test_rates_and_available_now(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 10)
    query = stream_reader(
        cluster.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4
    )
    query.prepareForTriggerAvailableNow()
    assert query.getDefaultReadLimit() == ReadMaxRows(4)
    offset, seen = query.initialOffset(), []
    for _ in range(5):
        end = query.latestOffset(offset, query.getDefaultReadLimit())
        produce(cluster.bootstrap, topic, 1, first=100)
        seen.append(read(query, offset, end))
        offset = end
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [], []]


def test_a_batch_waits_until_there_is_enough_or_time_is_up(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(stream_module.time, "monotonic", lambda: clock[0])
    options = {"minOffsetsPerTrigger": 5, "maxTriggerDelay": "1m", "startingOffsets": "earliest"}
    query = stream_reader(cluster.bootstrap, subscribe=topic, **options)
    limit = query.getDefaultReadLimit()
    start = query.initialOffset()
    assert query.latestOffset(start, limit) == start
    produce(cluster.bootstrap, topic, 4)
    assert query.latestOffset(start, limit) == start
    assert query.latestOffset(start, ALL) == {topic: {"0": 4}}
    clock[0] += 61
    assert query.latestOffset(start, limit) == {topic: {"0": 4}}
    produce(cluster.bootstrap, topic, 5)
    assert query.latestOffset({topic: {"0": 4}}, limit) == {topic: {"0": 9}}


def add_partitions(cluster: Cluster, topic: str, count: int) -> None:
    cluster.admin().create_partitions([NewPartitions(topic, count)])[topic].result(20)
    wait_until(lambda: cluster.serves(topic, count), f"{count} partitions")


def test_new_partitions_are_read_from_their_beginning(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 2)
    query = stream_reader(
        cluster.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=100
    )
    start = query.latestOffset(query.initialOffset(), ALL)
    add_partitions(cluster, topic, 3)
    produce(cluster.bootstrap, topic, 2, partition=2, first=50)
    end = query.latestOffset(start, query.getDefaultReadLimit())
    assert end == {topic: {"0": 2, "1": 0, "2": 2}}
    assert read(query, start, end) == [50, 51]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_that_is_run_again_leaves_new_partitions_to_the_next(
    cluster: Cluster, topic: str, start: str
) -> None:
    produce(cluster.bootstrap, topic, 2)
    first = stream_reader(cluster.bootstrap, subscribe=topic, startingOffsets=start)
    end = first.latestOffset(first.initialOffset(), ALL)
    add_partitions(cluster, topic, 3)
    produce(cluster.bootstrap, topic, 2, partition=2, first=50)
    restarted = stream_reader(cluster.bootstrap, subscribe=topic, startingOffsets=start)
    assert read(restarted, restarted.initialOffset(), end) == ([0, 1] if start == "earliest" else [])
    assert read(restarted, end, restarted.latestOffset(end, ALL)) == [50, 51]


def test_a_partition_that_goes_away_in_the_first_batch_is_data_loss(cluster: Cluster, topic: str) -> None:
    query = stream_reader(cluster.bootstrap, subscribe=topic, startingOffsets="earliest")
    start = query.initialOffset()
    query.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=f"{topic}-0 no longer exist"):
        query.partitions(start, {})


def test_assigned_partitions_that_are_gone_bring_no_others(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    assigned = {"assign": f'{{"{topic}":[0,5]}}'}
    with pytest.raises(DataLoss, match=f"gone: {topic}-5 no longer exist; known: {topic}-0, {topic}-5"):
        stream_reader(cluster.bootstrap, **assigned).latestOffset({topic: {"0": 0, "5": 0}}, ALL)
    lenient = stream_reader(cluster.bootstrap, failOnDataLoss="false", **assigned)
    assert lenient.latestOffset({topic: {"0": 0, "5": 0}}, ALL) == {topic: {"0": 0}}


def test_a_start_by_time_moves_only_where_nothing_is_as_late(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 3, timestamp=1_700_000_000_000)
    found = stream_reader(cluster.bootstrap, subscribe=topic, startingTimestamp=1_600_000_000_000)
    start = found.initialOffset()
    assert read(found, start, found.latestOffset(start, ALL)) == [0, 1, 2]
    late = {"startingTimestamp": 1_800_000_000_000, "startingOffsetsByTimestampStrategy": "latest"}
    moving = stream_reader(cluster.bootstrap, subscribe=topic, **late)
    start = moving.initialOffset()
    produce(cluster.bootstrap, topic, 2, first=3)
    assert moving.latestOffset(start, ALL) == start


def test_retention_that_overtakes_a_stream_is_data_loss(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 10)
    start, end = {topic: {"0": 2}}, {topic: {"0": 10}}
    cluster.admin().delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(20)
    with pytest.raises(DataLoss, match=f"{topic}-0 begins at 6, and 2 is wanted"):
        read(stream_reader(cluster.bootstrap, subscribe=topic), start, end)
    lenient = stream_reader(cluster.bootstrap, subscribe=topic, failOnDataLoss="false")
    assert read(lenient, start, end) == [6, 7, 8, 9]


def test_a_deleted_topic_is_data_loss(cluster: Cluster) -> None:
    topic = cluster.topic()
    produce(cluster.bootstrap, topic, 3)
    query = stream_reader(cluster.bootstrap, subscribe=topic)
    offset = query.initialOffset()
    cluster.admin().delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in cluster.admin().list_topics(timeout=10).topics, "the topic to be gone")
    with pytest.raises(DataLoss, match=f"{topic} no longer exist"):
        query.latestOffset({topic: {"0": 1}}, ALL)
    assert offset == {topic: {"0": 3}}


def test_offsets_are_committed_to_a_group_for_all_tools(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 9)
    query = stream_reader(
        cluster.bootstrap, subscribe=topic, startingOffsets="earliest", commitGroupId="spark-group"
    )
    query.initialOffset()
    query.latestOffset({topic: {"0": 4}}, ALL)
    assert committed(cluster, "spark-group", topic) == 4
    query.commit({topic: {"0": 9}})
    assert committed(cluster, "spark-group", topic) == 9


def committed(cluster: Cluster, group: str, topic: str) -> int:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    answer = cluster.admin().list_consumer_group_offsets([asked])[group].result(20)
    offset: int = answer.topic_partitions[0].offset
    return offset


# -- transactions ---------------------------------------------------------------------------------------------


def test_committed_reads_skip_aborted_records_and_markers(cluster: Cluster, topic: str) -> None:
    transactions(cluster, topic)
    committed_only = {"kafka__isolation__level": "read_committed"}
    kept = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert numbers(values(cluster.bootstrap, subscribe=topic)) == list(range(15))
    assert numbers(values(cluster.bootstrap, subscribe=topic, **committed_only)) == kept
    assert numbers(values(cluster.bootstrap, subscribe=topic, minPartitions=9, **committed_only)) == kept
    offsets = [row["offset"] for row in rows(cluster.bootstrap, subscribe=topic, **committed_only)]
    assert offsets == [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]


def test_an_open_transaction_ends_a_committed_read(cluster: Cluster, topic: str) -> None:
    produce(cluster.bootstrap, topic, 3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-open"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"77", partition=0)
    producer.flush(20)
    produce(cluster.bootstrap, topic, 3, first=5)
    assert numbers(values(cluster.bootstrap, subscribe=topic, kafka__isolation__level="read_committed")) == [
        0,
        1,
        2,
    ]
    producer.abort_transaction(20)


# -- log files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubprocessBroker]:
    directory = tmp_path_factory.mktemp("segments")
    with SubprocessBroker(data_dir=str(directory), settings={"log.segment.bytes": str(1 << 20)}) as broker:
        yield broker


@pytest.fixture
def fetched_from(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which ranges were read over the wire."""
    seen: list[int] = []

    def spy(cluster: object, wanted: OffsetRange, settings: object) -> Iterator[Fetched]:
        seen.append(wanted.start)
        return fetch_range(cluster, wanted, settings)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "fetch_range", spy)
    return seen


def test_closed_segments_are_read_from_files(
    small_segments: SubprocessBroker, tmp_path: Path, fetched_from: list[int]
) -> None:
    bootstrap, directory = small_segments.bootstrap, small_segments.data_dir
    cluster = Cluster(bootstrap)
    topic = cluster.topic()
    for first in range(0, 300, 50):
        produce(bootstrap, topic, 50, first=first)
        transactions_of = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{first}"})
        transactions_of.init_transactions(20)
        transactions_of.begin_transaction()
        for _ in range(20):
            transactions_of.produce(topic, b"9" * 60_000, partition=0)
        transactions_of.flush(20)
        transactions_of.abort_transaction(20)
    files = {"read__mode": "segments", "segments__directories": str(directory)}
    active = max((Path(directory) / f"{topic}-0").glob("*.log"))
    assert len(values(bootstrap, subscribe=topic, **files)) == 300 + 6 * 20
    assert fetched_from == [int(active.stem)]
    assert fetched_from > [200]
    for isolation in ("read_committed", "read_uncommitted"):
        options = {"subscribe": topic, "kafka__isolation__level": isolation, "minPartitions": 3}
        assert rows(bootstrap, **options, **files) == rows(bootstrap, **options)
    kept = values(bootstrap, subscribe=topic, kafka__isolation__level="read_committed", **files)
    assert numbers(kept) == [*range(300)]
    elsewhere = {"read__mode": "segments", "segments__directories": str(tmp_path)}
    assert len(values(bootstrap, subscribe=topic, **elsewhere)) == 300 + 6 * 20
    cluster.admin().delete_records([TopicPartition(topic, 0, 100)])[TopicPartition(topic, 0)].result(20)
    explicit = f'{{"{topic}":{{"0":5}}}}'
    with pytest.raises(DataLoss, match="begins at 100, and 5 is wanted"):
        values(bootstrap, subscribe=topic, startingOffsets=explicit, **files)


def test_files_of_another_topic_are_refused(small_segments: SubprocessBroker, tmp_path: Path) -> None:
    topic = Cluster(small_segments.bootstrap).topic()
    produce(small_segments.bootstrap, topic, 3)
    folder = tmp_path / f"{topic}-0"
    folder.mkdir()
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    with pytest.raises(BadOption, match=r"segments\.directories holds"):
        values(
            small_segments.bootstrap,
            subscribe=topic,
            read__mode="segments",
            segments__directories=str(tmp_path),
        )


def _tasks_of(partition: InputPartition) -> list[ReadTask]:
    if isinstance(partition, SharedTask):
        return partition.tasks
    assert isinstance(partition, ReadTask)
    return [partition]


def test_small_tasks_of_a_stream_share_one() -> None:
    sizes = [900, 1_000, 500, 5_000, 10, 20]
    tasks = [ReadTask(OffsetRange(Place("t", n), 7, 7 + size), "h:1") for n, size in enumerate(sizes)]
    query = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    shared = share_tasks(tasks, stream_settings(query))
    groups = [[task.offsets.size for task in _tasks_of(each)] for each in shared]
    assert groups == [[900, 1_000], [500], [5_000], [10, 20]]
    assert share_tasks([], stream_settings(query)) == []
    assert share_tasks(tasks, stream_settings({**query, "minPartitions": "2"})) == tasks
