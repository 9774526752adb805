"""Damaged and missing files: found when the broker starts or reads, repaired where they can be, never served.

Every case is the same story: a broker writes, ends (in order, or by kill), a file is damaged, the broker starts
again. It always starts; what it serves is right; and if a partition cannot be repaired, that partition alone says so.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from log_files import TEARS, Tear, batches, flip_bit, read_values, segments
from raw import batch_of, fetch, fetch_batches, new_producer_id, produce
from transaction_reading import committed_values
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.embedded import BrokerDidNotStart
from tidemill.wire.batch import iterate_headers
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

TOPIC, OTHER, LEDGER = "damaged", "other", "ledger"
TRANSACTIONS = 6
BATCHES = 60
START_MS = int(time.time() * 1000) - 3_600_000
STEP_MS = 1_000
Damage = Callable[[Path], None]


class Story:
    """A broker with two topics, the first in several segments, and one producer's sequence numbers."""

    def __init__(self, broker: SubprocessBroker) -> None:
        self.broker = broker
        broker.create_topic(TOPIC, segment_bytes="1048576", index_interval_bytes="4096", retention_ms="-1")
        broker.create_topic(OTHER)
        with WireClient(broker.bootstrap) as connection:
            self.producer_id, self.epoch = new_producer_id(connection)
            for number in range(BATCHES):
                self.send(connection, number)
            assert produce(connection, OTHER, batch_of(b"untouched")).error_code == 0
        self.write_ledger()

    def write_ledger(self) -> None:
        """Transactions that take turns in being committed and aborted, in several segments."""
        self.broker.create_topic(LEDGER, segment_bytes="1048576")
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": "bookkeeper"})
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for _ in range(2):
                producer.produce(LEDGER, b"%d" % number + b"-" * 200_000)
            if number % 2:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()

    def value(self, number: int) -> bytes:
        return b"%d" % number + b"." * 50_000

    def send(self, connection: WireClient, number: int) -> tuple[int, int]:
        """Send batch `number`; (error, offset). Sent again it must get the same offset again."""
        batch = batch_of(
            self.value(number),
            timestamp_ms=START_MS + number * STEP_MS,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=number,
        )
        part = produce(connection, TOPIC, batch)
        return part.error_code, part.base_offset

    def files(self, suffix: str) -> list[Path]:
        return segments(self.broker.data_dir, TOPIC, suffix=suffix)

    def wait_for_snapshot(self) -> None:
        wait_until(lambda: self.files(".snapshot"), "the snapshot of a roll")

    def assert_all_is_well(self) -> None:
        """Everything is served, in order; lookups by time are right; sequences and appends go on."""
        assert read_values(self.broker.bootstrap, TOPIC) == [self.value(n) for n in range(BATCHES)]
        assert read_values(self.broker.bootstrap, OTHER) == [b"untouched"]
        with WireClient(self.broker.bootstrap) as connection:
            for number in (0, 1, 17, 33, BATCHES - 1):
                assert fetch_batches(connection, TOPIC, number)[0].base_offset == number
                assert offset_at(connection, START_MS + number * STEP_MS - 1) == number
            assert offset_at(connection, START_MS + BATCHES * STEP_MS) == -1
            assert self.send(connection, BATCHES - 1) == (0, BATCHES - 1), "sent again, it is known"
            assert self.send(connection, BATCHES) == (0, BATCHES)


def offset_at(connection: WireClient, timestamp_ms: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    part = connection.call(request).topics[0].partitions[0]
    assert part.error_code == 0
    offset: int = part.offset
    return offset


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Story]]:
    """The story's first half, told once for each ending; each test goes on with a copy of the files."""
    told = {}
    for ending in ("stopped", "killed"):
        home = tmp_path_factory.mktemp(ending)
        with SubprocessBroker(data_dir=home) as broker:
            story = Story(broker)
            if ending == "killed":
                story.wait_for_snapshot()
                broker.kill()
        told[ending] = (home, story)
    return told


@pytest.fixture(params=["stopped", "killed"])
def story(request: pytest.FixtureRequest, written: dict[str, tuple[Path, Story]], tmp_path: Path) -> Any:
    """A broker that has ended, and is started again by the test with `story.broker.start()`."""
    home, told = written[request.param]
    copy = tmp_path / "data"
    shutil.copytree(home, copy)
    again = object.__new__(Story)
    again.__dict__.update(told.__dict__)
    again.broker = SubprocessBroker(data_dir=copy)
    with contextlib.closing(_Stopper(again.broker)):
        yield again


