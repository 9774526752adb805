"""Fetch as it is on the wire: sessions, long polls, limits and fencing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import TopicPartition
from raw import FETCH_WITH_NAMES, batch_of, fetch, fetch_request, produce, topic_id

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.batch import iterate_headers, read_header
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

READ_COMMITTED = 1


class Session:
    """A consumer's fetch session over the partitions of one topic, kept by hand."""

    def __init__(self, connection: WireClient, topic: str, version: int = FetchRequest.VERSIONS[1]) -> None:
        self._connection, self._version = connection, version
        self._names = {"topic_id": topic_id(connection, topic)} if version >= 13 else {"topic": topic}
        self.session_id = 0
        self.epoch = 0

    def fetch(self, offsets: dict[int, int], forgotten: tuple[int, ...] = (), **fields: Any) -> Any:
        """The whole answer to a request that names only these partitions."""
        partitions = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1_000_000)
            for number, offset in offsets.items()
        ]
        defaults = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
        }
        request = FetchRequest(
            topics=[FetchTopic(partitions=partitions, **self._names)] if partitions else [],
            forgotten_topics_data=[ForgottenTopic(partitions=list(forgotten), **self._names)]
            if forgotten
            else [],
            **(defaults | fields),
        )
        answer = self._connection.call(request, self._version)
        if answer.error_code == 0:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return answer

    def changed(self, offsets: dict[int, int], **fields: Any) -> dict[int, int]:
        """{partition: bytes of records} of what the answer carries."""
        answer = self.fetch(offsets, **fields)
        assert answer.error_code == 0
        return {p.partition_index: len(p.records or b"") for t in answer.responses for p in t.partitions}


