from __future__ import annotations

import dataclasses
import errno

import pytest
from metadata_quorum import CLUSTER_ID, DATA, DIRECTORY, HandClock, QuorumNode

from tidemill.metadata import quorum as quorum_module
from tidemill.metadata import records as r
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.quorum import ForeignQuorum, QuorumOfOne
from tidemill.metadata.quorum_state import QuorumState, decode_quorum_state
from tidemill.metadata.store import StoreSettings
from tidemill.metadata.topics import NewTopic, TopicDeletion
from tidemill.model.errors import ApiError, CorruptLog, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import SeededRandomness
from tidemill.testing.files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def node(files: MemoryFiles) -> QuorumNode:
    return QuorumNode(files)


def create(node: QuorumNode, *names: str) -> None:
    topics = [NewTopic(name, 2, configs=(("retention.ms", "7"),)) for name in names]
    outcomes = node.commit(node.controller.create_topics(node.quorum.latest_image, topics))
    assert all(outcome.is_success for outcome in outcomes)


def content(image: MetadataImage) -> MetadataImage:
    """Without its place in the log and what every start renews."""
    return dataclasses.replace(image, offset=0, epoch=0, timestamp_ms=0, brokers={}, open_transaction=None)


def epoch_on_disk(files: MemoryFiles) -> int:
    return decode_quorum_state(files.read_all(f"{DIRECTORY}/quorum-state")).leader_epoch


