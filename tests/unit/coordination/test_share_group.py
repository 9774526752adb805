"""Share groups: who gets which partitions and when, what is refused, and what needs the share coordinator."""

from __future__ import annotations

import random

import pytest
from share_group_driver import GROUP, SESSION_MS, ShareGroupDriver, topic_id
from share_state_driver import ShareStateDriver

from tidemill.coordination.group.assignor import GroupSpec, MemberSpec
from tidemill.coordination.group.assignor_share import SimpleAssignor
from tidemill.coordination.group.contract import ShareSettings
from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

JOBS = topic_id("jobs")


@pytest.fixture
def driver() -> ShareGroupDriver:
    driver = ShareGroupDriver()
    driver.put_topic("jobs", 2)
    return driver


def told(response: ShareGroupHeartbeatResponse) -> dict[bytes, list[int]] | None:
    assert response.error_code == 0, response
    if response.assignment is None:
        return None
    return {entry.topic_id: entry.partitions for entry in response.assignment.topic_partitions}


# -- the assignor -------------------------------------------------------------------------------------


def assign(members: dict[str, MemberSpec], **counts: int) -> dict[str, dict[bytes, frozenset[int]]]:
    spec = GroupSpec(members, {topic_id(name): count for name, count in counts.items()})
    return {member: dict(given) for member, given in SimpleAssignor().assign(spec).items()}


def readers(*names: str, **members: int) -> dict[str, MemberSpec]:
    wanted = frozenset(map(topic_id, names))
    return {f"m{number}": MemberSpec(wanted) for number in range(members["count"])}


