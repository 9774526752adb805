"""Groups that change their protocol while they run, and offsets of groups of either."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from consumer_driver import ConsumerDriver, settle
from group_driver import NOT_WRITTEN

from tidemill.coordination.group.classic import PREPARING, STABLE, ClassicGroup
from tidemill.coordination.group.classic_subscription import (
    Subscription,
    TopicPartitions,
    read_assignment,
    write_assignment,
)
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.contract import ConsumerSettings, GroupSettings, RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.offset_fetch import OffsetFetchRequestGroup
from tidemill.wire.schema import encode

PARTITIONS = 4
SESSION_MS = 10_000


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    message = Subscription(
        topics=list(topics),
        owned_partitions=[
            TopicPartitions(topic=name, partitions=list_) for name, list_ in (owned or {}).items()
        ],
    )
    return struct.pack(">h", 1) + encode(message, 1)


def make(**changes: Any) -> ConsumerDriver:
    settings = GroupSettings(initial_rebalance_delay_ms=0, consumer=ConsumerSettings(**changes))
    return ConsumerDriver({"orders": PARTITIONS}, settings)


class ClassicClient:
    """A cooperative consumer of the classic protocol; the group's leader assigns nothing but what a test says."""

    def __init__(self, driver: ConsumerDriver, member_id: str = "", instance_id: str | None = None) -> None:
        self.driver = driver
        self.member_id = member_id
        self.instance_id = instance_id
        self.generation = -1
        self.owned: list[int] = []

    def join(self) -> Any:
        protocols = (("cooperative-sticky", subscription("orders", owned={"orders": self.owned})),)
        options: dict[str, Any] = {"protocols": protocols, "instance_id": self.instance_id}
        reply = self.driver.join("g", self.member_id, session_timeout_ms=SESSION_MS, **options)
        if reply is not None and reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            reply = self.driver.join("g", self.member_id, session_timeout_ms=SESSION_MS, **options)
        if reply is not None and not reply.error_code:
            self.member_id, self.generation = reply.member_id, reply.generation_id
        return reply

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        reply = self.driver.sync(self.member_id, self.generation, assignments, instance_id=self.instance_id)
        if not reply.error_code:
            self.owned = sorted(read_assignment(reply.assignment).get("orders", ()))
        return reply

    def heartbeat(self) -> int:
        return self.driver.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)

    def rejoin(self) -> None:
        """As a client does when it is told that the group rebalances, until it is not told so any more."""
        for _ in range(4):
            code = self.heartbeat()
            if code == 0:
                return
            assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION), code
            assert self.join().error_code == 0
            assert self.sync().error_code == 0


def delete_group(driver: ConsumerDriver) -> int:
    token = driver.token()
    driver.run(driver.shard.delete_groups(["g"], token, driver.now_ms))
    return int(driver.replies[token][0].error_code)


def classic_group(driver: ConsumerDriver, instance_id: str | None = None) -> ClassicClient:
    """A stable classic group of one, which reads everything."""
    client = ClassicClient(driver, instance_id=instance_id)
    assert client.join() is None
    driver.advance(0)
    joined = next(reply for reply in driver.replies.values() if getattr(reply, "generation_id", -1) == 1)
    client.member_id, client.generation = joined.member_id, 1
    client.sync({client.member_id: write_assignment({"orders": range(PARTITIONS)}, 1)})
    assert client.owned == [0, 1, 2, 3]
    return client


# -- upgrade ----------------------------------------------------------------------------------------------


def test_a_classic_group_becomes_a_consumer_group_while_its_member_reads() -> None:
    driver = make()
    old = classic_group(driver)
    driver.commit({("orders", 0): 5}, old.member_id, 1)
    new = driver.member("m-new")
    assert new.beat().member_epoch == 2 and new.partitions == [], "what the old member reads is not free"
    group = driver.consumer()
    assert set(group.members) == {old.member_id, "m-new"}
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    joined = old.join()
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, "")
    assert old.sync().error_code == 0 and len(old.owned) == 2
    assert new.beat().error_code == 0 and new.partitions == []
    old.rejoin()
    assert old.generation == 2
    new.beat()
    assert sorted(old.owned + new.partitions) == [0, 1, 2, 3] and len(old.owned) == 2
    assert driver.committed() == {("orders", 0): 5}
    (described,) = [member for member in driver.describe().members if member.member_id == old.member_id]
    assert described.member_type == 0