class TestStart:
    def test_a_new_cluster_begins_with_its_features_and_its_broker(self, node: QuorumNode) -> None:
        image = node.quorum.image
        assert dict(image.features) == {
            "metadata.version": 30,
            "group.version": 1,
            "share.version": 1,
            "transaction.version": 2,
        }
        assert image.cluster_id == CLUSTER_ID
        assert image.is_active(1) and node.quorum.leader_epoch == 1
        assert image.offset == node.quorum.next_offset - 1 == node.quorum.committed_offset

    def test_each_start_is_a_new_epoch_that_is_on_disk_first(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        for epoch in (2, 3, 4):
            node.restart()
            assert node.quorum.leader_epoch == epoch == epoch_on_disk(files)

    def test_the_image_survives_a_clean_stop_and_a_kill(self, node: QuorumNode) -> None:
        create(node, "orders", "a.b")
        before = node.quorum.image
        node.restart()
        assert content(node.quorum.image) == content(before)
        node.kill()
        node.start()
        after = node.quorum.image
        assert after.configs == before.configs and set(after.topics) == set(before.topics)
        assert after.topics["orders"].partitions[0].leader_epoch == 2

    def test_a_damaged_quorum_state_does_not_stop_the_node(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        node.stop()
        files.write_atomic(f"{DIRECTORY}/quorum-state", b"{")
        node.start()
        assert node.quorum.leader_epoch == 2 == epoch_on_disk(files)

    def test_the_log_of_a_larger_quorum_is_refused(self, files: MemoryFiles) -> None:
        files.make_directory(DIRECTORY)
        files.write_atomic(f"{DIRECTORY}/quorum-state", QuorumState(2, 5, (1, 2, 3)).encode())
        with pytest.raises(ForeignQuorum, match="1, 2, 3"):
            QuorumNode(files)

    def test_the_log_of_another_node_is_refused(self, files: MemoryFiles, node: QuorumNode) -> None:
        node.stop()
        with pytest.raises(ForeignQuorum):
            QuorumNode(files, node_id=2)

    def test_an_unended_transaction_is_aborted(self, node: QuorumNode) -> None:
        node.quorum.propose([r.BeginTransactionRecord(), r.TopicRecord(name="half", topic_id=b"h" * 16)])
        node.quorum.commit()
        node.restart()
        assert node.quorum.image.open_transaction is None and "half" not in node.quorum.image.topics
        create(node, "whole")


class TestCommit:
    def test_nothing_is_committed_before_the_sync(self, node: QuorumNode) -> None:
        quorum = node.quorum
        decision = node.controller.create_topics(quorum.latest_image, [NewTopic("x")])
        offset = quorum.propose(decision.records)
        assert "x" in quorum.latest_image.topics and "x" not in quorum.image.topics
        assert quorum.committed_offset < offset
        job = quorum.begin_sync()
        assert job is not None
        job.run()
        commit = quorum.complete_sync(job)
        assert commit.image is quorum.image and quorum.committed_offset == offset
        assert commit.changes.topics_created == {"x"}
        assert commit.changes.partitions == {TopicPartition("x", 0)}

    def test_proposals_made_meanwhile_share_the_next_sync(self, node: QuorumNode) -> None:
        quorum = node.quorum
        node.propose(node.controller.create_topics(quorum.latest_image, [NewTopic("a")]))
        first = quorum.begin_sync()
        assert first is not None and quorum.begin_sync() is None
        for name in "bc":
            node.propose(node.controller.create_topics(quorum.latest_image, [NewTopic(name)]))
        first.run()
        assert quorum.complete_sync(first).changes.topics_created == {"a"}
        assert set(quorum.image.topics) == {"a"} and set(quorum.latest_image.topics) == {"a", "b", "c"}
        commit = quorum.commit()
        assert commit is not None and commit.changes.topics_created == {"b", "c"}
        assert quorum.commit() is None

    def test_the_second_of_two_requests_in_flight_sees_the_first(self, node: QuorumNode) -> None:
        node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic("x")]))
        (second,) = node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic("x")]))
        assert second.error is ErrorCode.TOPIC_ALREADY_EXISTS

    def test_changes_of_several_proposals_are_merged(self, node: QuorumNode) -> None:
        create(node, "x")
        old_id = node.quorum.image.topics["x"].topic_id
        node.propose(node.controller.delete_topics(node.quorum.latest_image, [TopicDeletion("x")]))
        node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic("x")]))
        commit = node.quorum.commit()
        assert commit is not None and commit.changes.topics_deleted == {"x": old_id}
        assert commit.changes.topics_created == {"x"}

    def test_a_topic_that_came_and_went_between_two_syncs_was_never_there(self, node: QuorumNode) -> None:
        node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic("x")]))
        node.propose(node.controller.delete_topics(node.quorum.latest_image, [TopicDeletion("x")]))
        commit = node.quorum.commit()
        assert commit is not None and not commit.image.topics
        assert not commit.changes.topics_created and not commit.changes.topics_deleted

    def test_committed_is_what_a_power_loss_leaves(self, files: MemoryFiles, node: QuorumNode) -> None:
        create(node, "kept")
        node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic("lost")]))
        files.lose_power()
        node.start()
        assert set(node.quorum.image.topics) == {"kept"}

    @pytest.mark.parametrize("seed", range(12))
    def test_power_loss_at_any_moment_loses_nothing_committed(self, files: MemoryFiles, seed: int) -> None:
        settings = StoreSettings(snapshot_after_bytes=600)
        node = QuorumNode(files, settings=settings)
        randomness = SeededRandomness(seed)
        committed: set[str] = set()
        for step in range(40):
            name = f"topic-{step}"
            node.propose(node.controller.create_topics(node.quorum.latest_image, [NewTopic(name)]))
            if randomness.below(3):
                node.quorum.commit()
                committed = set(node.quorum.image.topics)
            job = node.quorum.begin_snapshot()
            if job is not None:
                job.run()
                node.quorum.complete_snapshot(job)
            if randomness.below(6) == 0:
                files.lose_power(randomness)
                node.start()
                assert set(node.quorum.image.topics) >= committed

    def test_a_full_disk_refuses_and_the_node_goes_on(self, files: MemoryFiles, node: QuorumNode) -> None:
        files.fail("write", errno.ENOSPC)
        decision = node.controller.create_topics(node.quorum.latest_image, [NewTopic("x")])
        with pytest.raises(OSError):
            node.quorum.propose(decision.records)
        assert "x" not in node.quorum.latest_image.topics
        create(node, "x")
        node.kill()
        node.start()
        assert set(node.quorum.image.topics) == {"x"}

    def test_after_a_failed_sync_nothing_is_ever_committed_again(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        quorum = node.quorum
        node.propose(node.controller.create_topics(quorum.latest_image, [NewTopic("x")]))
        files.fail("sync", errno.EIO)
        job = quorum.begin_sync()
        assert job is not None
        with pytest.raises(OSError):
            job.run()
        with pytest.raises(ApiError):
            quorum.complete_sync(job)
        assert "x" not in quorum.image.topics
        with pytest.raises(ApiError):
            quorum.propose([r.NoOpRecord()])

    def test_what_cannot_be_replayed_never_reaches_the_disk(self, node: QuorumNode) -> None:
        end = node.quorum.next_offset
        with pytest.raises(CorruptLog):
            node.quorum.propose([r.RemoveTopicRecord(topic_id=b"x" * 16)])
        assert node.quorum.next_offset == end

    def test_a_proposal_of_nothing_is_committed_with_what_was_before(self, node: QuorumNode) -> None:
        assert node.quorum.propose([]) == node.quorum.committed_offset


class TestLargeProposals:
    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quorum_module, "MAX_RECORDS_PER_BATCH", 4)

    def test_they_become_a_transaction(self, node: QuorumNode) -> None:
        node.commit(node.controller.create_topics(node.quorum.latest_image, [NewTopic("x", 20)]))
        assert len(node.quorum.image.topics["x"].partitions) == 20
        before = content(node.quorum.image)
        node.restart()
        assert content(node.quorum.image) == before

    def test_a_disk_that_fills_in_the_middle_leaves_nothing(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        decision = node.controller.create_topics(node.quorum.latest_image, [NewTopic("x", 20)])
        files.capacity_bytes = files.used_bytes() + 700
        with pytest.raises(OSError):
            node.quorum.propose(decision.records)
        files.capacity_bytes = None
        assert "x" not in node.quorum.latest_image.topics
        create(node, "y")
        node.restart()
        assert set(node.quorum.image.topics) == {"y"}


class TestSnapshots:
    def test_snapshot_and_tail_give_the_same_image(self, files: MemoryFiles, node: QuorumNode) -> None:
        create(node, "a", "b")
        node.snapshot()
        create(node, "c")
        before = content(node.quorum.image)
        node.restart()
        assert content(node.quorum.image) == before

    def test_the_two_newest_are_kept_and_the_log_from_the_older(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        ends = []
        for name in "abcd":
            create(node, name)
            node.snapshot()
            ends.append(node.quorum.image.offset + 1)
        kept = [name for name in files.list(DIRECTORY) if name.endswith(".checkpoint")]
        assert sorted(kept) == [f"{end:020d}-{1:010d}.checkpoint" for end in ends[-2:]]
        logs = sorted(name for name in files.list(DIRECTORY) if name.endswith(".log"))
        assert logs[0] == f"{ends[-2]:020d}.log"
        before = content(node.quorum.image)
        node.restart()
        assert content(node.quorum.image) == before

    def test_if_the_newest_is_damaged_the_older_one_serves(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        for name in "ab":
            create(node, name)
            node.snapshot()
        create(node, "c")
        before = content(node.quorum.image)
        node.stop()
        newest = max(name for name in files.list(DIRECTORY) if name.endswith(".checkpoint"))
        files.flip_bit(f"{DIRECTORY}/{newest}", 8 * 200)
        node.start()
        assert content(node.quorum.image) == before

    def test_without_any_whole_snapshot_a_log_without_its_beginning_is_refused(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        for name in "abc":
            create(node, name)
            node.snapshot()
        node.stop()
        for name in files.list(DIRECTORY):
            if name.endswith(".checkpoint"):
                files.remove(f"{DIRECTORY}/{name}")
        with pytest.raises(CorruptLog, match="no whole snapshot"):
            node.start()

    def test_a_log_that_ends_before_the_snapshot_begins_anew_behind_it(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        create(node, "a")
        node.snapshot()
        before = content(node.quorum.image)
        node.stop()
        for name in files.list(DIRECTORY):
            if not name.endswith(".checkpoint"):
                files.remove(f"{DIRECTORY}/{name}")
        node.start()
        assert content(node.quorum.image) == before and node.quorum.leader_epoch == 2

    def test_it_is_due_after_bytes_or_time_and_only_if_something_changed(self, files: MemoryFiles) -> None:
        node = QuorumNode(files, settings=StoreSettings(snapshot_after_bytes=2_000, snapshot_after_ms=1_000))
        assert node.quorum.begin_snapshot() is None
        for index in range(12):
            create(node, f"t{index}")
        job = node.quorum.begin_snapshot()
        assert job is not None and node.quorum.begin_snapshot() is None
        job.run()
        assert node.quorum.complete_snapshot(job)
        node.clock.now_ms += 1_000
        assert node.quorum.begin_snapshot() is None
        create(node, "more")
        assert node.quorum.begin_snapshot() is not None

    def test_a_snapshot_that_fails_leaves_everything_as_it_was(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        create(node, "a")
        job = node.quorum.begin_snapshot(now=True)
        assert job is not None
        files.fail("write", errno.ENOSPC)
        with pytest.raises(OSError):
            job.run()
        assert not node.quorum.complete_snapshot(job)
        node.snapshot()
        node.restart()
        assert set(node.quorum.image.topics) == {"a"}

    def test_a_crash_in_the_middle_of_a_snapshot_leaves_no_trace(
        self, files: MemoryFiles, node: QuorumNode
    ) -> None:
        create(node, "a")
        files.write_atomic(f"{DIRECTORY}/{7:020d}-{1:010d}.checkpoint.part", b"half")
        node.kill()
        node.start()
        assert not [name for name in files.list(DIRECTORY) if name.endswith(".part")]


def test_a_quorum_opens_where_nothing_is_yet() -> None:
    files = MemoryFiles()
    files.make_directory(DATA)
    quorum = QuorumOfOne.open(files, DATA, node_id=7, cluster_id=CLUSTER_ID, clock=HandClock())
    commit = quorum.commit()
    assert commit is not None and commit.changes.features == set(commit.image.features)
    assert quorum.image.offset == len(quorum.image.features), (
        "a change of the leader, then one record for each"
    )
