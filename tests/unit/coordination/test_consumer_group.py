"""The newer group protocol: joining, reconciling, fencing, leaving, static members, metadata, expressions."""

from __future__ import annotations

import pytest
from consumer_driver import REBALANCE_TIMEOUT_MS, VERSION_1, ConsumerDriver, settle, topic_id

from tidemill.coordination.group.consumer_group import MemberState
from tidemill.coordination.group.contract import ConsumerSettings, GroupSettings, RequestContext
from tidemill.coordination.records.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.consumer_group_heartbeat import TopicPartitions
from tidemill.wire.schema import encode

SESSION_MS = 45_000


def small_group(**changes: object) -> GroupSettings:
    return GroupSettings(consumer=ConsumerSettings(**changes))  # type: ignore[arg-type]


@pytest.fixture
def driver() -> ConsumerDriver:
    return ConsumerDriver({"orders": 4})


# -- joining and reconciling ------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    reply = one.beat()
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (0, "m-1", 2)
    assert reply.heartbeat_interval_ms == 5000
    assert one.owned == {("orders", index) for index in range(4)}
    group = driver.consumer()
    assert (group.state, group.epoch, group.target_epoch) == ("Stable", 2, 2)


def test_partitions_are_given_up_before_they_are_given(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    joined = two.beat()
    assert joined.member_epoch == 3 and two.partitions == []
    group = driver.consumer()
    assert group.members["m-2"].state is MemberState.UNRELEASED
    assert group.state == "Reconciling"
    revoking = one.beat()
    assert revoking.member_epoch == 2 and len(one.partitions) == 2
    assert driver.consumer().members["m-1"].state is MemberState.UNREVOKED
    assert two.beat().member_epoch == 3 and two.partitions == [], (
        "the first has not said that it gave them up"
    )
    assert one.beat().member_epoch == 3
    two.beat()
    assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3] and len(two.partitions) == 2
    assert driver.consumer().state == "Stable"


