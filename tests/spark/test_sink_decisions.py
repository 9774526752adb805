"""Decisions without a cluster: what markers say, what may go, what a repeated or outdated batch does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition
from tidemill.spark.sink import asking, decisions, publication
from tidemill.spark.sink.asking import is_published
from tidemill.spark.sink.decisions import Decision, UnmarkedDecision, decision_batch, standing_decisions
from tidemill.spark.sink.publication import BatchOutdated, publish
from tidemill.spark.sink.topics import COMMITS, SinkTopics
from tidemill.spark.sink.transaction import Transaction
from tidemill.spark.sink.writers import split_commit_key
from tidemill.spark.source.batches import AbortedTransactions
from tidemill.wire.batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    Record,
    build_batch,
    iterate_headers,
    iterate_records,
    read_header,
)
from tidemill.wire.messages.fetch import PartitionData

COMMIT, ABORT, EMPTIED = 1, 0, None


class Commits:
    """The partition of decisions, as bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 0
        self.log = bytearray()
        monkeypatch.setattr(decisions, "fetch_uncommitted", lambda *_: PartitionData(records=bytes(self.log)))

    def list_offsets(self, asked: dict[TopicPartition, int], committed: bool) -> dict[TopicPartition, int]:
        return {COMMITS: 0 if asked[COMMITS] == -2 else self.end}

    def decide(
        self, query: str, batch: int, marker: int | None = COMMIT, standing: set[int] | None = None
    ) -> None:
        written = decision_batch(Decision(query, batch, 1, {}), standing or ())
        (header,) = (each for _, each in iterate_headers(written.data))
        records = list(iterate_records(header, memoryview(written.data)[61:]))
        self._append(records, TRANSACTIONAL_MASK)
        key = struct.pack(">hh", 0, marker or 0)
        self._append(
            [Record(0, 0, key, b"")], TRANSACTIONAL_MASK | CONTROL_MASK, is_emptied=marker is EMPTIED
        )

    def _append(self, records: list[Record], attributes: int, *, is_emptied: bool = False) -> None:
        moved = [record._replace(offset=self.end + place) for place, record in enumerate(records)]
        data = build_batch(moved, attributes=attributes, producer_id=7, producer_epoch=0)
        self.log += empty(data) if is_emptied else data
        self.end += len(records)

    def standing(self, query: str) -> set[int]:
        return set(standing_decisions(self, query, 1000))  # type: ignore[arg-type]


def empty(data: bytearray) -> bytearray:
    """The batch as compaction leaves it when its records are gone and its producer is not."""
    left = data[:61]
    struct.pack_into(">i", left, 8, 61 - 12)
    struct.pack_into(">i", left, 57, 0)
    return left


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Commits]:
    yield Commits(monkeypatch)


def test_markers_decide_which_decisions_stand(commits: Commits) -> None:
    commits.decide("q", 3)
    commits.decide("q", 4, marker=ABORT)
    commits.decide("other", 9)
    assert commits.standing("q") == {3}
    assert commits.standing("nobody") == set()
    commits.decide("q", 5, marker=EMPTIED)
    assert commits.standing("q") == {3, 5}


def test_decisions_go_also_when_the_batch_that_would_remove_them_was_empty(commits: Commits) -> None:
    for batch in (5, 6, 18):
        commits.decide("q", batch, standing=commits.standing("q"))
    assert commits.standing("q") == {18}