@pytest.mark.parametrize("members", range(1, 12))
@pytest.mark.parametrize("partitions", range(1, 7))
def test_everybody_works_and_everything_is_read(members: int, partitions: int) -> None:
    given = assign(readers("jobs", count=members), jobs=partitions)
    sizes = [len(each.get(JOBS, ())) for each in given.values()]
    assert min(sizes) >= 1 or members == 0
    assert max(sizes) - min(sizes) <= 1
    sharing = -(-members // partitions)
    for index in range(partitions):
        assert sum(index in each.get(JOBS, ()) for each in given.values()) == sharing


def test_members_keep_what_they_had() -> None:
    before = {"a": MemberSpec(frozenset({JOBS}), {JOBS: frozenset({1})}), "b": MemberSpec(frozenset({JOBS}))}
    assert assign(before, jobs=2) == {"a": {JOBS: frozenset({1})}, "b": {JOBS: frozenset({0})}}


def test_different_subscriptions() -> None:
    both, one = frozenset({JOBS, topic_id("mail")}), frozenset({JOBS})
    given = assign({"a": MemberSpec(both), "b": MemberSpec(one)}, jobs=1, mail=2)
    assert given["a"] == {JOBS: frozenset({0}), topic_id("mail"): frozenset({0, 1})}
    assert given["b"] == {JOBS: frozenset({0})}


@pytest.mark.parametrize("seed", range(100))
def test_no_partition_is_left_out_whatever_was_before(seed: int) -> None:
    chance = random.Random(seed)
    partitions = chance.randrange(1, 9)
    members = {
        f"m{number}": MemberSpec(
            frozenset({JOBS}),
            {JOBS: frozenset(chance.sample(range(partitions), chance.randrange(partitions + 1)))},
        )
        for number in range(chance.randrange(1, 12))
    }
    given = assign(members, jobs=partitions)
    assert frozenset().union(*(each.get(JOBS, ()) for each in given.values())) == set(range(partitions))
    assert all(each.get(JOBS) for each in given.values()), "somebody has nothing to do"


# -- membership ---------------------------------------------------------------------------------------


def test_a_member_gets_partitions_when_they_have_state(driver: ShareGroupDriver) -> None:
    assert told(driver.join("a", "jobs")) == {}
    assert driver.group.state_partitions.initialized == {JOBS: frozenset({0, 1})}
    assert told(driver.beat("a")) == {JOBS: [0, 1]}
    assert told(driver.beat("a")) is None, "nothing new"
    assert driver.group.state == "Stable"


def test_two_members_share(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.beat("a")
    assert told(driver.join("b", "jobs")) == {JOBS: [1]}
    assert told(driver.beat("a")) == {JOBS: [0]}
    driver.join("c", "jobs")
    driver.beat("a")
    driver.beat("b")
    sizes = [sum(index in each.get(JOBS, ()) for each in driver.assigned().values()) for index in (0, 1)]
    assert sizes == [2, 2]


def test_a_member_that_leaves_makes_room(driver: ShareGroupDriver) -> None:
    for member in "ab":
        driver.join(member, "jobs")
    driver.beat("a")
    assert driver.leave("b").member_epoch == -1
    assert told(driver.beat("a")) == {JOBS: [0, 1]}
    driver.leave("a")
    assert driver.group.is_empty and driver.group.state == "Empty"


def test_a_silent_member_is_removed_after_its_session(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.pass_time(SESSION_MS - 1)
    assert "a" in driver.group.members
    driver.beat("a")
    driver.pass_time(SESSION_MS - 1)
    assert "a" in driver.group.members, "a heartbeat begins a new session"
    driver.pass_time(1)
    assert not driver.group.members
    assert driver.send("a", 1, None).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_gives_everybody_a_new_session(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.pass_time(SESSION_MS - 1)
    driver.restart()
    driver.pass_time(SESSION_MS - 1)
    assert "a" in driver.group.members
    driver.pass_time(1)
    assert not driver.group.members


def test_the_session_of_a_group_may_be_set() -> None:
    driver = ShareGroupDriver(
        configs={"share.session.timeout.ms": "6000", "share.heartbeat.interval.ms": "100"}
    )
    driver.put_topic("jobs", 1)
    assert driver.join("a", "jobs").heartbeat_interval_ms == 100
    driver.pass_time(6000)
    assert not driver.group.members


def test_an_answer_that_was_lost_is_given_again(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    lost = driver.epochs["a"]
    driver.beat("a")
    assert told(driver.send("a", lost, None)) == {JOBS: [0, 1]}
    assert driver.send("a", 99, None).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_complete_request_asks_for_the_assignment(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.beat("a")
    epoch = driver.epochs["a"]
    assert told(driver.send("a", epoch, None)) is None
    assert told(driver.send("a", epoch, ["jobs"])) == {JOBS: [0, 1]}


def test_a_member_that_joins_again_is_told_everything(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.beat("a")
    assert told(driver.join("a", "jobs")) == {JOBS: [0, 1]}
    assert len(driver.group.members) == 1


def test_a_group_may_be_full() -> None:
    driver = ShareGroupDriver(ShareSettings(max_size=1))
    driver.put_topic("jobs", 1)
    driver.join("a", "jobs")
    assert driver.join("b", "jobs").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.join("a", "jobs").error_code == 0
    assert driver.send("b", 3, None).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_epochs_begin_as_in_kafka(driver: ShareGroupDriver) -> None:
    assert driver.join("a", "nowhere").member_epoch == 2
    driver.leave("a")
    assert driver.group.epoch == 3


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": 37 * "m"}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_is_wrong_is_refused_and_leaves_nothing(
    driver: ShareGroupDriver, fields: dict[str, object], code: ErrorCode
) -> None:
    plain: dict[str, object] = {"group_id": GROUP, "member_id": "a", "subscribed_topic_names": ["jobs"]}
    request = ShareGroupHeartbeatRequest(**(plain | fields))
    answer = driver.act(lambda share, step: share.heartbeat(request, _context(), "token", step))
    assert answer.response.error_code == code
    assert not driver.log


def _context() -> object:
    from share_group_driver import CONTEXT

    return CONTEXT


# -- topics -------------------------------------------------------------------------------------------


def test_a_topic_that_grows_is_initialised_and_shared_out(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.beat("a")
    driver.put_topic("jobs", 3)
    driver.beat("a")
    assert told(driver.beat("a")) == {JOBS: [0, 1, 2]}


def test_a_topic_that_comes_later(driver: ShareGroupDriver) -> None:
    driver.join("a", "mail")
    assert told(driver.beat("a")) is None
    driver.put_topic("mail", 1)
    driver.beat("a")
    assert told(driver.beat("a")) == {topic_id("mail"): [0]}


def test_a_deleted_topic_is_forgotten(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.beat("a")
    driver.delete_topic("jobs")
    assert driver.group.state_partitions.topic_ids() == set()
    assert told(driver.beat("a")) == {}
    assert not driver.states.states()


def test_another_subscription(driver: ShareGroupDriver) -> None:
    driver.put_topic("mail", 1)
    driver.join("a", "jobs")
    driver.beat("a")
    driver.beat("a", "mail")
    assert told(driver.beat("a")) == {topic_id("mail"): [0]}


# -- state at the share coordinator -------------------------------------------------------------------


def test_state_that_did_not_come_is_asked_for_again(driver: ShareGroupDriver) -> None:
    driver.is_persister_down = True
    driver.join("a", "jobs")
    assert driver.group.state_partitions.initializing == {JOBS: frozenset({0, 1})}
    driver.is_persister_down = False
    driver.beat("a")
    assert not driver.states.states(), "it was asked for a moment ago"
    driver.pass_time(30_000)
    driver.beat("a")
    assert told(driver.beat("a")) == {JOBS: [0, 1]}


def test_a_restart_asks_again(driver: ShareGroupDriver) -> None:
    driver.is_persister_down = True
    driver.join("a", "jobs")
    driver.restart()
    driver.is_persister_down = False
    driver.beat("a")
    assert driver.group.state_partitions.initialized == {JOBS: frozenset({0, 1})}


def test_state_that_was_refused(driver: ShareGroupDriver) -> None:
    driver.is_persister_down = True
    driver.join("a", "jobs")
    everything = {JOBS: frozenset({0, 1})}
    driver.act(lambda share, step: share.state_refused(GROUP, everything, "token", step))
    assert driver.group.state_partitions.topic_ids() == set()
    driver.is_persister_down = False
    driver.beat("a")
    assert driver.group.state_partitions.initialized == everything


def test_offsets_of_an_empty_group_are_altered(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    wanted = {JOBS: frozenset({0})}

    def alter() -> object:
        return driver.act(lambda share, step: share.begin_alter(GROUP, wanted, "token", step))

    assert alter() is ErrorCode.NON_EMPTY_GROUP
    driver.leave("a")
    before = driver.group.epoch
    initialization = alter()
    assert initialization == (before + 1, wanted)
    assert driver.group.state_partitions.initialized == {JOBS: frozenset({1})}


def test_to_alter_nothing_makes_no_group(driver: ShareGroupDriver) -> None:
    driver.act(lambda share, step: share.begin_alter(GROUP, {}, "token", step))
    assert not driver.log


def test_a_group_is_deleted_with_its_state(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.leave("a")
    partitions = driver.act(lambda share, step: share.begin_delete_group(GROUP, "token", step))
    assert partitions == {JOBS: frozenset({0, 1})}
    assert driver.group.state_partitions.deleting == {JOBS}
    again = driver.act(lambda share, step: share.begin_delete_group(GROUP, "token", step))
    assert again == partitions, "after a crash nobody knows how far it got"
    driver._carry_out(driver.shard.delete_groups([GROUP], "token", driver.now_ms))
    assert driver.shard.group(GROUP) is None
    driver.restart()
    assert driver.shard.group(GROUP) is None


def test_an_empty_share_group_does_not_expire(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    driver.leave("a")
    driver.pass_time(8 * 86_400_000)
    assert driver.shard.group(GROUP) is not None


def test_a_restart_changes_nothing(driver: ShareGroupDriver) -> None:
    for member in "abc":
        driver.join(member, "jobs")
    driver.beat("a")
    driver.leave("b")
    driver.beat("c")
    before = driver.durable()
    driver.restart()
    assert driver.durable() == before


def test_states_are_those_of_the_group(driver: ShareGroupDriver) -> None:
    driver.join("a", "jobs")
    assert isinstance(driver.states, ShareStateDriver)
    assert set(driver.states.states()) == {SharePartitionKey(GROUP, JOBS, index) for index in (0, 1)}