@pytest.fixture(params=[7, 12, 13, 18])
def version(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


def test_an_incremental_fetch_carries_only_what_changed(cluster: Cluster, version: int) -> None:
    topic = cluster.topic(partitions=3, together=True)
    batch = batch_of(b"x" * 100)
    with cluster.connect(topic) as consumer, cluster.connect(topic) as producer:
        session = Session(consumer, topic, version)
        produce(producer, topic, batch, partition=0)
        assert session.changed({0: 0, 1: 0, 2: 0}) == {0: len(batch), 1: 0, 2: 0}
        assert session.session_id > 0
        assert session.changed({0: 1}) == {}
        produce(producer, topic, batch, partition=1)
        assert session.changed({}) == {1: len(batch)}
        assert session.changed({}) == {1: len(batch)}, "the session remembers the old position"
        assert session.changed({1: 1}) == {}
        produce(producer, topic, batch, partition=2)
        produce(producer, topic, batch, partition=0)
        assert session.changed({}) == {0: len(batch), 2: len(batch)}


def test_partitions_join_and_leave_a_session(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2, together=True)
    batch = batch_of(b"x")
    with cluster.connect(topic) as consumer, cluster.connect(topic) as producer:
        session = Session(consumer, topic)
        assert session.changed({0: 0}) == {0: 0}
        assert session.changed({1: 0}) == {1: 0}
        assert session.changed({}) == {}
        assert session.changed({}, forgotten=(1,)) == {}
        produce(producer, topic, batch, partition=0)
        produce(producer, topic, batch, partition=1)
        assert session.changed({}) == {0: len(batch)}


def test_a_moved_log_start_is_a_change(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2, together=True)
    with cluster.connect(topic) as consumer:
        produce(consumer, topic, batch_of(b"a", b"b"))
        session = Session(consumer, topic)
        session.changed({0: 2, 1: 0})
        assert session.changed({}) == {}
        (done,) = cluster.admin().delete_records([TopicPartition(topic, 0, 1)]).values()
        done.result(20)
        answer = session.fetch({})
        ((part,),) = [t.partitions for t in answer.responses]
        assert (part.partition_index, part.log_start_offset) == (0, 1)


def test_sessions_are_checked(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        session = Session(connection, topic)
        session.changed({0: 0})
        right_epoch, right_id = session.epoch, session.session_id
        session.epoch = 77
        assert session.fetch({}).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch, session.session_id = right_epoch, right_id ^ 0x5555
        assert session.fetch({}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch, session.session_id = right_epoch, right_id
        assert session.fetch({}).error_code == 0
        session.epoch = -1
        closed = session.fetch({0: 0})
        assert (closed.error_code, closed.session_id) == (0, 0)
        session.epoch, session.session_id = right_epoch + 1, right_id
        assert session.fetch({}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_wakes_for_any_of_its_partitions(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=5, together=True)
    batch = batch_of(b"x" * 50)
    with cluster.connect(topic) as consumer, cluster.connect(topic) as producer:
        session = Session(consumer, topic)
        session.changed(dict.fromkeys(range(5), 0))
        later = threading.Timer(0.2, produce, (producer, topic, batch), {"partition": 3})
        later.start()
        began = time.monotonic()
        assert session.changed({}, max_wait_ms=10_000) == {3: len(batch)}
        assert 0.1 < time.monotonic() - began < 3
        later.join()


# -- long polls -------------------------------------------------------------------------------------


def test_a_produce_wakes_a_long_poll(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as consumer, cluster.connect(topic) as producer:
        later = threading.Timer(0.3, produce, (producer, topic, batch_of(b"at last")))
        later.start()
        began = time.monotonic()
        part = fetch(consumer, topic, max_wait_ms=10_000)
        assert 0.2 < time.monotonic() - began < 3
        assert read_header(part.records).record_count == 1
        later.join()


def test_a_long_poll_ends_with_what_is_there(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        began = time.monotonic()
        assert not fetch(connection, topic, max_wait_ms=300).records
        assert 0.25 < time.monotonic() - began < 2
        produce(connection, topic, batch_of(b"x"))
        began = time.monotonic()
        part = fetch(connection, topic, max_wait_ms=300, min_bytes=1_000_000)
        assert 0.25 < time.monotonic() - began < 2
        assert part.records


def test_min_bytes_counts_over_all_partitions(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2, together=True)
    batch = batch_of(b"x" * 1_000)
    with cluster.connect(topic) as connection:
        produce(connection, topic, batch, partition=0)
        produce(connection, topic, batch, partition=1)
        session = Session(connection, topic)
        began = time.monotonic()
        session.changed({0: 0, 1: 0}, max_wait_ms=5_000, min_bytes=2 * len(batch))
        assert time.monotonic() - began < 2


def test_an_error_ends_a_long_poll_at_once(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        began = time.monotonic()
        part = fetch(connection, topic, offset=99, max_wait_ms=10_000)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert time.monotonic() - began < 2


def test_a_long_poll_does_not_hold_up_other_connections(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as patient, cluster.connect(topic) as busy:
        patient.send(fetch_request(topic, 0, max_wait_ms=1_500), FETCH_WITH_NAMES)
        began = time.monotonic()
        for _ in range(20):
            fetch(busy, topic, max_wait_ms=0)
        assert time.monotonic() - began < 1
        patient.receive()


def test_a_deleted_topic_ends_its_long_polls(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.connect(topic) as connection:
        connection.send(fetch_request(topic, 0, max_wait_ms=8_000), FETCH_WITH_NAMES)
        time.sleep(0.1)
        cluster.admin().delete_topics([topic])[topic].result(20)
        answer = connection.receive()
        part = answer.responses[0].partitions[0]
        assert part.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


# -- limits -----------------------------------------------------------------------------------------


def test_max_bytes_limits_the_whole_answer(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=4, together=True)
    batch = batch_of(b"x" * 10_000)
    with cluster.connect(topic) as connection:
        for partition in range(4):
            for _ in range(5):
                produce(connection, topic, batch, partition=partition)
        session = Session(connection, topic)
        carried = session.changed(dict.fromkeys(range(4), 0), max_bytes=25_000)
        assert len(batch) <= sum(carried.values()) <= 25_000


def test_partition_max_bytes(cluster: Cluster, topic: str) -> None:
    batch = batch_of(b"x" * 10_000)
    with cluster.connect(topic) as connection:
        for _ in range(5):
            produce(connection, topic, batch)
        request = fetch_request(topic, 0)
        request.topics[0].partitions[0].partition_max_bytes = 25_000
        answer = connection.call(request, FETCH_WITH_NAMES)
        records = answer.responses[0].partitions[0].records
    assert len(records) <= 25_000
    assert [header.base_offset for _, header in iterate_headers(records)] == [0, 1]


def test_the_answer_holds_the_offsets_of_the_partition(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        for n in range(3):
            produce(connection, topic, batch_of(b"%d" % n, b"and more"))
        part = fetch(connection, topic, 4, isolation_level=READ_COMMITTED)
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (6, 6, 0)
    assert not part.aborted_transactions
    assert read_header(part.records).base_offset == 4


def test_a_fetch_in_the_middle_of_a_batch_gets_the_whole_batch(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        produce(connection, topic, batch_of(*[b"%d" % n for n in range(10)]))
        part = fetch(connection, topic, 7)
    assert read_header(part.records).base_offset == 0


def test_every_version_of_fetch(cluster: Cluster, topic: str) -> None:
    batch = batch_of(b"hello")
    oldest, newest = FetchRequest.VERSIONS
    with cluster.connect(topic) as connection:
        produce(connection, topic, batch)
        known_id = topic_id(connection, topic)
        for version in range(oldest, newest + 1):
            request = fetch_request(topic, 0)
            request.topics[0].topic_id = known_id
            part = connection.call(request, version).responses[0].partitions[0]
            assert (part.error_code, len(part.records)) == (0, len(batch)), version


def test_an_unknown_topic_id(cluster: Cluster) -> None:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    request = FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        topics=[FetchTopic(topic_id=b"0123456789abcdef", partitions=[wanted])],
    )
    with cluster.connect() as connection:
        part = connection.call(request).responses[0].partitions[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_wrong_leader_epoch_is_fenced(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        request = fetch_request(topic, 0)
        request.topics[0].partitions[0].current_leader_epoch = 500
        part = connection.call(request, FETCH_WITH_NAMES).responses[0].partitions[0]
    assert part.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