class _Stopper:
    def __init__(self, broker: SubprocessBroker) -> None:
        self.close = broker.stop


# -- files that can be made again from the log --------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_first(path: Path) -> None:
    flip_bit(path, 0, bit=6)


def flip_middle(path: Path) -> None:
    flip_bit(path, path.stat().st_size // 2)


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 - 1])


def fill_with_noise(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(24, min(path.stat().st_size, 4_096))))


def move_the_first_offset(path: Path) -> None:
    """Each aborted transaction of this index seems to begin one record later; nothing else is wrong."""
    data = bytearray(path.read_bytes())
    for start in range(10, len(data), 34):
        first = int.from_bytes(data[start : start + 8], "big")
        data[start : start + 8] = (first + 1).to_bytes(8, "big")
    path.write_bytes(data)


DAMAGES: tuple[Damage, ...] = (remove, empty, flip_first, flip_middle, halve, fill_with_noise)


def apply(damage: Damage, paths: list[Path]) -> None:
    assert paths, "there is no such file to damage"
    for path in paths:
        if path.stat().st_size or damage in (remove, empty, fill_with_noise):
            damage(path)


def test_the_undamaged_control(story: Story) -> None:
    assert len(story.files(".log")) >= 3
    story.broker.start()
    story.assert_all_is_well()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_indexes_and_snapshots_are_repaired(story: Story, damage: Damage) -> None:
    """All kinds at once: each must be repaired from the log alone."""
    apply(damage, story.files(".index"))
    apply(damage, story.files(".timeindex"))
    apply(damage, story.files(".snapshot"))
    story.broker.start()
    story.assert_all_is_well()


@pytest.mark.parametrize("damage", (remove, flip_middle, fill_with_noise), ids=lambda damage: damage.__name__)
def test_epochs_and_checkpoints_are_repaired(story: Story, damage: Damage) -> None:
    home = Path(story.broker.data_dir)
    paths = [home / f"{TOPIC}-0" / "leader-epoch-checkpoint", *home.glob("*-checkpoint")]
    apply(damage, [path for path in paths if path.exists()])
    story.broker.start()
    story.assert_all_is_well()


@pytest.mark.parametrize("damage", (*DAMAGES, move_the_first_offset), ids=lambda damage: damage.__name__)
def test_indexes_of_aborted_transactions_are_repaired(story: Story, damage: Damage) -> None:
    """A lost or changed one would show aborted records; a reader of committed data sees none."""
    apply(damage, segments(story.broker.data_dir, LEDGER, suffix=".txnindex"))
    story.broker.start()
    found = committed_values(story.broker.bootstrap, LEDGER)
    assert [int(value.partition(b"-")[0]) for value in found] == [n for n in (1, 3, 5) for _ in range(2)]


# -- the log itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("story", ["killed"], indirect=True)
@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_tail_is_cut(story: Story, tear: Tear) -> None:
    """The last batch is torn: whatever of it was left is gone, the rest is served, and writing goes on."""
    last = story.files(".log")[-1]
    data = last.read_bytes()
    boundary, _ = batches(last)[-1]
    torn = tear(random.Random(7), data[boundary:], boundary)
    last.write_bytes(data[:boundary] + torn)
    story.broker.start()
    survived = BATCHES if torn.startswith(data[boundary:]) else BATCHES - 1
    assert read_values(story.broker.bootstrap, TOPIC) == [story.value(n) for n in range(survived)]
    with WireClient(story.broker.bootstrap) as connection:
        assert story.send(connection, survived) == (0, survived)


