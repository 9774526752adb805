from __future__ import annotations

import pytest
from group_driver import CLIENT, GroupDriver

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group.classic import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, ClassicGroup
from tidemill.coordination.group.contract import RequestContext
from tidemill.coordination.records.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataValue,
)
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_groups import ListGroupsRequest


def joined_pair(driver: GroupDriver) -> tuple[str, str]:
    """Leader and follower of generation 1, which have to sync."""
    driver.join_known(token="A")
    driver.join_known(token="B")
    driver.advance(6000)
    return driver.replies["A"].member_id, driver.replies["B"].member_id


class TestSync:
    def test_followers_wait_for_the_leader_and_the_record(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        assert driver.sync(follower, 1, token="F") is None
        answer = driver.sync(leader, 1, {leader: b"L", follower: b"F"})
        assert (answer.assignment, driver.replies["F"].assignment) == (b"L", b"F")
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        ((record, _),) = driver.log
        stored = record.value
        assert isinstance(stored, GroupMetadataValue) and record.value_version == 3
        assert (stored.generation, stored.leader, stored.protocol) == (1, leader, "range")
        assert {entry.member_id: entry.assignment for entry in stored.members} == {
            leader: b"L",
            follower: b"F",
        }

    def test_who_syncs_later_is_answered_at_once(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(leader, 1, {leader: b"L", follower: b"F"})
        assert driver.sync(follower, 1).assignment == b"F"

    def test_whom_the_leader_forgot_gets_nothing(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(leader, 1, {leader: b"L", "stranger": b"S"})
        assert driver.sync(follower, 1).assignment == b""

    def test_if_the_record_is_not_written_the_leader_can_try_again(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(follower, 1, token="F")
        driver.fails_appends = True
        assert driver.sync(leader, 1, {leader: b"L"}) == "not written" == driver.replies["F"]
        assert driver.classic().state is COMPLETING
        driver.fails_appends = False
        assert driver.join(member_id=leader).generation_id == 1
        assert driver.sync(leader, 1, {leader: b"L"}).assignment == b"L"

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
            ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"version": 5}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"version": 5, "group_id": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_refusals(self, options: dict[str, object], code: ErrorCode) -> None:
        driver = GroupDriver()
        leader, _ = joined_pair(driver)
        request = {"member_id": leader, "generation": 1, **options}
        assert driver.sync(**request).error_code == code  # type: ignore[arg-type]

    def test_in_a_rebalance_everybody_has_to_join_first(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=leader)
        assert driver.sync(follower, 1).error_code == ErrorCode.REBALANCE_IN_PROGRESS

    def test_who_never_syncs_is_out_after_the_rebalance_timeout(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(leader, 1, {leader: b"L", follower: b"F"})
        for _ in range(12):
            driver.advance(5000)
            driver.heartbeat(leader, 1)
            driver.heartbeat(follower, 1)
        assert driver.classic().state is PREPARING
        assert driver.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_if_the_leader_never_syncs_the_others_join_again(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(follower, 1, token="F")
        driver.advance(10_001)
        assert leader not in driver.classic().members, "its session ended"
        assert driver.replies["F"].error_code == ErrorCode.REBALANCE_IN_PROGRESS
        answer = driver.join(member_id=follower)
        assert (answer.generation_id, answer.leader) == (2, follower)


class TestHeartbeat:
    def test_it_keeps_the_session(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        for _ in range(5):
            driver.advance(9000)
            assert driver.heartbeat(member, 1) == ErrorCode.NONE
        driver.advance(10_000)
        assert driver.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.classic().state is EMPTY

    def test_refusals(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        assert driver.heartbeat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.heartbeat(leader, 0) == ErrorCode.ILLEGAL_GENERATION
        assert driver.heartbeat(leader, 1, group_id="other") == ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.heartbeat(leader, 1, group_id="") == ErrorCode.INVALID_GROUP_ID
        driver.join(member_id=leader)
        assert driver.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_while_others_sync_it_is_fine(self) -> None:
        driver = GroupDriver()
        leader, _ = joined_pair(driver)
        assert driver.heartbeat(leader, 1) == ErrorCode.NONE

    def test_a_member_that_fails_makes_a_rebalance_of_the_others(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.advance(9000)
        driver.heartbeat(follower, 1)
        driver.advance(1000)
        assert driver.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        assert [member.member_id for member in driver.classic().members] == [follower] != [leader]

    def test_who_waits_for_the_others_needs_no_heartbeats(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=leader, token="L")
        for _ in range(11):
            driver.advance(5000)
            driver.heartbeat(follower, 1)
        assert leader in driver.classic().members
        driver.join(member_id=follower)
        assert driver.replies["L"].generation_id == 2

    def test_a_commit_keeps_the_session_too(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        for offset in range(5):
            driver.advance(9000)
            assert driver.commit({("t", 0): offset}, member, 1) == [ErrorCode.NONE]

    def test_a_timer_that_fires_early_is_set_again(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        (key,) = [key for key in driver.timers if getattr(key, "member_id", None) == member]
        due_ms = driver.timers.pop(key)
        driver.run(driver.shard.on_timer(key, due_ms - 1))
        assert driver.timers[key] == due_ms and member in driver.classic().members


class TestLeave:
    def test_several_members_leave_at_once(self) -> None:
        driver = GroupDriver()
        one, two, three = driver.stable_group(3)
        answer = driver.leave((one, None), ("stranger", None), (two, None))
        codes = [entry.error_code for entry in answer.members]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
        assert answer.error_code == ErrorCode.NONE
        assert driver.heartbeat(three, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        assert driver.join(member_id=three).leader == three

    def test_before_version_3_the_error_is_that_of_the_response(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        assert driver.leave(("stranger", None), version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        answer = driver.leave((member, None), version=2)
        assert (answer.error_code, answer.members) == (ErrorCode.NONE, [])

    def test_the_last_one_leaves_an_empty_group_in_the_log(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        driver.leave((member, None))
        group = driver.classic()
        assert (group.state, group.generation, group.protocol) == (EMPTY, 2, None)
        record, _ = driver.log[-1]
        assert record.value == GroupMetadataValue(
            protocol_type="consumer",
            generation=2,
            protocol=None,
            leader=None,
            current_state_timestamp=driver.now_ms,
        )

    def test_if_that_is_not_written_it_is_tried_again_later(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        driver.fails_appends = True
        assert driver.leave((member, None)) == "not written"
        assert driver.classic().is_abandoned
        driver.fails_appends = False
        driver.advance(driver.settings.offsets_retention_check_interval_ms)
        assert driver.classic().state is EMPTY

    def test_a_static_member_is_removed_by_its_instance_id(self) -> None:
        driver = GroupDriver()
        driver.join(instance_id="one", token="A")
        driver.advance(3000)
        answer = driver.leave(("", "one"), ("", "two"))
        codes = [entry.error_code for entry in answer.members]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert driver.classic().state is EMPTY

    def test_a_pending_member_leaves_without_a_trace(self) -> None:
        driver = GroupDriver()
        refused = driver.join()
        assert driver.leave((refused.member_id, None)).members[0].error_code == ErrorCode.NONE
        assert driver.shard.group("g") is None

    def test_who_waits_is_told(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(follower, 1, token="F")
        driver.leave((follower, None))
        assert driver.replies["F"].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        driver.join(member_id=leader, token="L", protocols=[("range", b"new")])
        assert driver.replies["L"].generation_id == 2

    def test_an_unknown_group(self) -> None:
        driver = GroupDriver()
        answer = driver.leave(("m", None), ("", "i"))
        assert answer.error_code == 0
        assert [each.error_code for each in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


class TestLoading:
    def test_a_stable_group_survives_a_crash_with_fresh_sessions(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.advance(9999)
        driver.crash()
        driver.advance(9999)
        assert driver.heartbeat(leader, 1) == driver.heartbeat(follower, 1) == ErrorCode.NONE
        assert driver.sync(follower, 1).assignment == b"to " + follower.encode()
        assert driver.classic().members.leader == leader

    def test_a_generation_that_was_never_stored_is_forgotten(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=leader)
        driver.join(member_id=follower)
        assert driver.classic().generation == 2
        driver.crash()
        assert (driver.classic().state, driver.classic().generation) == (STABLE, 1)
        assert driver.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION

    def test_records_of_unknown_types_are_left_alone(self) -> None:
        driver = GroupDriver()
        driver.stable_group(1)
        key = ConsumerGroupMetadataKey(group_id="new")
        driver.shard.replay(CoordinatorRecord(99, key, ConsumerGroupMetadataValue()), 5, -1)
        assert driver.shard.unknown_records == 1 and driver.shard.group("new") is None

    def test_unloading_answers_everybody_who_waits(self) -> None:
        driver = GroupDriver()
        leader, follower = joined_pair(driver)
        driver.sync(follower, 1, token="sync")
        driver.join_known("other", token="join")
        driver.run(driver.shard.on_unloaded(driver.now_ms))
        assert driver.replies["sync"].error_code == ErrorCode.NOT_COORDINATOR
        assert driver.replies["join"].error_code == ErrorCode.NOT_COORDINATOR
        assert list(driver.shard.groups()) == [] and leader

    def test_an_illegal_transition_raises(self) -> None:
        group = ClassicGroup("g")
        with pytest.raises(RuntimeError, match="cannot go from Empty to Stable"):
            group.become(STABLE)
        group.become(DEAD)
        with pytest.raises(RuntimeError):
            group.become(PREPARING)


class TestAdministration:
    @staticmethod
    def ask(driver: GroupDriver, method: str, *arguments: object) -> list:  # type: ignore[type-arg]
        token = driver.token()
        driver.run(getattr(driver.shard, method)(*arguments, token, driver.now_ms))
        answer: list = driver.replies[token]  # type: ignore[type-arg]
        return answer

    def test_list_filters_by_state_and_type(self) -> None:
        driver = GroupDriver()
        driver.stable_group(1, "stable")
        driver.commit({("t", 0): 1}, group_id="simple")
        listed = self.ask(driver, "list_groups", ListGroupsRequest())
        assert [(entry.group_id, entry.protocol_type, entry.group_state) for entry in listed] == [
            ("stable", "consumer", "Stable"),
            ("simple", "", "Empty"),
        ]
        empty = self.ask(driver, "list_groups", ListGroupsRequest(states_filter=[" EMPTY", "Dead"]))
        assert [(entry.group_id, entry.group_type) for entry in empty] == [("simple", "classic")]
        assert self.ask(driver, "list_groups", ListGroupsRequest(types_filter=["consumer"])) == []
        assert len(self.ask(driver, "list_groups", ListGroupsRequest(types_filter=["Classic"]))) == 2

    def test_describe_shows_metadata_of_a_stable_group_only(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1, protocols=[("range", b"meta")])
        (stable,) = self.ask(driver, "describe_groups", ["g"], CLIENT)
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (shown,) = stable.members
        assert (shown.member_id, shown.client_id, shown.client_host) == (member, "client", "/127.0.0.1")
        assert (shown.member_metadata, shown.member_assignment) == (b"meta", b"to " + member.encode())
        driver.join()
        driver.join(member_id=member, protocols=[("range", b"meta")])
        (moving,) = self.ask(driver, "describe_groups", ["g"], CLIENT)
        assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
        assert moving.members[0].member_metadata == b""
        assert moving.members[0].member_assignment == b"to " + member.encode(), "it reads that until it syncs"

    def test_describing_a_group_that_is_not_there(self) -> None:
        driver = GroupDriver()
        (old,) = self.ask(driver, "describe_groups", ["g"], RequestContext(api_version=5))
        assert (old.error_code, old.group_state, old.error_message) == (ErrorCode.NONE, "Dead", None)
        (new,) = self.ask(driver, "describe_groups", ["g"], RequestContext(api_version=6))
        assert (new.error_code, new.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")

    def test_delete_takes_the_offsets_along(self) -> None:
        driver = GroupDriver()
        (member,) = driver.stable_group(1)
        driver.commit({("t", 0): 5, ("t", 1): 6}, member, 1)
        (refused, unknown) = self.ask(driver, "delete_groups", ["g", "other"])
        assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        driver.leave((member, None))
        (deleted,) = self.ask(driver, "delete_groups", ["g"])
        assert deleted.error_code == ErrorCode.NONE and driver.shard.group("g") is None
        assert driver.committed() == {}
        driver.crash()
        assert list(driver.shard.groups()) == [] and driver.committed() == {}
