from __future__ import annotations

import pytest
from group_driver import CLIENT, GroupDriver, subscription

from tidemill.coordination.group.classic import COMPLETING, EMPTY, PREPARING, STABLE
from tidemill.coordination.group.contract import GroupSettings, RequestContext
from tidemill.model.errors import ErrorCode

OLD_CLIENT = RequestContext("old", "/127.0.0.1", api_version=3)


class TestNewMembers:
    def test_a_dynamic_member_gets_an_id_first_and_joins_with_it(self) -> None:
        driver = GroupDriver()
        refused = driver.join()
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert refused.member_id.startswith("client-") and len(refused.member_id) == len("client-") + 36
        assert driver.classic().state is EMPTY
        assert driver.join(member_id=refused.member_id, token="A") is None
        assert driver.classic().state is PREPARING

    def test_before_version_4_it_joins_at_once(self) -> None:
        driver = GroupDriver()
        assert driver.join(context=OLD_CLIENT, token="A") is None
        driver.advance(3000)
        assert driver.replies["A"].member_id.startswith("old-")

    def test_version_0_takes_the_session_timeout_for_the_rebalance_timeout(self) -> None:
        driver = GroupDriver()
        driver.join(context=RequestContext("old", api_version=0), rebalance_timeout_ms=-1)
        assert driver.classic().members.rebalance_timeout_ms == 10_000

    def test_an_id_nobody_comes_back_with_is_forgotten_with_its_group(self) -> None:
        driver = GroupDriver()
        refused = driver.join()
        driver.advance(10_000)
        assert driver.shard.group("g") is None and not driver.log
        assert driver.join(member_id=refused.member_id).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_first_rebalance_waits_for_more_members(self) -> None:
        driver = GroupDriver()
        first, _ = driver.join_known(token="A", rebalance_timeout_ms=10_000)
        driver.advance(1000)
        second, _ = driver.join_known(token="B", rebalance_timeout_ms=10_000)
        driver.advance(2000)
        assert "A" not in driver.replies, "somebody came: the delay starts again"
        driver.advance(3000)
        leader, follower = driver.replies["A"], driver.replies["B"]
        assert (leader.generation_id, leader.leader, follower.leader) == (1, first, first)
        assert [entry.member_id for entry in leader.members] == [first, second]
        assert follower.members == [] and not leader.skip_assignment
        assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")

    def test_the_delay_is_never_longer_than_the_rebalance_timeout(self) -> None:
        driver = GroupDriver()
        driver.join_known(token="A", rebalance_timeout_ms=7000)
        for _ in range(3):
            driver.advance(2400)
            driver.join_known(rebalance_timeout_ms=7000)
        assert driver.replies["A"].generation_id == 1

    def test_a_member_in_its_first_join_is_dropped_if_it_takes_too_long(self) -> None:
        driver = GroupDriver(GroupSettings(new_member_join_timeout_ms=20_000))
        (member,) = driver.stable_group(1)
        driver.join_known(token="B", session_timeout_ms=6000)
        for _ in range(10):
            driver.advance(3000)
            driver.heartbeat(member, 1)
        assert driver.replies["B"].error_code == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_what_is_refused_leaves_no_group(self, options: dict[str, object], code: ErrorCode) -> None:
        driver = GroupDriver()
        assert driver.join(**options).error_code == code  # type: ignore[arg-type]
        assert list(driver.shard.groups()) == []

    def test_a_stranger_and_other_protocols_are_refused_by_a_group(self) -> None:
        driver = GroupDriver()
        driver.stable_group(1)
        assert driver.join(member_id="stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        other = driver.join(protocols=[("sticky", b"")])
        assert other.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        connect = driver.join(protocol_type="connect")
        assert connect.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_a_pending_member_has_no_instance_id(self) -> None:
        driver = GroupDriver()
        refused = driver.join()
        answer = driver.join(member_id=refused.member_id, instance_id="i")
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


class TestProtocolVote:
    def test_only_what_all_can_do_counts_and_most_votes_win(self) -> None:
        driver = GroupDriver()
        lists = (["sticky", "range"], ["range", "roundrobin"], ["roundrobin", "range"])
        for index, names in enumerate(lists):
            driver.join_known(token=index, protocols=[(name, name.encode()) for name in names])
        driver.advance(6000)
        assert driver.replies[0].protocol_name == "range"
        assert [entry.metadata for entry in driver.replies[0].members] == [b"range"] * 3

    def test_the_favourite_of_most_is_taken(self) -> None:
        driver = GroupDriver()
        for index, names in enumerate((["a", "b"], ["b", "a"], ["b", "a"])):
            driver.join_known(token=index, protocols=[(name, b"") for name in names])
        driver.advance(6000)
        assert driver.replies[0].protocol_name == "b"


class TestRejoin:
    def test_a_follower_with_the_same_metadata_is_told_the_generation_again(self) -> None:
        driver = GroupDriver()
        _, follower = driver.stable_group()
        answer = driver.join(member_id=follower)
        assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
        assert driver.classic().state is STABLE

    def test_a_follower_with_other_metadata_makes_a_rebalance(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        assert driver.join(member_id=follower, protocols=[("range", b"new")], token="F") is None
        assert driver.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        answer = driver.join(member_id=leader)
        assert answer.generation_id == driver.replies["F"].generation_id == 2
        assert [entry.metadata for entry in answer.members] == [b"", b"new"]

    def test_the_leader_of_a_stable_group_asks_for_a_rebalance_by_joining(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        assert driver.join(member_id=leader, token="L") is None
        assert driver.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_who_lost_the_answer_while_others_sync_gets_it_again(self) -> None:
        driver = GroupDriver()
        member, _ = driver.join_known(token="A")
        driver.advance(3000)
        assert driver.classic().state is COMPLETING
        again = driver.join(member_id=member)
        assert again == driver.replies["A"] and len(again.members) == 1

    def test_other_metadata_while_others_sync_sends_them_back(self) -> None:
        driver = GroupDriver()
        driver.join_known(token="A")
        driver.join_known(token="B")
        driver.advance(6000)
        leader, follower = driver.replies["A"].member_id, driver.replies["B"].member_id
        assert driver.sync(follower, 1, token="sync") is None
        assert driver.join(member_id=leader, protocols=[("range", b"new")]) is None
        assert driver.replies["sync"].error_code == ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_member_that_asks_twice_waits_once(self) -> None:
        driver = GroupDriver()
        member, _ = driver.join_known(token="first")
        assert driver.join(member_id=member, token="second") is None
        assert driver.replies["first"].error_code == ErrorCode.REBALANCE_IN_PROGRESS
        driver.advance(3000)
        assert driver.replies["second"].generation_id == 1

    def test_who_does_not_rejoin_in_time_is_out(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group(rebalance_timeout_ms=20_000)
        driver.join(member_id=leader, token="L", rebalance_timeout_ms=20_000)
        for _ in range(10):
            driver.advance(2000)
            code = driver.heartbeat(follower, 1)
        assert code == ErrorCode.UNKNOWN_MEMBER_ID
        assert [entry.member_id for entry in driver.replies["L"].members] == [leader]

    def test_if_the_old_leader_does_not_rejoin_another_leads(self) -> None:
        driver = GroupDriver()
        leader, follower = driver.stable_group()
        driver.join(member_id=follower, token="F", protocols=[("range", b"new")])
        driver.leave((leader, None))
        assert driver.replies["F"].leader == follower and driver.replies["F"].generation_id == 2

    def test_a_pending_member_is_waited_for(self) -> None:
        driver = GroupDriver()
        (leader,) = driver.stable_group(1)
        pending = driver.join().member_id
        assert driver.join(member_id=leader, token="L") is None, "the pending member may come any moment"
        driver.join(member_id=pending, token="P")
        assert driver.replies["L"].generation_id == driver.replies["P"].generation_id == 2


class TestStaticMembers:
    @staticmethod
    def stable_pair(driver: GroupDriver) -> tuple[str, str]:
        driver.join(instance_id="one", token=1)
        driver.join(instance_id="two", token=2)
        driver.advance(6000)
        one, two = driver.replies[1].member_id, driver.replies[2].member_id
        driver.sync(two, 1)
        driver.sync(one, 1, {one: b"1", two: b"2"})
        assert driver.classic().state is STABLE
        return one, two

    def test_a_static_member_needs_no_second_step(self) -> None:
        driver = GroupDriver()
        one, _ = self.stable_pair(driver)
        assert one.startswith("one-")

    def test_a_follower_comes_back_without_a_rebalance(self) -> None:
        driver = GroupDriver()
        one, two = self.stable_pair(driver)
        answer = driver.join(instance_id="two")
        assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, one)
        assert answer.member_id != two and answer.members == [] and not answer.skip_assignment
        assert driver.classic().state is STABLE
        assert driver.sync(answer.member_id, 1, instance_id="two").assignment == b"2"
        assert driver.heartbeat(two, 1, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
        assert driver.heartbeat(two, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        driver.crash()
        assert driver.heartbeat(answer.member_id, 1, instance_id="two") == ErrorCode.NONE

    def test_a_leader_that_comes_back_skips_the_assignment(self) -> None:
        driver = GroupDriver()
        _, two = self.stable_pair(driver)
        answer = driver.join(instance_id="one")
        assert answer.leader == answer.member_id and answer.skip_assignment
        assert {entry.member_id for entry in answer.members} == {answer.member_id, two}
        assert driver.sync(answer.member_id, 1, instance_id="one").assignment == b"1"

    def test_an_old_client_that_led_is_told_that_another_leads(self) -> None:
        driver = GroupDriver()
        one, _ = self.stable_pair(driver)
        answer = driver.join(instance_id="one", context=RequestContext("c", api_version=8))
        assert answer.leader == one != answer.member_id and not answer.skip_assignment
        assert driver.classic().members.leader == answer.member_id

    def test_if_the_record_is_not_written_the_old_member_stays(self) -> None:
        driver = GroupDriver()
        one, two = self.stable_pair(driver)
        driver.fails_appends = True
        assert driver.join(instance_id="two") == "not written"
        assert driver.heartbeat(two, 1, instance_id="two") == ErrorCode.NONE
        driver.advance(5000)
        driver.heartbeat(one, 1)
        driver.advance(5000)
        assert two not in driver.classic().members, "its session still ends"

    def test_a_changed_protocol_makes_a_rebalance(self) -> None:
        driver = GroupDriver()
        both = [("range", b""), ("sticky", b"")]
        driver.join(instance_id="one", token=1, protocols=both)
        driver.advance(3000)
        one = driver.replies[1].member_id
        driver.sync(one, 1, {one: b"1"})
        answer = driver.join(instance_id="one", protocols=[("sticky", b"")])
        assert (answer.generation_id, answer.protocol_name) == (2, "sticky")

    def test_a_zombie_is_fenced_everywhere(self) -> None:
        driver = GroupDriver()
        _, two = self.stable_pair(driver)
        driver.join(instance_id="two")
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert driver.join(member_id=two, instance_id="two").error_code == fenced
        assert driver.sync(two, 1, instance_id="two").error_code == fenced
        assert driver.commit({("t", 0): 1}, two, 1, instance_id="two") == [fenced]
        assert driver.leave((two, "two")).members[0].error_code == fenced

    def test_its_waiting_predecessor_is_fenced(self) -> None:
        driver = GroupDriver()
        driver.join(instance_id="one", token="old")
        assert driver.join(instance_id="one", token="new") is None
        assert driver.replies["old"].error_code == ErrorCode.FENCED_INSTANCE_ID
        driver.advance(3000)
        assert len(driver.replies["new"].members) == 1

    def test_one_that_comes_back_while_others_sync_makes_a_rebalance(self) -> None:
        driver = GroupDriver()
        driver.join(instance_id="one", token=1)
        driver.join(instance_id="two", token=2)
        driver.advance(6000)
        driver.sync(driver.replies[2].member_id, 1, token="sync")
        assert driver.join(instance_id="one") is None
        assert driver.replies["sync"].error_code == ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_static_member_that_does_not_rejoin_stays_until_its_session_ends(self) -> None:
        driver = GroupDriver()
        one, two = self.stable_pair(driver)
        driver.join(member_id=one, instance_id="one", token="L", session_timeout_ms=100_000)
        for _ in range(12):
            driver.advance(5000)
            driver.heartbeat(two, 1, instance_id="two")
        assert {entry.member_id for entry in driver.replies["L"].members} == {one, two}


class TestGroupSize:
    def test_the_limit_holds_for_new_members(self) -> None:
        driver = GroupDriver(GroupSettings(max_size=2))
        one, two = driver.stable_group(2)
        refused = driver.join(context=OLD_CLIENT)
        assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        assert driver.join(member_id=two).error_code == ErrorCode.NONE
        driver.leave((one, None))
        driver.join(member_id=two)
        assert driver.join().error_code == ErrorCode.MEMBER_ID_REQUIRED

    def test_in_a_rebalance_those_count_who_have_rejoined(self) -> None:
        driver = GroupDriver(GroupSettings(max_size=1))
        driver.join_known(token="A")
        assert driver.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_a_group_above_a_lowered_limit_sheds_its_slowest(self) -> None:
        driver = GroupDriver()
        members = driver.stable_group(3)
        driver.settings = GroupSettings(max_size=2)
        driver.crash()
        assert driver.classic().state is PREPARING
        answers = [driver.join(member_id=member_id, token=member_id) for member_id in members]
        assert answers[2].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert driver.replies[members[0]].generation_id == driver.replies[members[1]].generation_id == 2


def test_the_topics_of_a_group_are_read_from_its_metadata() -> None:
    driver = GroupDriver()
    driver.stable_group(1, protocols=[("range", subscription("a", "b"))])
    group = driver.classic()
    assert group.is_subscribed_to("a") and not group.is_subscribed_to("c")
    opaque = GroupDriver()
    opaque.stable_group(1, protocols=[("range", b"?")])
    assert opaque.classic().is_subscribed_to("anything")
    assert CLIENT.client_host == opaque.classic().described().members[0].client_host
