from __future__ import annotations

import pytest
from group_driver import GroupDriver, error_codes, subscription

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group import shard as shard_module
from tidemill.coordination.group.contract import GroupSettings
from tidemill.coordination.records.group_records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitValue,
)
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequestGroup

T0, T1 = ("t", 0), ("t", 1)
HOUR_MS = 3_600_000
SHORT = GroupSettings(offsets_retention_ms=HOUR_MS)


class TestCommit:
    def test_what_is_committed_is_fetched(self) -> None:
        driver = GroupDriver()
        assert driver.commit({T0: 5}, metadata="note", leader_epoch=3) == [ErrorCode.NONE]
        found = driver.fetch([T0, T1])
        assert (found[T0].committed_offset, found[T0].committed_leader_epoch, found[T0].metadata) == (
            5,
            3,
            "note",
        )
        assert (found[T1].committed_offset, found[T1].committed_leader_epoch, found[T1].metadata) == (
            -1,
            -1,
            "",
        )
        assert found[T1].error_code == ErrorCode.NONE

    def test_the_record_is_kafkas(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5})
        ((record, producer_id),) = driver.log
        assert (record.type, record.value_version, producer_id) == (1, 4, -1)
        expected = OffsetCommitValue(offset=5, leader_epoch=-1, metadata="", commit_timestamp=driver.now_ms)
        assert record.value == expected

    def test_offsets_may_go_back_if_committed_so(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5})
        driver.commit({T0: 3})
        assert driver.committed() == {T0: 3}

    def test_metadata_has_a_limit_for_each_partition(self) -> None:
        driver = GroupDriver(GroupSettings(offset_metadata_max_bytes=4))
        assert driver.commit({T0: 1}, metadata="12345") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert driver.commit({T0: 1}, metadata="1234") == [ErrorCode.NONE]
        assert driver.commit({T0: 1}, metadata="\N{GRINNING FACE}" * 2) == [ErrorCode.NONE]
        too_large = driver.commit({T0: 1}, metadata="\N{GRINNING FACE}" * 3)
        assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE], "two units of UTF-16 each"
        too_large = driver.commit_in_transaction(7, {T0: 1}, metadata="12345")
        assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE]

    def test_topic_ids_are_handed_through(self) -> None:
        driver = GroupDriver()
        id = b"0123456789abcdef"
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        topic = OffsetCommitRequestTopic(name="t", topic_id=id, partitions=partitions)
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        context = shard_module.RequestContext(api_version=10)
        driver.run(driver.shard.commit_offsets(request, context, "commit", driver.now_ms))
        assert driver.replies["commit"].topics[0].topic_id == id
        driver.crash()
        everything = OffsetFetchRequestGroup(group_id="g", topics=None)
        driver.run(driver.shard.fetch_offsets(everything, False, "fetch", driver.now_ms))
        assert driver.replies["fetch"].topics[0].topic_id == id

    def test_a_legacy_record_counts(self) -> None:
        driver = GroupDriver()
        key = LegacyOffsetCommitKey(group="g", topic="t", partition=0)
        value = LegacyOffsetCommitValue(offset=9, metadata="m", commit_timestamp=1)
        driver.shard.replay(CoordinatorRecord(0, key, value), 0, -1)
        assert driver.committed() == {T0: 9}