def test_members_that_wait_in_a_join_are_told_to_join_again() -> None:
    driver = make()
    old = classic_group(driver)
    other = ClassicClient(driver)
    assert other.join() is None
    waiting = next(iter(driver.classic().members.join_tokens.values()))
    driver.member("m-new").beat()
    assert driver.replies[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(driver.consumer().members) == 3
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_old_members_session_goes_on() -> None:
    driver = make()
    classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    driver.advance(SESSION_MS)
    assert set(driver.consumer().members) == {"m-new"}
    new.beat()
    assert new.partitions == [0, 1, 2, 3]


def test_who_is_told_to_join_again_and_does_not_is_removed() -> None:
    driver = make()
    old = classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    for _ in range(13):
        code = old.heartbeat()
        new.beat()
        driver.advance(5000)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    assert set(driver.consumer().members) == {"m-new"}


def test_what_a_cooperative_member_is_giving_up_waits_for_it() -> None:
    driver = make()
    old = classic_group(driver)
    assert old.join().generation_id == 2, "it leads, and says that it owns everything"
    old.sync({old.member_id: write_assignment({"orders": [0, 1]}, 1)})
    new = driver.member("m-new")
    assert new.beat().member_epoch == 3 and new.partitions == [], "2 and 3 are still read by the other one"
    driver.crash()
    assert new.beat().error_code == 0 and new.partitions == []
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.rejoin()
    new.beat()
    assert sorted(old.owned + new.partitions) == [0, 1, 2, 3] and len(new.partitions) == 2


@pytest.mark.parametrize(
    ("changes", "reason"), [({"allows_upgrade": False}, "disabled"), ({"max_size": 0}, "many")]
)
def test_upgrades_that_are_refused(changes: dict[str, Any], reason: str) -> None:
    driver = make(**changes)
    old = classic_group(driver)
    reply = driver.member("m-new").beat()
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND and reason in reply.error_message
    assert old.heartbeat() == 0 and driver.classic().state is STABLE


def test_a_group_that_is_not_of_consumers_stays_as_it_is() -> None:
    driver = make()
    driver.stable_group(1, protocol_type="connect")
    assert driver.member("m-new").beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    strange = ConsumerDriver({"orders": 1}, GroupSettings(initial_rebalance_delay_ms=0))
    strange.stable_group(1)
    reply = strange.member("m-new").beat()
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND and "plain consumers" in reply.error_message
    assert isinstance(strange.shard.group("g"), ClassicGroup)


# -- downgrade --------------------------------------------------------------------------------------------


def test_a_consumer_group_becomes_classic_when_only_classic_members_are_left() -> None:
    driver = make()
    old = classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    old.rejoin()
    new.beat()
    assert new.leave().error_code == 0
    driver.advance(0)
    group = driver.classic()
    assert group.state is PREPARING, "nobody reads what the last one read: a rebalance"
    assert [member.member_id for member in group.members] == [old.member_id]
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    committed = driver.commit({("orders", 0): 5}, old.member_id, old.generation)
    assert committed == [0], "it goes on with its generation until it has joined again"
    assert old.join().error_code == 0
    old.sync({old.member_id: write_assignment({"orders": range(PARTITIONS)}, 1)})
    assert old.owned == [0, 1, 2, 3] and driver.classic().state is STABLE


def test_a_crash_right_after_the_downgrade_is_made_good() -> None:
    driver = make()
    old = classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    old.rejoin()
    new.leave()
    driver.crash()
    assert isinstance(driver.shard.group("g"), ConsumerGroup)
    (key,) = [key for key in driver.timers if type(key).__name__ == "DowngradeTimer"]
    driver.run(driver.shard.on_timer(key, driver.now_ms))
    assert driver.classic().state is STABLE
    driver.crash()
    driver.advance(0)
    assert driver.classic().state is PREPARING


def test_without_downgrade_the_group_goes_on_as_it_is() -> None:
    driver = make(allows_downgrade=False)
    old = classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    old.rejoin()
    new.leave()
    driver.advance(0)
    old.rejoin()
    assert old.owned == [0, 1, 2, 3] and isinstance(driver.shard.group("g"), ConsumerGroup)


def test_without_downgrade_classic_members_notice_that_a_topic_grew() -> None:
    driver = make(allows_downgrade=False)
    old = classic_group(driver)
    new = driver.member("m-new")
    new.beat()
    old.rejoin()
    new.leave()
    old.rejoin()
    assert old.heartbeat() == 0
    driver.set_topic("orders", PARTITIONS + 1)
    old.rejoin()
    assert old.owned == [0, 1, 2, 3, 4] and old.heartbeat() == 0


def test_a_static_member_of_the_newer_protocol_is_replaced_by_one_of_the_classic() -> None:
    driver = make()
    new = driver.member("m-new", instance_id="i")
    new.beat()
    new.leave(for_good=False)
    old = ClassicClient(driver, instance_id="i")
    assert old.join().error_code == 0 and old.generation == 2
    assert old.sync().error_code == 0 and old.owned == [0, 1, 2, 3]
    driver.advance(0)
    assert isinstance(driver.shard.group("g"), ClassicGroup)


# -- empty groups -----------------------------------------------------------------------------------------


def test_empty_groups_change_their_kind_by_the_first_join() -> None:
    driver = make()
    old = classic_group(driver)
    driver.commit({("orders", 0): 5}, old.member_id, 1)
    driver.leave((old.member_id, None))
    driver.advance(0)
    assert driver.classic().is_empty
    new = driver.member("m-new")
    assert new.beat().member_epoch == 2 and new.partitions == [0, 1, 2, 3]
    assert driver.committed() == {("orders", 0): 5}
    new.leave()
    assert driver.consumer().is_empty
    again = ClassicClient(driver)
    again.join()
    driver.advance(0)
    assert len(driver.classic().members) == 1
    driver.crash()
    assert not isinstance(driver.shard.group("g"), ConsumerGroup), "its tombstones were written"
    assert driver.committed() == {("orders", 0): 5}


def test_a_classic_join_that_cannot_be_written_leaves_the_empty_consumer_group() -> None:
    driver = make()
    new = driver.member("m-new")
    new.beat()
    new.leave()
    driver.fails_appends = True
    assert driver.join("g", instance_id="i", session_timeout_ms=SESSION_MS) == NOT_WRITTEN
    driver.fails_appends = False
    assert driver.consumer().is_empty, "its tombstones were not written"
    assert new.beat().member_epoch == 4, "so its epochs go on"
    new.leave()
    assert delete_group(driver) == 0
    assert driver.shard.group("g") is None, "nobody takes its place who is not in the records"


# -- classic requests to a consumer group -----------------------------------------------------------------


def test_an_administrator_removes_members_of_the_newer_protocol() -> None:
    driver = make()
    members = [
        driver.member(name, instance_id=instance) for name, instance in (("a", None), ("b", "i"), ("c", "j"))
    ]
    for member in members:
        member.beat()
    left = driver.leave(("a", None), ("b", "i"), ("c", "i"), ("c", "other"), ("d", None)).members
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert [each.error_code for each in left] == [0, 0, fenced, unknown, unknown]
    driver.leave(("c", "j"))
    assert driver.consumer().is_empty
    assert members[0].beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_the_newer_protocol_do_not_speak_the_classic_one() -> None:
    driver = make()
    new = driver.member("m-new")
    new.beat()
    assert driver.heartbeat("m-new", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.sync("m-new", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    odd = driver.join("g", protocol_type="connect")
    assert odd.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_without_migration_no_classic_member_joins_a_consumer_group() -> None:
    driver = make(allows_upgrade=False, allows_downgrade=False)
    driver.member("m-new").beat()
    assert driver.join("g").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_classic_member_joins_and_leaves_a_consumer_group() -> None:
    driver = make()
    new = driver.member("m-new")
    new.beat()
    old = ClassicClient(driver)
    assert old.join().generation_id == 3
    assert old.sync().error_code == 0 and old.owned == []
    settle(new)
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "what it waited for is free"
    old.rejoin()
    assert sorted(old.owned + new.partitions) == [0, 1, 2, 3] and len(old.owned) == 2
    assert driver.heartbeat(old.member_id, 1) == ErrorCode.ILLEGAL_GENERATION
    (left,) = driver.leave((old.member_id, None)).members
    assert left.error_code == 0
    settle(new)
    assert new.partitions == [0, 1, 2, 3]


def test_who_joins_and_does_not_sync_is_removed() -> None:
    driver = make()
    new = driver.member("m-new")
    new.beat()
    old = ClassicClient(driver)
    old.join()
    for _ in range(13):
        driver.heartbeat(old.member_id, old.generation)
        new.beat()
        driver.advance(5000)
    assert set(driver.consumer().members) == {"m-new"}


# -- offsets ----------------------------------------------------------------------------------------------


def test_commits_need_the_members_epoch() -> None:
    driver = make()
    one, two = driver.member("m-1"), driver.member("m-2")
    one.beat()
    key = ("orders", 0)
    assert driver.commit({key: 1}, "m-1", 2, version=9) == [0]
    assert driver.commit({key: 1}, "m-1", 3, version=9) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert driver.commit({key: 1}, "m-1", 2, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert driver.commit({key: 1}, "nobody", 1, version=9) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({key: 1}, "", -1, version=9) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit_in_transaction(7, {key: 1}, "m-1", 5) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.commit_in_transaction(7, {key: 1}) == [0]
    driver.end_transaction(7, False)
    settle(one, two)
    kept, lost = ("orders", one.partitions[0]), ("orders", two.partitions[0])
    assert driver.commit({kept: 2}, "m-1", 2, version=9) == [0], "its own since epoch 2"
    assert driver.commit({lost: 2}, "m-1", 2, version=9) == [ErrorCode.STALE_MEMBER_EPOCH]
    one.leave()
    two.leave()
    assert driver.commit({key: 3}, "", -1, version=9) == [0], "an empty group's offsets may be set by anybody"


def test_fetches_may_name_a_member_and_are_refused_then() -> None:
    driver = make()
    driver.member("m-1").beat()

    def code(member_id: str | None, epoch: int) -> int:
        request = OffsetFetchRequestGroup(group_id="g", topics=None, member_id=member_id, member_epoch=epoch)
        token = driver.token()
        driver.run(driver.shard.fetch_offsets(request, False, token, driver.now_ms))
        return int(driver.replies[token].error_code)

    assert code(None, -1) == 0 and code("m-1", 2) == 0
    assert code("m-1", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert code("m-2", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_lists_and_deletes_know_the_kinds() -> None:
    driver = make()
    one = driver.member("m-1")
    one.beat()
    driver.commit({("orders", 0): 1}, group_id="simple")

    def listed(*types: str) -> list[tuple[str, str, str]]:
        token = driver.token()
        driver.run(
            driver.shard.list_groups(ListGroupsRequest(types_filter=list(types)), token, driver.now_ms)
        )
        return [(each.group_id, each.group_type, each.group_state) for each in driver.replies[token]]

    assert listed("Consumer") == [("g", "consumer", "Stable")]
    assert listed("classic") == [("simple", "classic", "Empty")]
    token = driver.token()
    driver.run(driver.shard.describe_groups(["g"], RequestContext(api_version=6), token, driver.now_ms))
    (described,) = driver.replies[token]
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND and "not a classic" in described.error_message
    assert delete_group(driver) == ErrorCode.NON_EMPTY_GROUP
    one.leave()
    assert delete_group(driver) == 0 and driver.shard.group("g") is None
    driver.crash()
    assert driver.shard.group("g") is None


def test_offsets_of_topics_nobody_subscribes_to_expire() -> None:
    settings = GroupSettings(offsets_retention_ms=600_000, offsets_retention_check_interval_ms=60_000)
    driver = ConsumerDriver({"orders": PARTITIONS}, settings)
    one = driver.member("m-1")
    one.beat()
    assert driver.commit({("orders", 0): 1, ("other", 0): 1}, "m-1", 2, version=9) == [0, 0]
    for _ in range(22):
        driver.advance(30_000)
        one.beat(complete=False)
    assert driver.committed() == {("orders", 0): 1}
    one.leave()
    driver.advance(driver.settings.offsets_retention_check_interval_ms)
    assert driver.committed() == {} and driver.shard.group("g") is None