@pytest.mark.parametrize("place", ["first segment", "last segment"])
def test_a_hole_in_the_log_is_neither_served_nor_cut(story: Story, place: str) -> None:
    """A flipped bit with good data behind it. No byte is thrown away, no damaged batch leaves the broker.

    After a kill the log is checked at the start, after a clean end when it is read.
    """
    path = story.files(".log")[0 if place == "first segment" else -1]
    found = batches(path)
    position, header = found[len(found) // 2]
    flip_bit(path, position + header.size // 2)
    size_before = sum(each.stat().st_size for each in story.files(".log"))
    story.broker.start()
    assert read_values(story.broker.bootstrap, OTHER) == [b"untouched"]
    with WireClient(story.broker.bootstrap) as connection:
        part = fetch(connection, TOPIC, header.base_offset, max_wait_ms=0)
        assert part.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
        assert not part.records
    assert sum(each.stat().st_size for each in story.files(".log")) >= size_before


@pytest.mark.parametrize("story", ["stopped"], indirect=True)
def test_after_a_clean_end_only_the_damaged_batch_is_refused(story: Story) -> None:
    path = story.files(".log")[0]
    position, header = batches(path)[5]
    flip_bit(path, position + header.size // 2)
    story.broker.start()
    with WireClient(story.broker.bootstrap) as connection:
        before = iterate_headers(fetch(connection, TOPIC, 0, max_wait_ms=0).records)
        assert [each.base_offset for _, each in before] == list(range(header.base_offset))
        part = fetch(connection, TOPIC, header.base_offset, max_wait_ms=0)
        assert part.error_code == ErrorCode.CORRUPT_MESSAGE and not part.records
        assert (
            fetch_batches(connection, TOPIC, header.last_offset + 1)[0].base_offset == header.last_offset + 1
        )
        assert story.send(connection, BATCHES) == (0, BATCHES), "writing goes on"
    assert "damaged and not served" in story.broker.log_text()


@pytest.mark.parametrize("story", ["stopped"], indirect=True)
@pytest.mark.parametrize("is_torn", [True, False], ids=["within a batch", "between batches"])
def test_a_log_cut_short_after_a_clean_end_is_noticed(story: Story, is_torn: bool) -> None:
    """A part of the last batch, or all of it, is missing although it had been synced: said, never hidden."""
    last = story.files(".log")[-1]
    boundary, header = batches(last)[-1]
    last.write_bytes(last.read_bytes()[: boundary + (header.size // 2 if is_torn else 0)])
    story.broker.start()
    assert read_values(story.broker.bootstrap, OTHER) == [b"untouched"]
    assert (f"{TOPIC}-0 is offline" if is_torn else "data is lost") in story.broker.log_text()


def test_the_metadata_log_survives_a_torn_tail(story: Story) -> None:
    """Topics are on the disk before their creation is answered; half a record behind them harms nobody."""
    (newest,) = segments(story.broker.data_dir, "__cluster_metadata")[-1:]
    newest.write_bytes(newest.read_bytes() + random.Random(5).randbytes(700))
    story.broker.start()
    story.assert_all_is_well()


def test_the_end_of_the_metadata_log_is_not_cut_in_silence(story: Story) -> None:
    """A flipped bit in the last batch looks like a torn write, so it goes; how much went is said."""
    (newest,) = segments(story.broker.data_dir, "__cluster_metadata")[-1:]
    position, header = batches(newest)[-1]
    flip_bit(newest, position + header.size - 1)
    story.broker.start()
    assert f"{header.size} bytes at the end of the metadata log" in story.broker.log_text()
    assert read_values(story.broker.bootstrap, OTHER) == [b"untouched"]


def test_damage_in_the_middle_of_the_metadata_log_stops_the_start(story: Story) -> None:
    """With a sentence that says what to do, and without a change to the log."""
    (newest,) = segments(story.broker.data_dir, "__cluster_metadata")[-1:]
    found = batches(newest)
    position, header = found[len(found) // 2]
    flip_bit(newest, position + header.size - 1)
    before = newest.read_bytes()
    with pytest.raises(BrokerDidNotStart) as caught:
        story.broker.start()
    said = str(caught.value)
    assert f"tidemill: the metadata log is damaged, nothing was changed: restore {newest.parent} from" in said
    assert f"no batch at position {position}: its checksum is wrong" in said and "Traceback" not in said
    assert newest.read_bytes() == before


def test_stray_files_are_no_obstacle(story: Story) -> None:
    """What a crash in the middle of cleaning, swapping or deleting leaves behind, and what people leave."""
    home = Path(story.broker.data_dir)
    partition = home / f"{TOPIC}-0"
    (partition / "00000000000000000017.log.cleaned").write_bytes(b"half a segment")
    (partition / "00000000000000000003.log.deleted").write_bytes(b"to be removed")
    (partition / "00000000000000000003.index.deleted").write_bytes(b"")
    (partition / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n1\n")
    (partition / "notes.txt").write_text("by an operator")
    (home / "lost+found").mkdir()
    (home / f"gone-0.{'0' * 32}-delete").mkdir()
    story.broker.start()
    story.assert_all_is_well()