def test_an_emptied_abort_marker_ends_its_transaction() -> None:
    aborted = AbortedTransactions([(0, 7)])
    fields = {"producer_id": 7, "producer_epoch": 0}
    rows = build_batch([Record(0, 0, None, b"x")], attributes=TRANSACTIONAL_MASK, **fields)
    marker = empty(
        build_batch([Record(1, 0, b"0000", b"")], attributes=TRANSACTIONAL_MASK | CONTROL_MASK, **fields)
    )
    later = build_batch([Record(2, 0, None, b"x")], attributes=TRANSACTIONAL_MASK, **fields)
    hidden = [aborted.hides(read_header(data, 0), bytes(data), 0) for data in (rows, marker, later)]
    assert hidden == [True, False, False]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("my-query/orders/17", ("my-query/orders", 17)),
        ("load/0", ("load", 0)),
        ("load/007", ("load/007", 0)),
        ("load-2024", ("load-2024", 0)),
        ("17", ("17", 0)),
        ("/17", ("/17", 0)),
        ("run-5d6c", ("run-5d6c", 0)),
    ],
)
def test_a_commit_key_with_a_number_is_a_batch_of_its_name(key: str, expected: tuple[str, int]) -> None:
    assert split_commit_key(key) == expected


# -- publishing -----------------------------------------------------------------------------------------------


class StoppedClock:
    """Time passes only when somebody sleeps or a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    found = StoppedClock()
    monkeypatch.setattr(publication, "time", found)
    return found


def publish_one(batch: int = 7) -> bool:
    settings: Any = SimpleNamespace(client=None, delivery_timeout_ms=120_000, transaction_timeout_ms=1000)
    staged: Any = [SimpleNamespace(counts={TopicPartition("orders", 0): 1}, where=None)]
    return publish(settings, "q", batch, staged)


def test_brokers_may_be_away_for_a_while_after_the_first_failure(
    clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt writes for ten minutes before a broker goes away."""
    lasting = [600.0, 60.0, 0.0]
    closed: list[Cluster] = []
    monkeypatch.setattr(publication._Publication, "clean", lambda self: None)
    monkeypatch.setattr(Cluster, "close", lambda self: closed.append(self))

    def attempt(_: object) -> bool:
        clock.now += lasting.pop(0)
        if lasting:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "ending the transaction")
        return True

    monkeypatch.setattr(publication._Publication, "attempt", attempt)
    assert publish_one() is True
    assert len(closed) == 2, "answers to a failed attempt may be on their way"
    lasting[:] = [1.0, 121.0, 0.0]
    with pytest.raises(BrokerError):
        publish_one()


@pytest.mark.parametrize(("newest", "expected"), [(7, False), (6, True)])
def test_only_the_newest_batch_is_a_repetition(
    monkeypatch: pytest.MonkeyPatch, newest: int, expected: bool
) -> None:
    pretend_standing(monkeypatch, newest)
    assert publish_one() is expected


def test_a_batch_before_the_newest_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_standing(monkeypatch, 9)
    with pytest.raises(BatchOutdated, match="batch 7 of query q was not published: batch 9 of this query is"):
        publish_one()


def pretend_standing(monkeypatch: pytest.MonkeyPatch, newest: int) -> None:
    """A cluster whose newest decision is this, and that takes everything."""
    nothing = lambda *_, **__: None  # noqa: E731
    monkeypatch.setattr(publication, "standing_decisions", lambda *_: frozenset({1, newest}))
    monkeypatch.setattr(SinkTopics, "ensure_commits", nothing)
    for step in ("begin", "commit"):
        monkeypatch.setattr(Transaction, step, nothing)
    for step in ("_write", "clean"):
        monkeypatch.setattr(publication._Publication, step, nothing)


def test_whoever_asks_before_writing_is_told_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No topic of decisions: nothing was published; an open transaction: nobody knows, so the sink is to find out."""
    topics: dict[str, list[int]] = {}
    monkeypatch.setattr(Cluster, "partitions", lambda self, names: topics)
    monkeypatch.setattr(asking, "standing_decisions", lambda cluster, query, _: {17: b"{}"})
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "commitKey": "orders/17"}
    assert is_published(options) is False
    topics[COMMITS.topic] = [0]
    assert is_published(options) is True
    assert is_published(options | {"commitKey": "orders/18"}) is False

    def unmarked(*_: object) -> dict[int, bytes]:
        raise UnmarkedDecision("a decision has no marker")

    monkeypatch.setattr(asking, "standing_decisions", unmarked)
    assert is_published(options) is False
