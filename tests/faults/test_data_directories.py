"""Several data directories: one that fails takes its partitions offline, not the broker, and comes back with them.

Tests may run as root, whom no permission stops; so a directory fails by being replaced with a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_files import read_values
from raw import batch_of, fetch, produce
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.embedded import BrokerDidNotStart
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest
from tidemill.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPICS = ("a", "b", "c", "d")
QUICK = {"log.flush.offset.checkpoint.interval.ms": "200"}


class TwoDirectories(SubprocessBroker):
    """A broker whose second directory can be broken and mended."""

    def __init__(self, home: Path) -> None:
        super().__init__(data_dir=home / "one", settings=QUICK)
        self.second = home / "two"
        self._away = home / "away"

    def command(self) -> list[str]:
        return [*super().command(), "--data-dir", str(self.second)]

    def break_second(self) -> None:
        self.second.rename(self._away)
        self.second.write_text("no directory")

    def mend_second(self) -> None:
        self.second.unlink()
        self._away.rename(self.second)

    def in_second(self) -> list[str]:
        """Topics whose partition lies in the second directory."""
        home = self._away if self._away.exists() else self.second
        return sorted(name for name in TOPICS if (home / f"{name}-0").is_dir())

    def write(self, topic: str, value: bytes) -> int:
        with WireClient(self.bootstrap) as client:
            return int(produce(client, topic, batch_of(value)).error_code)

    def error_of(self, topic: str) -> int:
        with WireClient(self.bootstrap) as client:
            return int(fetch(client, topic, max_wait_ms=0).error_code)

    def offline_replicas(self, topic: str) -> list[int]:
        with WireClient(self.bootstrap) as client:
            answer = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        return list(answer.topics[0].partitions[0].offline_replicas)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TwoDirectories]:
    running = TwoDirectories(tmp_path)
    with running:
        for name in TOPICS:
            running.create_topic(name)
            assert running.write(name, name.encode()) == 0
        assert len(running.in_second()) == 2
        yield running
        with contextlib.suppress(ProcessLookupError):
            running.stop()


def test_a_directory_that_is_broken_at_the_start(broker: TwoDirectories) -> None:
    lost = broker.in_second()
    kept = [name for name in TOPICS if name not in lost]
    broker._stop()
    broker.break_second()
    broker._start()
    assert [broker.error_of(name) for name in lost] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert [read_values(broker.bootstrap, name) for name in kept] == [[name.encode()] for name in kept]
    assert broker.offline_replicas(lost[0]) == [1] and broker.offline_replicas(kept[0]) == []
    broker.create_topic("late")
    assert broker.write("late", b"new") == 0, "new partitions go to the directories that live"
    broker.restart()
    assert read_values(broker.bootstrap, "late") == [b"new"], "and are not taken for lost ones afterwards"
    broker._stop()
    broker.mend_second()
    broker._start()
    assert {name: read_values(broker.bootstrap, name) for name in TOPICS} == {
        name: [name.encode()] for name in TOPICS
    }
    assert broker.offline_replicas(lost[0]) == []


def test_a_topic_deleted_and_made_again_while_its_directory_was_away(broker: TwoDirectories) -> None:
    again, gone = broker.in_second()
    broker._stop()
    broker.break_second()
    broker._start()
    with WireClient(broker.bootstrap) as client:
        answer = client.call(DeleteTopicsRequest(topic_names=[again, gone], timeout_ms=10_000), 5)
        assert [each.error_code for each in answer.responses] == [0, 0]
    broker.create_topic(again)
    assert broker.write(again, b"second life") == 0
    broker._stop()
    broker.mend_second()
    broker._start()
    assert read_values(broker.bootstrap, again) == [b"second life"]
    strays = [path.name for path in broker.second.glob("*-stray")]
    assert sorted(name.split("-0.")[0] for name in strays) == [again, gone]
    broker.create_topic(gone)
    assert read_values(broker.bootstrap, gone) == []


def test_a_directory_that_breaks_at_run_time(broker: TwoDirectories) -> None:
    lost = broker.in_second()
    kept = [name for name in TOPICS if name not in lost]
    broker.break_second()
    broken = ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(lambda: broker.write(lost[0], b"perhaps") == broken, "the failure of the directory")
    assert broker.error_of(lost[0]) == broken
    assert broker.write(lost[1], b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.write(kept[0], b"more") == 0
    wait_until(lambda: broker.offline_replicas(lost[0]) == [1], "the report of the failure")
    broker.create_topic("late")
    assert broker.write("late", b"new") == 0
    with WireClient(broker.bootstrap) as client:
        found = {each.log_dir: each.error_code for each in client.call(DescribeLogDirsRequest()).results}
    assert found == {str(broker.data_dir): 0, str(broker.second): ErrorCode.KAFKA_STORAGE_ERROR}
    broker._stop()
    broker.mend_second()
    broker._start()
    assert read_values(broker.bootstrap, lost[0])[0] == lost[0].encode()
    assert read_values(broker.bootstrap, lost[1]) == [lost[1].encode()]
    assert read_values(broker.bootstrap, kept[0]) == [kept[0].encode(), b"more"]


def test_a_partition_moved_by_hand_is_served_and_reported(broker: TwoDirectories) -> None:
    moved, stays = broker.in_second()
    broker._stop()
    (broker.second / f"{moved}-0").rename(Path(broker.data_dir) / f"{moved}-0")
    broker._start()
    assert read_values(broker.bootstrap, moved) == [moved.encode()]
    broker._stop()
    broker.break_second()
    broker._start()
    assert read_values(broker.bootstrap, moved) == [moved.encode()], "the metadata knows where it is now"
    assert broker.error_of(stays) == ErrorCode.KAFKA_STORAGE_ERROR


# -- directories of others ----------------------------------------------------------------------------


def contents(*directories: Path) -> dict[Path, bytes]:
    """All files but the lock, which says no more than that somebody looked."""
    return {
        path: path.read_bytes()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("place", ["first", "second"])
def test_nothing_is_written_into_the_directory_of_another_node(tmp_path: Path, place: str) -> None:
    foreign, own = tmp_path / "foreign", tmp_path / "own"
    with SubprocessBroker(data_dir=foreign) as owner:
        owner.create_topic("theirs")
    own.mkdir()
    intruder = TwoDirectories(tmp_path)
    intruder.settings["node.id"] = "7"
    directories = (foreign, own) if place == "first" else (own, foreign)
    intruder.data_dir, intruder.second = str(directories[0]), directories[1]
    before = contents(foreign, own)
    with pytest.raises(BrokerDidNotStart, match=f"{foreign} belongs to node 1, this is node 7"):
        intruder.start()
    assert contents(foreign, own) == before


def test_nothing_is_written_if_the_second_directory_is_of_another_cluster(
    tmp_path: Path, broker: TwoDirectories
) -> None:
    broker._stop()
    foreign = tmp_path / "foreign"
    with SubprocessBroker(data_dir=foreign) as owner:
        owner.create_topic("theirs")
    own = Path(broker.data_dir)
    broker.second = foreign
    before = contents(foreign, own)
    with pytest.raises(BrokerDidNotStart, match=f"{foreign} belongs to the cluster"):
        broker.start()
    assert contents(foreign, own) == before
