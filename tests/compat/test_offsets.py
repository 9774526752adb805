"""Finding a place in the log: by time, by special offsets, after records were deleted."""

from __future__ import annotations

import time

import pytest
from clients import CLIENTS, CONFLUENT, Client, Refused, Sent
from cluster_under_test import Cluster
from confluent_kafka import TopicPartition
from raw import batch_of, new_producer_id, produce

from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

START_MS = int(time.time() * 1000) - 1_000_000
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def timed(count: int, step_ms: int = 100) -> list[Sent]:
    return [Sent(b"%d" % n, timestamp_ms=START_MS + n * step_ms) for n in range(count)]


def list_offset(
    cluster: Cluster, topic: str, timestamp: int, version: int | None = None, **fields: int
) -> tuple[int, int, int]:
    """(error, timestamp, offset) of the answer to one ListOffsets question."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    with cluster.connect(topic) as connection:
        part = connection.call(request, version).topics[0].partitions[0]
    return part.error_code, part.timestamp, part.offset


def test_seek_by_time(cluster: Cluster, topic: str, client: Client) -> None:
    client.produce(cluster.bootstrap, topic, timed(100))
    asked = [START_MS - 1, START_MS, START_MS + 1, START_MS + 4_999, START_MS + 5_000, START_MS + 9_900]
    assert client.offsets_for_times(cluster.bootstrap, topic, asked) == [0, 0, 1, 50, 50, 99]
    assert client.offsets_for_times(cluster.bootstrap, topic, [START_MS + 9_901]) == [None]


def test_seek_by_time_inside_compressed_batches(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(1_000), compression="zstd")
    for client in CLIENTS:
        asked = [START_MS + 34_501, START_MS + 99_900]
        assert client.offsets_for_times(cluster.bootstrap, topic, asked) == [346, 999]


def test_seek_by_time_over_many_segments(cluster: Cluster) -> None:
    topic = cluster.topic(segment_bytes=1_048_576, index_interval_bytes=1024)
    sent = [Sent(b"x" * 5_000, timestamp_ms=START_MS + n * 10) for n in range(1_000)]
    CONFLUENT.produce(cluster.bootstrap, topic, sent)
    asked = [START_MS + n * 10 - 5 for n in range(0, 1_000, 97)]
    expected = list(range(0, 1_000, 97))
    assert CONFLUENT.offsets_for_times(cluster.bootstrap, topic, asked) == expected


def test_seek_by_time_with_times_out_of_order(cluster: Cluster, topic: str) -> None:
    """The first message at or after the time, in the order of offsets; not the closest in time."""
    times = [500, 100, 900, 300, 700]
    for when in times:
        CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"x", timestamp_ms=START_MS + when)])
    asked = [START_MS + when for when in (50, 400, 501, 900)]
    assert CONFLUENT.offsets_for_times(cluster.bootstrap, topic, asked) == [0, 0, 2, 2]


def test_beginning_and_end_offsets(cluster: Cluster, topic: str, client: Client) -> None:
    assert client.watermarks(cluster.bootstrap, topic) == (0, 0)
    client.produce(cluster.bootstrap, topic, timed(37))
    assert client.watermarks(cluster.bootstrap, topic) == (0, 37)


def test_special_timestamps(cluster: Cluster, topic: str) -> None:
    times = [START_MS + 10, START_MS + 500, START_MS + 20]
    CONFLUENT.produce(cluster.bootstrap, topic, [Sent(b"x", timestamp_ms=when) for when in times])
    assert list_offset(cluster, topic, LATEST) == (0, -1, 3)
    assert list_offset(cluster, topic, EARLIEST) == (0, -1, 0)
    assert list_offset(cluster, topic, MAX_TIMESTAMP) == (0, START_MS + 500, 1)
    assert list_offset(cluster, topic, EARLIEST_LOCAL) == (0, -1, 0)
    assert list_offset(cluster, topic, LATEST_TIERED) == (0, -1, -1)
    assert list_offset(cluster, topic, EARLIEST_PENDING_UPLOAD) == (0, -1, -1)


@pytest.mark.parametrize("timestamp", SPECIAL_SINCE)
def test_a_special_timestamp_is_unknown_before_its_version(
    cluster: Cluster, topic: str, timestamp: int
) -> None:
    since = SPECIAL_SINCE[timestamp]
    assert list_offset(cluster, topic, timestamp, version=since)[0] == 0
    refused = list_offset(cluster, topic, timestamp, version=since - 1)
    assert refused == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


def test_a_negative_timestamp_that_means_nothing(cluster: Cluster, topic: str) -> None:
    assert list_offset(cluster, topic, -7) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


def test_special_timestamps_of_an_empty_partition(cluster: Cluster, topic: str) -> None:
    assert list_offset(cluster, topic, LATEST) == (0, -1, 0)
    assert list_offset(cluster, topic, EARLIEST) == (0, -1, 0)
    assert list_offset(cluster, topic, MAX_TIMESTAMP) == (0, -1, -1)
    assert list_offset(cluster, topic, START_MS) == (0, -1, -1)


def test_list_offsets_errors(cluster: Cluster, topic: str) -> None:
    unknown = list_offset(cluster, cluster.topic_name(), LATEST)
    assert unknown[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fenced = list_offset(cluster, topic, LATEST, current_leader_epoch=1_000)
    assert fenced[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_list_offsets_in_every_version(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(5))
    oldest, newest = ListOffsetsRequest.VERSIONS
    with cluster.connect(topic) as connection:
        for version in range(oldest, newest + 1):
            asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
            request = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
            )
            assert connection.call(request, version).topics[0].partitions[0].offset == 5


def test_offset_for_leader_epoch(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(8))
    for epoch, expected in ((0, (0, 0, 8)), (7, (0, -1, -1))):
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
        )
        with cluster.connect(topic) as connection:
            part = connection.call(request).topics[0].partitions[0]
        assert (part.error_code, part.leader_epoch, part.end_offset) == expected


def test_delete_records(cluster: Cluster, topic: str, client: Client) -> None:
    client.produce(cluster.bootstrap, topic, timed(50))
    asked = TopicPartition(topic, 0, 20)
    (future,) = cluster.admin().delete_records([asked]).values()
    assert future.result(20).low_watermark == 20
    assert client.watermarks(cluster.bootstrap, topic) == (20, 50)
    assert client.consume(cluster.bootstrap, topic, 1, offset=20)[0].value == b"20"
    assert list_offset(cluster, topic, EARLIEST)[2] == 20
    assert list_offset(cluster, topic, START_MS)[2] == 20


def test_delete_records_up_to_the_end(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(50))
    everything = TopicPartition(topic, 0, -1)
    (future,) = cluster.admin().delete_records([everything]).values()
    assert future.result(20).low_watermark == 50
    CONFLUENT.produce(cluster.bootstrap, topic, timed(1))
    assert CONFLUENT.watermarks(cluster.bootstrap, topic) == (50, 51)


def test_delete_records_beyond_the_end_is_refused(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(5))
    (future,) = cluster.admin().delete_records([TopicPartition(topic, 0, 6)]).values()
    with pytest.raises(Exception, match="OFFSET_OUT_OF_RANGE"):
        future.result(20)


def test_an_offset_out_of_range_is_an_error(cluster: Cluster, topic: str) -> None:
    CONFLUENT.produce(cluster.bootstrap, topic, timed(5))
    with pytest.raises(Refused, match="AUTO_OFFSET_RESET"):
        CONFLUENT.consume(cluster.bootstrap, topic, 1, offset=6)


def test_sequence_numbers_survive_in_the_log(cluster: Cluster, topic: str) -> None:
    """A batch sent again gets the offset it has; a gap in the sequence is refused."""
    with cluster.connect(topic) as connection:
        producer_id, epoch = new_producer_id(connection)

        def send(sequence: int) -> tuple[int, int]:
            batch = batch_of(
                b"a", b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            part = produce(connection, topic, batch)
            return part.error_code, part.base_offset

        assert [send(0), send(2), send(4)] == [(0, 0), (0, 2), (0, 4)]
        assert [send(0), send(2), send(4)] == [(0, 0), (0, 2), (0, 4)]
        assert send(8)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(6) == (0, 6)
    assert CONFLUENT.watermarks(cluster.bootstrap, topic) == (0, 8)