def test_an_unchanged_assignment_is_not_sent_again(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    one.beat()
    assert one.beat(complete=False).assignment is None
    assert one.beat().assignment is not None, "a complete request asks for it"


def test_a_heartbeat_of_a_stable_member_writes_nothing(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    one.beat()
    one.beat()
    written = len(driver.log)
    one.beat()
    one.beat(complete=False)
    assert len(driver.log) == written


def test_version_0_makes_the_member_id(driver: ConsumerDriver) -> None:
    request = driver.member("").request()
    reply = driver.heartbeat_raw(RequestContext(api_version=0), **request)
    assert reply.error_code == 0 and len(reply.member_id) == 36
    refused = driver.heartbeat_raw(VERSION_1, **request)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_a_changed_subscription_takes_partitions_away_and_brings_others() -> None:
    driver = ConsumerDriver({"orders": 2, "bills": 2})
    one = driver.member("m-1")
    one.beat()
    one.topics = ["bills"]
    settle(one)
    assert one.owned == {("bills", 0), ("bills", 1)}
    assert driver.consumer().state == "Stable"


def test_a_member_may_wait_for_topics_to_come(driver: ConsumerDriver) -> None:
    """A client that matches its pattern itself names no topic until there is one."""
    one, early = driver.member("m-1"), driver.member("m-2", topics=[])
    one.beat()
    joined = early.beat()
    assert (joined.error_code, joined.member_epoch) == (0, 2), "nothing changed for anybody"
    assert early.partitions == [] and len(one.partitions) == 4
    early.topics = ["orders"]
    early.beat()
    settle(one, early)
    assert sorted(one.partitions + early.partitions) == [0, 1, 2, 3] and len(early.partitions) == 2


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": [TopicPartitions(topic_id=bytes(16))]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "["}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_are_refused(driver: ConsumerDriver, changes: dict[str, object], code: int) -> None:
    reply = driver.heartbeat_raw(**{**driver.member("m-1").request(), **changes})
    assert reply.error_code == code and reply.error_message
    assert driver.log == [] and driver.shard.group("g") is None


def test_a_member_with_a_wrong_epoch_is_fenced(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    one.beat()
    one.epoch = 7
    assert one.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = driver.member("m-2")
    stranger.epoch = 2
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_answer_was_lost_may_come_with_the_epoch_before(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    two.beat()
    one.beat()
    lost = driver.heartbeat_raw(**one.request())
    assert lost.member_epoch == 3 and one.epoch == 2
    assert one.beat().error_code == 0 and one.epoch == 3
    one.epoch = 2
    owner = two.beat() and next(iter(driver.consumer().members["m-2"].assigned))
    one.assigned.add((owner, two.partitions[0]))
    assert one.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH, "it owns what it was not given"


def test_a_member_that_begins_again_owns_nothing_of_before(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    settle(one, two)
    one.epoch, one.assigned = 0, set()
    assert one.beat().error_code == 0
    settle(one, two)
    assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3]


def test_a_full_group_refuses_newcomers_only() -> None:
    driver = ConsumerDriver({"orders": 4}, small_group(max_size=1))
    one = driver.member("m-1")
    one.beat()
    assert driver.member("m-2").beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    unknown = driver.member("m-2")
    unknown.epoch = 3
    assert unknown.beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.beat().error_code == 0


# -- leaving and time-outs --------------------------------------------------------------------------------


def test_who_leaves_sets_its_partitions_free(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    settle(one, two)
    reply = two.leave()
    assert (reply.error_code, reply.member_epoch) == (0, -1)
    one.beat()
    assert one.partitions == [0, 1, 2, 3]
    one.leave()
    group = driver.consumer()
    assert group.is_empty and group.state == "Empty" and not group.owners and not group.target


def test_a_silent_member_is_removed_when_its_session_is_over(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    settle(one, two)
    driver.advance(SESSION_MS - 1)
    one.beat()
    driver.advance(1)
    assert set(driver.consumer().members) == {"m-1"}
    one.beat()
    assert one.partitions == [0, 1, 2, 3]
    assert two.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_partitions_in_time_is_removed(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    two.beat()
    one.beat()
    for _ in range(3):
        driver.advance(REBALANCE_TIMEOUT_MS // 3)
        two.beat()
        stuck = driver.heartbeat_raw(group_id="g", member_id="m-1", member_epoch=2)
    assert stuck.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    two.beat()
    assert two.partitions == [0, 1, 2, 3]


def test_the_time_to_give_up_is_over_when_it_is_done(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    settle(one, two)
    for _ in range(4):
        driver.advance(REBALANCE_TIMEOUT_MS // 3)
        settle(one, two, rounds=1)
    assert set(driver.consumer().members) == {"m-1", "m-2"}


# -- static members ---------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2", instance_id="i-2")
    settle(one, two)
    had, epoch = two.owned, driver.consumer().epoch
    assert two.leave(for_good=False).member_epoch == -2
    one.beat()
    assert len(one.partitions) == 2, "its partitions wait for it"
    heir = driver.member("m-3", instance_id="i-2")
    heir.beat()
    assert heir.owned == had and driver.consumer().epoch == epoch, "no rebalance"
    assert set(driver.consumer().members) == {"m-1", "m-3"}
    assert two.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    two.epoch = 3
    assert two.beat().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_that_is_here_cannot_be_taken(driver: ConsumerDriver) -> None:
    one = driver.member("m-1", instance_id="i")
    one.beat()
    other = driver.member("m-2", instance_id="i")
    assert other.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert other.leave(for_good=False).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert one.beat().error_code == 0


def test_a_static_member_that_stays_away_is_removed(driver: ConsumerDriver) -> None:
    one = driver.member("m-1", instance_id="i")
    one.beat()
    one.leave(for_good=False)
    driver.advance(SESSION_MS)
    assert driver.consumer().is_empty


# -- assignors --------------------------------------------------------------------------------------------


def test_most_members_choose_the_assignor() -> None:
    driver = ConsumerDriver({"orders": 3, "bills": 3})
    names = ["orders", "bills"]
    members = [driver.member(f"m-{n}", topics=names, assignor="range") for n in (1, 2)]
    members.append(driver.member("m-3", topics=names, assignor="uniform"))
    settle(*members)
    assert driver.describe().assignor_name == "range"
    for member in members:
        assert len({index for _, index in member.owned}) == 1 and len(member.owned) == 2


# -- topics -----------------------------------------------------------------------------------------------


def test_new_partitions_and_new_topics_are_assigned() -> None:
    driver = ConsumerDriver({"orders": 2})
    one = driver.member("m-1", topics=["orders", "later"])
    one.beat()
    driver.set_topic("orders", 3)
    one.beat()
    assert one.owned == {("orders", 0), ("orders", 1), ("orders", 2)}
    driver.set_topic("later", 1)
    one.beat()
    assert ("later", 0) in one.owned
    epoch = driver.consumer().epoch
    driver.set_topic("unrelated", 9)
    one.beat()
    assert driver.consumer().epoch == epoch


def test_a_deleted_topic_is_given_up_and_another_of_its_name_is_another() -> None:
    driver = ConsumerDriver({"orders": 2, "bills": 1})
    one = driver.member("m-1", topics=["orders", "bills"])
    one.beat()
    driver.delete_topic("orders")
    settle(one)
    assert one.owned == {("bills", 0)} and driver.consumer().state == "Stable"
    driver.set_topic("orders", 2, incarnation=1)
    settle(one)
    assert (topic_id("orders", 1), 0) in one.assigned and len(one.assigned) == 3


def test_topics_that_changed_while_nobody_coordinated_are_noticed(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    one.beat()
    driver.crash()
    driver.topics.put(driver.topics.by_name("orders")._replace(partition_count=6))  # type: ignore[union-attr]
    one.beat()
    assert one.partitions == [0, 1, 2, 3, 4, 5]


# -- expressions ------------------------------------------------------------------------------------------


def test_a_subscription_by_expression_follows_the_topics() -> None:
    driver = ConsumerDriver({"orders-eu": 1, "my-orders-eu": 1, "__consumer_offsets": 50})
    one = driver.member("m-1", topics=[], regex="orders-.*|.*consumer.*")
    one.beat()
    assert one.owned == {("orders-eu", 0)}, "whole names, no internal topics"
    driver.set_topic("orders-us", 2)
    one.beat()
    assert one.owned == {("orders-eu", 0), ("orders-us", 0), ("orders-us", 1)}
    driver.delete_topic("orders-eu")
    settle(one)
    assert one.owned == {("orders-us", 0), ("orders-us", 1)}
    one.topics, one.regex = ["my-orders-eu"], ""
    settle(one)
    assert one.owned == {("my-orders-eu", 0)} and not driver.consumer().regexes


@pytest.mark.parametrize("regex", ["[", "(?<=x)y", "a" * 5000, "((a{100}){100}){100}", "(a?b?){1000}c"])
def test_expressions_that_cannot_be_used(driver: ConsumerDriver, regex: str) -> None:
    reply = driver.member("m-1", topics=[], regex=regex).beat()
    assert reply.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert driver.shard.group("g") is None


def test_a_refused_expression_does_not_touch_the_member(driver: ConsumerDriver) -> None:
    one = driver.member("m-1")
    one.beat()
    written = len(driver.log)
    one.regex = "["
    assert one.beat().error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    one.regex = None
    assert one.beat().error_code == 0 and len(driver.log) == written


# -- what is stored ---------------------------------------------------------------------------------------


def test_a_group_survives_a_crash_in_the_middle(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2", instance_id="i")
    one.beat()
    two.beat()
    one.beat()
    driver.crash()
    assert driver.consumer().members["m-1"].state is MemberState.UNREVOKED
    settle(one, two)
    assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3]
    driver.crash()
    driver.advance(SESSION_MS)
    assert driver.consumer().is_empty, "fresh sessions, and then nobody was heard of"


def test_the_time_to_give_up_goes_on_after_a_crash(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    two.beat()
    one.beat()
    driver.crash()
    driver.advance(REBALANCE_TIMEOUT_MS)
    assert set(driver.consumer().members) == {"m-2"}


def test_a_join_that_cannot_be_written_leaves_nothing(driver: ConsumerDriver) -> None:
    driver.fails_appends = True
    driver.member("m-1").beat()
    driver.fails_appends = False
    assert driver.shard.group("g") is None


def test_records_of_one_join(driver: ConsumerDriver) -> None:
    driver.member("m-1").beat()
    types = [entry[0].type for entry in driver.log]  # type: ignore[index]
    assert types == [5, 3, 7, 6, 8]
    values = {record.type: record.value for record, _ in driver.log}  # type: ignore[misc]
    assert isinstance(values[3], ConsumerGroupMetadataValue)
    assert values[3].epoch == 2 and values[3].metadata_hash != 0
    current = values[8]
    assert isinstance(current, ConsumerGroupCurrentMemberAssignmentValue)
    assert (current.member_epoch, current.previous_member_epoch, current.state) == (2, 0, 0)
    assert current.assigned_partitions[0].assignment_epochs == [2, 2, 2, 2]


def test_a_member_without_classic_metadata_says_so_as_kafka_does(driver: ConsumerDriver) -> None:
    """One tagged field, tag 0, one byte, and that is 0: -1 would be unreadable there, and nothing a classic member."""
    driver.member("m-1").beat()
    value = driver.log[0][0].value  # type: ignore[union-attr]
    assert isinstance(value, ConsumerGroupMemberMetadataValue) and value.classic_member_metadata is None
    assert encode(value, 0)[-4:] == b"\x01\x00\x01\x00"


# -- configurations of one group ---------------------------------------------------------------------------


def test_what_is_set_for_a_group_stands_above_what_the_broker_says() -> None:
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    settings = ConsumerSettings(max_size=3).with_own(own)
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms, settings.max_size) == (
        50_000,
        7000,
        3,
    )
    assert ConsumerSettings().with_own({}) == ConsumerSettings()


# -- for people -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "member_id", "instance_id", "code"),
    [
        (-1, "", None, 0),
        (-2, "", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", "i", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "ann", None, ErrorCode.ILLEGAL_GENERATION),
        (2, "ann", None, 0),
        (3, "ann", None, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_transactional_commit_names_its_member_or_nobody(
    driver: ConsumerDriver, generation: int, member_id: str, instance_id: str | None, code: int
) -> None:
    driver.member("ann").beat()
    group, found = driver.consumer(), 0
    try:
        group.check_commit(member_id, instance_id, generation, is_transactional=True)
    except ApiError as refused:
        found = refused.code
    assert found == code


def test_describe(driver: ConsumerDriver) -> None:
    driver.member("m-1", regex="order.*", topics=["orders"]).beat()
    found = driver.describe()
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert found.assignor_name == "uniform"
    (member,) = found.members
    assert (member.member_epoch, member.member_type, member.subscribed_topic_regex) == (2, 1, "order.*")
    assert member.assignment.topic_partitions[0].topic_name == "orders"
    assert member.target_assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    missing = driver.describe("nobody")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND and "not found" in missing.error_message
    driver.commit({("orders", 0): 1}, group_id="simple")
    assert driver.describe("simple").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_what_a_member_still_gives_up_is_listed_with_what_it_has(driver: ConsumerDriver) -> None:
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    two.beat()
    one.beat()
    described = {member.member_id: member for member in driver.describe().members}
    assert described["m-1"].assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert described["m-1"].target_assignment.topic_partitions[0].partitions == [0, 1]
    assert not described["m-2"].assignment.topic_partitions
    assert described["m-1"].subscribed_topic_regex == "", "not null, as in Kafka"
