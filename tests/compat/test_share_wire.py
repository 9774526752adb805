"""Share groups in single protocol messages: sessions, error codes, which bytes are sent, who is woken when."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from raw import batch_of, produce
from share_wire import ShareMember, acquired, configure_group, initialize, sent_offsets, share_member
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.share_fetch import ForgottenTopic

INITIAL, FINAL = 0, -1
LONG_MS = 12_000
"""Of a fetch that is answered before its time, or the test fails."""
HIDDEN_BATCHES = 40


class Share:
    """A topic of one partition with batches of five records, and a group that begins at its start."""

    def __init__(self, cluster: Cluster, **settings: str) -> None:
        self.cluster = cluster
        self.topic = cluster.topic()
        self.group = f"share-{uuid.uuid4().hex[:12]}"
        with cluster.connect() as connection:
            configure_group(connection, self.group, **({"share_auto_offset_reset": "earliest"} | settings))
            initialize(connection, self.group, self.topic)

    def fill(self, batches: int, size: int = 5) -> None:
        with self.cluster.connect(self.topic) as connection:
            for _ in range(batches):
                assert produce(connection, self.topic, batch_of(*[b"v"] * size)).error_code == 0

    def member(self, **options: Any) -> ShareMember:
        return ShareMember(self.cluster.connect(self.topic), self.group, self.topic, **options)


@pytest.fixture
def share(cluster: Cluster) -> Share:
    return Share(cluster)


@pytest.fixture
def ann(share: Share) -> Iterator[ShareMember]:
    with share_member(share.cluster.bootstrap, share.group, share.topic) as member:
        member.fetch()  # opens the session; the share partition is loaded meanwhile
        yield member


@pytest.fixture
def bob(share: Share) -> Iterator[ShareMember]:
    with share_member(share.cluster.bootstrap, share.group, share.topic) as member:
        member.fetch()
        yield member


def acquire_soon(member: ShareMember) -> str:
    """What the member gets, as soon as it gets anything."""
    got: list[str] = []

    def has_come() -> bool:
        got.append(member.acquire(max_wait_ms=500))
        return got[-1] != ""

    wait_until(has_come, "records")
    return got[-1]


def offsets_of(got: str) -> set[int]:
    found: set[int] = set()
    for part in got.split(", ") if got else []:
        first, _, last = part.split()[0].partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def first_error(answer: Any) -> tuple[int, int]:
    """Of the fetch and of the acknowledgements."""
    partition = answer.responses[0].partitions[0]
    return partition.error_code, partition.acknowledge_error_code


# -- delivery ---------------------------------------------------------------------------------------------


def test_records_are_acquired_and_acknowledged(share: Share, ann: ShareMember, bob: ShareMember) -> None:
    share.fill(4)
    answer = ann.fetch(max_records=10, max_wait_ms=5000)
    assert acquired(answer) == "0-9 x1" and sent_offsets(answer) == [(0, 4), (5, 9)]
    assert answer.acquisition_lock_timeout_ms == 30_000
    answer = bob.fetch(max_wait_ms=5000)
    assert acquired(answer) == "10-19 x1" and sent_offsets(answer) == [(10, 14), (15, 19)]
    assert ann.tell("0-3 accept", "4-9 release") == 0
    assert bob.acquire("10-19 accept", max_wait_ms=5000) == "4-9 x2"
    assert bob.tell("4-9 reject") == 0
    assert ann.acquire() == bob.acquire() == ""


def test_only_batches_with_acquired_records_are_sent(
    share: Share, ann: ShareMember, bob: ShareMember
) -> None:
    share.fill(4)
    assert ann.acquire(max_wait_ms=5000) == "0-19 x1"
    ann.tell("7 release", "12 release")
    answer = bob.fetch(max_wait_ms=5000)
    assert acquired(answer) == "7 x2, 12 x2" and sent_offsets(answer) == [(5, 9), (10, 14)]


def test_an_exact_number_of_records(share: Share, ann: ShareMember, bob: ShareMember) -> None:
    share.fill(2)
    assert offsets_of(ann.acquire(max_records=3, share_acquire_mode=1, max_wait_ms=5000)) == {0, 1, 2}
    assert offsets_of(bob.acquire(max_records=4, share_acquire_mode=1, max_wait_ms=5000)) == {3, 4, 5, 6}


def test_a_group_begins_at_the_end_unless_it_says_otherwise(cluster: Cluster) -> None:
    share = Share(cluster, share_auto_offset_reset="latest")
    share.fill(1)
    with share.member().connection as connection:
        member = ShareMember(connection, share.group, share.topic)
        assert member.acquire(max_wait_ms=300) == ""
        share.fill(1)
        assert member.acquire(max_wait_ms=5000) == "5-9 x1"


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_group_begins_some_time_ago(cluster: Cluster, compression: str) -> None:
    share = Share(cluster, share_auto_offset_reset="by_duration:PT1H")
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "compression.type": compression, "linger.ms": 100}
    )
    now_ms = int(time.time() * 1000)
    for hours_ago in (5, 4, 3, 0.5, 0.2):
        producer.produce(share.topic, b"x" * 100, timestamp=now_ms - int(hours_ago * 3_600_000))
    producer.flush(20)
    with share.member().connection as connection:
        member = ShareMember(connection, share.group, share.topic)
        assert offsets_of(acquire_soon(member)) == {3, 4}


def test_records_that_the_log_lost_are_passed_over(share: Share, ann: ShareMember) -> None:
    share.fill(4)
    assert ann.acquire(max_records=5, max_wait_ms=5000) == "0-4 x1"
    partitions = [DeleteRecordsPartition(partition_index=0, offset=12)]
    topics = [DeleteRecordsTopic(name=share.topic, partitions=partitions)]
    ann.connection.call(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
    still_there = offsets_of(acquire_soon(ann)) - {10, 11}
    assert still_there == set(range(12, 20)), "Kafka names the whole batch that the cut left a part of"
    assert ann.tell("0-4 accept") == 0, "they are gone, whatever is said of them"


# -- transactions -----------------------------------------------------------------------------------------


def write_transactions(share: Share) -> None:
    """Offsets 0-1 committed, marker 2, 3-4 aborted, marker 5, 6 plain."""
    producer = Producer({"bootstrap.servers": share.cluster.bootstrap, "transactional.id": share.group})
    producer.init_transactions(20)
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.produce(share.topic, b"1")
        producer.produce(share.topic, b"2")
        producer.flush(20)
        if is_committed:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    share.fill(1, size=1)


@pytest.mark.parametrize(
    ("level", "delivered"), [("read_uncommitted", {0, 1, 3, 4, 6}), ("read_committed", {0, 1, 6})]
)
def test_aborted_records_and_markers(cluster: Cluster, level: str, delivered: set[int]) -> None:
    share = Share(cluster, share_isolation_level=level)
    write_transactions(share)
    with share.member().connection as connection:
        member = ShareMember(connection, share.group, share.topic)
        assert offsets_of(member.acquire(max_wait_ms=5000)) - {2, 5} == delivered


def test_a_fetch_goes_on_behind_what_nobody_may_see(cluster: Cluster) -> None:
    """More slices with nothing but aborted records and markers than one fetch goes through, and none waits."""
    share = Share(cluster, share_isolation_level="read_committed")
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": share.group}
    producer = Producer(settings)
    producer.init_transactions(20)
    for _ in range(HIDDEN_BATCHES // 2):
        producer.begin_transaction()
        producer.produce(share.topic, b"never seen")
        producer.flush(20)
        producer.abort_transaction(20)
    share.fill(1, size=1)
    with share.member().connection as connection:
        member = ShareMember(connection, share.group, share.topic)
        found: set[int] = set()
        fetches = 0
        while not found:
            found = offsets_of(member.acquire(max_wait_ms=LONG_MS, max_bytes=1))
            fetches += 1
        assert HIDDEN_BATCHES in found
        assert fetches < HIDDEN_BATCHES


# -- waiting ----------------------------------------------------------------------------------------------


def test_a_waiting_fetch_is_woken_by_new_records(share: Share, ann: ShareMember) -> None:
    ann.send_fetch(max_wait_ms=LONG_MS)
    share.fill(1)
    assert acquired(ann.connection.receive()) == "0-4 x1"


@pytest.fixture(scope="module")
def lone() -> Iterator[Cluster]:
    """For what Kafka does not do: there a release wakes nobody."""
    with SubprocessBroker(settings={"group.share.record.lock.duration.ms": "1000"}) as broker:
        yield Cluster(broker.bootstrap)


@pytest.mark.parametrize("way", ["release", "leave", "disconnect", "time-out"])
def test_a_waiting_fetch_is_woken_when_records_come_back(lone: Cluster, way: str) -> None:
    share = Share(lone)
    share.fill(1)
    first, second = share.member(), share.member()
    with first.connection, second.connection:
        second.fetch()
        assert acquire_soon(first) == "0-4 x1"
        second.send_fetch(max_wait_ms=LONG_MS)
        if way == "release":
            first.tell("0-4 release")
        elif way == "leave":
            first.fetch(epoch=FINAL)
        elif way == "disconnect":
            first.connection.close()
        assert acquired(second.connection.receive()) == "0-4 x2"


def test_a_renewed_lock_lasts_longer(lone: Cluster) -> None:
    share = Share(lone)
    share.fill(1)
    first, second = share.member(), share.member()
    with first.connection, second.connection:
        second.fetch()
        assert acquire_soon(first) == "0-4 x1"
        second.send_fetch(max_wait_ms=LONG_MS)
        time.sleep(0.6)
        assert first.tell("1-4 renew", is_renew_ack=True) == 0
        assert acquired(second.connection.receive()) == "0 x2"
        assert first.tell("1-4 accept") == 0


def test_a_waiting_fetch_is_woken_when_an_acknowledgement_makes_room(cluster: Cluster) -> None:
    share = Share(cluster, share_partition_max_record_locks="100")
    share.fill(3, size=50)
    first, second = share.member(), share.member()
    with first.connection, second.connection:
        second.fetch()
        assert first.acquire(max_records=1000, max_wait_ms=5000) == "0-99 x1"
        second.send_fetch(max_wait_ms=LONG_MS)
        first.tell("0-49 accept")
        assert acquired(second.connection.receive()) == "100-149 x1"


def test_a_waiting_fetch_whose_client_went_away_takes_nothing(lone: Cluster) -> None:
    """In Kafka it does, and they come again, delivered twice."""
    share = Share(lone)
    gone, second = share.member(), share.member()
    with second.connection:
        gone.fetch()
        gone.send_fetch(max_wait_ms=LONG_MS)
        second.fetch()
        gone.connection.close()
        share.fill(1)
        assert acquire_soon(second) == "0-4 x1"


# -- sessions ---------------------------------------------------------------------------------------------


def test_the_epochs_of_a_session(share: Share, ann: ShareMember) -> None:
    assert ann.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert ann.acknowledge("0 accept", epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert ann.acknowledge("0 accept", epoch=INITIAL).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert ann.fetch("0 accept", epoch=INITIAL).error_code == ErrorCode.INVALID_REQUEST
    assert ann.fetch().error_code == 0
    assert ann.fetch(epoch=FINAL).error_code == 0
    for answer in (ann.fetch(), ann.fetch(epoch=FINAL), ann.acknowledge(epoch=FINAL)):
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize("way", ["fetch", "acknowledge", "disconnect"])
def test_the_end_of_a_session_releases_its_records(
    share: Share, ann: ShareMember, bob: ShareMember, way: str
) -> None:
    share.fill(2)
    assert ann.acquire(max_wait_ms=5000) == "0-9 x1"
    if way == "disconnect":
        ann.connection.close()
    else:
        answer = getattr(ann, way)("0-1 accept", epoch=FINAL)
        assert answer.error_code == 0
    expected = "0-9 x2" if way == "disconnect" else "2-9 x2"
    assert acquire_soon(bob) == expected


def test_names_that_cannot_be(share: Share) -> None:
    with share.member().connection as connection:
        for member_id in ("", "x" * 37):
            member = ShareMember(connection, share.group, share.topic)
            member.member_id = member_id
            assert member.fetch().error_code == ErrorCode.INVALID_REQUEST
        member = ShareMember(connection, share.group, share.topic, partition=9)
        assert first_error(member.fetch(max_wait_ms=100)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_a_topic_that_nobody_knows(lone: Cluster) -> None:
    """Kafka fails the whole request."""
    share = Share(lone)
    with share.member().connection as connection:
        member = ShareMember(connection, share.group, share.topic)
        member.topic_id = uuid.uuid4().bytes
        assert first_error(member.fetch(max_wait_ms=100)) == (ErrorCode.UNKNOWN_TOPIC_ID, 0)
        assert member.tell("0 accept") == ErrorCode.UNKNOWN_TOPIC_ID


# -- acknowledgements -------------------------------------------------------------------------------------


def test_acknowledgements_that_are_refused(share: Share, ann: ShareMember, bob: ShareMember) -> None:
    share.fill(2)
    ann.acquire(max_records=5, max_wait_ms=5000)
    bob.acquire(max_records=5, max_wait_ms=5000)
    assert ann.tell("5-9 accept") == ErrorCode.INVALID_RECORD_STATE
    assert ann.tell("0-40 accept") == ErrorCode.INVALID_REQUEST
    for malformed in ("4-0 accept", "0-4 accept,accept", "0 renew"):
        assert ann.tell(malformed) == ErrorCode.INVALID_REQUEST
    assert ann.tell("2-4 accept", "0-1 accept") == ErrorCode.INVALID_REQUEST
    assert not ann.acknowledge().responses, "a partition without acknowledgements has no answer"
    answer = ann.fetch("0-4 accept")
    assert answer.error_code == 0 and first_error(answer) == (0, 0)
    assert ann.tell("0-4 accept") == 0, "below the start everything is said already"


def test_a_refusal_comes_with_the_records(share: Share, ann: ShareMember, bob: ShareMember) -> None:
    share.fill(2)
    ann.acquire(max_records=5, max_wait_ms=5000)
    answer = bob.fetch("0-4 accept", max_wait_ms=5000)
    assert first_error(answer) == (0, ErrorCode.INVALID_RECORD_STATE)
    assert [record.first_offset for record in answer.responses[0].partitions[0].acquired_records] == [5]


def test_renewing_needs_its_own_request(share: Share, ann: ShareMember) -> None:
    share.fill(1)
    ann.acquire(max_wait_ms=5000)
    assert ann.tell("0-4 renew", is_renew_ack=True) == 0
    answer = ann.fetch("0-4 renew", is_renew_ack=True)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    nothing = {"min_bytes": 0, "max_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    ann.epoch -= 1
    answer = ann.fetch("0-4 renew", is_renew_ack=True, **nothing)
    assert (answer.error_code, first_error(answer)) == (0, (0, 0))
    configure_group(ann.connection, ann.group, share_renew_acknowledge_enable="false")
    refusal = ErrorCode.INVALID_RECORD_STATE
    wait_until(lambda: ann.tell("0-4 renew", is_renew_ack=True) == refusal, "that nothing is renewed")
    assert ann.tell("0-4 accept") == 0


def test_a_partition_that_is_forgotten_may_be_acknowledged_once_more(share: Share, ann: ShareMember) -> None:
    share.fill(2)
    ann.acquire(max_records=5, max_wait_ms=5000)
    gone = ForgottenTopic(topic_id=ann.topic_id, partitions=[0])
    answer = ann.fetch("0-4 accept", forgotten_topics_data=[gone])
    assert first_error(answer) == (0, 0) and not acquired(answer)


def test_state_survives_the_group(share: Share, ann: ShareMember) -> None:
    """The last session ends: the broker forgets the partition and reads its state when the next one comes."""
    share.fill(2)
    ann.acquire(max_wait_ms=5000)
    ann.tell("0-2 accept", "5-6 release", "8 reject")
    assert ann.fetch(epoch=FINAL).error_code == 0
    got: list[str] = []

    def comes_back() -> bool:
        with share.member().connection as connection:
            member = ShareMember(connection, share.group, share.topic)
            got.append(member.acquire(max_wait_ms=500))
            member.fetch(epoch=FINAL)
        return offsets_of(got[-1]) == {3, 4, 5, 6, 7, 9}

    wait_until(comes_back, "the group's records")
    assert "x1" not in got[-1]