class TestWhoMayCommit:
    def test_a_simple_consumer_makes_a_group_without_members(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5})
        listed = driver.classic().listed()
        assert (listed.protocol_type, listed.group_state) == ("", "Empty")
        driver.crash()
        assert driver.committed() == {T0: 5}

    def test_an_unknown_group_with_a_generation(self) -> None:
        driver = GroupDriver()
        assert driver.commit({T0: 5}, "m", 3, version=9) == [ErrorCode.GROUP_ID_NOT_FOUND]
        assert driver.commit({T0: 5}, "m", 3, version=8) == [ErrorCode.ILLEGAL_GENERATION]
        assert driver.commit_in_transaction(7, {T0: 5}, "m", 3) == [ErrorCode.ILLEGAL_GENERATION]

    def test_members_of_this_generation_only(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        assert driver.commit({T0: 5}, member, 1) == [ErrorCode.NONE]
        assert driver.commit({T0: 6}, member, 0) == [ErrorCode.ILLEGAL_GENERATION]
        assert driver.commit({T0: 6}, "stranger", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert driver.commit({T0: 6}) == [ErrorCode.UNKNOWN_MEMBER_ID], "the group has members"
        assert driver.committed() == {T0: 5}

    def test_in_a_rebalance_until_the_generation_ends(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=leader)
        assert driver.commit({T0: 5}, follower, 1) == [ErrorCode.NONE], "before it rejoins"
        driver.join(member_id=follower)
        assert driver.commit({T0: 6}, follower, 2) == [ErrorCode.REBALANCE_IN_PROGRESS]
        assert driver.commit({T0: 6}, follower, 1) == [ErrorCode.ILLEGAL_GENERATION]

    def test_in_a_transaction_the_state_does_not_matter(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=leader)
        driver.join(member_id=follower)
        assert driver.commit_in_transaction(7, {T0: 6}, follower, 2) == [ErrorCode.NONE]
        assert driver.commit_in_transaction(7, {T0: 6}) == [ErrorCode.NONE], "old clients name no member"
        assert driver.commit_in_transaction(7, {T0: 6}, follower, 1) == [ErrorCode.ILLEGAL_GENERATION]
        assert driver.commit_in_transaction(7, {T0: 6}, "stranger", 2) == [ErrorCode.UNKNOWN_MEMBER_ID]

    def test_an_empty_group_takes_commits_from_administrators(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        driver.leave((member, None))
        assert driver.commit({T0: 5}) == [ErrorCode.NONE]
        assert driver.commit({T0: 5}, member, 2) == [ErrorCode.UNKNOWN_MEMBER_ID]


class TestFetch:
    def test_all_offsets_of_a_group(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 1, T1: 2, ("u", 0): 3})
        driver.commit({T0: 9}, group_id="other")
        assert driver.committed() == {T0: 1, T1: 2, ("u", 0): 3}

    def test_an_unknown_group_has_no_offsets(self) -> None:
        driver = GroupDriver()
        assert driver.committed() == {}
        assert driver.fetch([T0])[T0].committed_offset == -1
        assert list(driver.shard.groups()) == []

    def test_stable_offsets_wait_for_open_transactions(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 1, T1: 1})
        driver.commit_in_transaction(7, {T0: 5})
        assert driver.committed() == {T0: 1, T1: 1}
        for found in (driver.fetch(require_stable=True), driver.fetch([T0, T1], require_stable=True)):
            assert (found[T0].error_code, found[T0].committed_offset) == (
                ErrorCode.UNSTABLE_OFFSET_COMMIT,
                -1,
            )
            assert found[T1].committed_offset == 1
        driver.end_transaction(7, is_commit=True)
        assert driver.fetch(require_stable=True)[T0].committed_offset == 5


class TestTransactions:
    @pytest.mark.parametrize(("is_commit", "expected"), [(True, {T0: 5}), (False, {})])
    def test_offsets_are_pending_until_the_marker(self, is_commit: bool, expected: dict) -> None:  # type: ignore[type-arg]
        driver = GroupDriver()
        driver.commit_in_transaction(7, {T0: 5})
        assert driver.committed() == {}
        driver.crash()
        assert driver.fetch([T0], require_stable=True)[T0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        driver.end_transaction(7, is_commit)
        assert driver.committed() == expected
        driver.crash()
        assert driver.committed() == expected
        assert driver.fetch([T0], require_stable=True)[T0].error_code == ErrorCode.NONE

    def test_a_marker_ends_only_its_own_transaction(self) -> None:
        driver = GroupDriver()
        driver.commit_in_transaction(7, {T0: 5})
        driver.commit_in_transaction(8, {T1: 6})
        driver.end_transaction(8, is_commit=True)
        assert driver.committed() == {T1: 6}
        assert driver.fetch([T0], require_stable=True)[T0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        driver.end_transaction(9, is_commit=True)

    def test_the_younger_record_wins_not_the_younger_marker(self) -> None:
        driver = GroupDriver()
        driver.commit_in_transaction(7, {T0: 120})
        driver.commit({T0: 110})
        driver.end_transaction(7, is_commit=True)
        assert driver.committed() == {T0: 110}

    def test_one_transaction_of_several_groups(self) -> None:
        driver = GroupDriver()
        driver.commit_in_transaction(7, {T0: 1})
        driver.commit_in_transaction(7, {T0: 2}, group_id="other")
        driver.end_transaction(7, is_commit=True)
        assert driver.committed() == {T0: 1} and driver.committed(group_id="other") == {T0: 2}

    def test_deleting_removes_what_is_pending(self) -> None:
        driver = GroupDriver()
        driver.commit_in_transaction(7, {T0: 5})
        assert delete(driver, T0) == [ErrorCode.NONE]
        driver.end_transaction(7, is_commit=True)
        assert driver.committed() == {}


def delete(driver: GroupDriver, *keys: tuple[str, int], group_id: str = "g") -> list[int]:
    topics = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for topic, index in keys
    ]
    token = driver.token()
    request = OffsetDeleteRequest(group_id=group_id, topics=topics)
    driver.run(driver.shard.delete_offsets(request, token, driver.now_ms))
    response = driver.replies[token]
    return [int(response.error_code)] if response.error_code else error_codes(response.topics)


class TestDelete:
    def test_a_deleted_offset_is_gone_for_good(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5, T1: 6})
        assert delete(driver, T0, ("unknown", 0)) == [ErrorCode.NONE, ErrorCode.NONE]
        assert driver.committed() == {T1: 6}
        assert len(driver.log) == 3, "one tombstone"
        driver.crash()
        assert driver.committed() == {T1: 6}

    def test_topics_that_are_read_keep_their_offsets(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1, protocols=[("range", subscription("t"))])
        driver.commit({T0: 5, ("u", 0): 6}, member, 1)
        assert delete(driver, T0, ("u", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        assert driver.committed() == {T0: 5}

    def test_refusals(self) -> None:
        driver = GroupDriver()
        assert delete(driver, T0) == [ErrorCode.GROUP_ID_NOT_FOUND]
        driver.stable_group(1, protocol_type="connect")
        assert delete(driver, T0) == [ErrorCode.NON_EMPTY_GROUP]


class TestExpiry:
    def test_a_simple_groups_offsets_expire_after_their_commit_and_the_group_with_them(self) -> None:
        driver = GroupDriver(SHORT)
        driver.commit({T0: 5})
        driver.advance(HOUR_MS // 2)
        driver.commit({T1: 6})
        driver.advance(HOUR_MS // 2)
        assert driver.committed() == {T1: 6}
        driver.advance(HOUR_MS)
        assert driver.shard.group("g") is None
        driver.crash()
        assert driver.shard.group("g") is None

    def test_retention_counts_from_when_the_group_became_empty(self) -> None:
        driver = GroupDriver(SHORT)
        (member,) = driver.stable_group(1, session_timeout_ms=1_800_000)
        driver.commit({T0: 5}, member, 1)
        for _ in range(4):
            driver.advance(HOUR_MS // 2 - 1)
            driver.heartbeat(member, 1)
        assert driver.committed() == {T0: 5}, "somebody may still read it"
        driver.leave((member, None))
        driver.advance(HOUR_MS - 1)
        driver.crash()
        assert driver.committed() == {T0: 5}
        driver.advance(HOUR_MS)
        assert driver.committed() == {} and driver.shard.group("g") is None

    def test_what_a_stable_group_does_not_read_any_more_expires(self) -> None:
        driver = GroupDriver(SHORT)
        options = {"protocols": [("range", subscription("t"))], "session_timeout_ms": 1_800_000}
        (member,) = driver.stable_group(1, **options)  # type: ignore[arg-type]
        driver.commit({T0: 5, ("u", 0): 6}, member, 1)
        for _ in range(4):
            driver.advance(HOUR_MS // 2 - 1)
            driver.heartbeat(member, 1)
        assert driver.committed() == {T0: 5}

    def test_what_a_transaction_is_about_to_commit_stays(self) -> None:
        driver = GroupDriver(SHORT)
        driver.commit({T0: 5, T1: 6})
        driver.commit_in_transaction(7, {T0: 7})
        driver.advance(2 * HOUR_MS)
        assert driver.committed() == {T0: 5} and driver.shard.group("g") is not None
        driver.end_transaction(7, is_commit=False)
        driver.advance(HOUR_MS)
        assert driver.shard.group("g") is None

    def test_old_clients_say_how_long(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5}, retention_ms=HOUR_MS, version=4)
        assert driver.log[0][0].value_version == 1  # type: ignore[union-attr]
        driver.advance(HOUR_MS - 1)
        assert driver.committed() == {T0: 5}
        driver.advance(HOUR_MS)
        assert driver.committed() == {}

    def test_many_expire_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shard_module, "MAX_TOMBSTONES", 10)
        driver = GroupDriver(SHORT)
        for partition in range(25):
            driver.commit({("t", partition): 1})
        outcome = driver.shard.on_timer(shard_module.ExpiryTimer(), driver.now_ms + HOUR_MS)
        assert len(outcome.records) == 10
        driver.advance(2 * HOUR_MS)
        assert driver.committed() == {} and driver.shard.group("g") is None


class TestDeletedTopics:
    def test_their_offsets_go_in_all_groups_pending_ones_too(self) -> None:
        driver = GroupDriver()
        driver.commit({T0: 5, ("u", 0): 6})
        driver.commit({T1: 7}, group_id="other")
        driver.commit_in_transaction(7, {T1: 8})
        driver.run(driver.shard.on_topics_deleted(["t", "unknown"], driver.now_ms))
        driver.end_transaction(7, is_commit=True)
        assert driver.committed() == {("u", 0): 6} and driver.committed(group_id="other") == {}
        driver.crash()
        assert driver.committed() == {("u", 0): 6} and driver.committed(group_id="other") == {}

    def test_many_go_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shard_module, "MAX_TOMBSTONES", 10)
        driver = GroupDriver()
        for partition in range(25):
            driver.commit({("t", partition): 1})
        driver.run(driver.shard.on_topics_deleted(["t"], driver.now_ms))
        driver.advance(0)
        assert driver.committed() == {}
