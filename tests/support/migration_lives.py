"""How groups change their protocol, to be lived on two brokers and compared (see `group_talk`).

There is a topic `t` with four partitions. What members are assigned in between is looked at where both brokers mean the
same by it: a cooperative member that gives up a partition still has it in Kafka's answer, and not in ours. Where a
group may not become classic, its members are not told by Kafka that the last one of the newer protocol has left.
"""

from __future__ import annotations

import time
from typing import Any

from group_talk import Talk
from waiting import wait_until

from tidemill.coordination.group.classic_subscription import Subscription, TopicPartitions, write_assignment
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.consumer_group_heartbeat import TopicPartitions as OwnedPartitions
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.schema import encode

VERSION = 1
ALL = write_assignment({"t": range(4)}, VERSION)
DOWNGRADE_SECONDS = 0.3
"""Long enough for a group to become classic, if it may."""

# -- words ------------------------------------------------------------------------------------------------


def offer(assignor: str, *owned: int) -> dict[str, bytes]:
    """The protocols of a member that reads `t` and owns these partitions of it."""
    listed = [TopicPartitions(topic="t", partitions=list(owned))] if owned else []
    subscription = Subscription(topics=["t"], owned_partitions=listed)
    return {assignor: VERSION.to_bytes(2) + encode(subscription, VERSION)}


def modern_beat(talk: Talk, group: str, member_id: str, epoch: int, *owned: int, **changes: Any) -> int:
    """The error code."""
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
    if epoch >= 0:
        listed = [OwnedPartitions(topic_id=talk.topic_id("t"), partitions=list(owned))] if owned else []
        request.topic_partitions = listed
    if epoch == 0:
        request.rebalance_timeout_ms, request.subscribed_topic_names = 20_000, ["t"]
        request.server_assignor = "range"
    for name, value in changes.items():
        setattr(request, name, value)
    answer = talk.connection(member_id).call(request)
    answer.error_message = None
    talk.title(f"{member_id} at {epoch}, owning {owned}, hears {answer}")
    code: int = answer.error_code
    return code


def look(talk: Talk, group: str) -> None:
    """State and epochs, by the requests of both protocols."""
    (found,) = talk.connection("somebody").call(ConsumerGroupDescribeRequest(group_ids=[group])).groups
    members = [
        (each.member_id, each.instance_id, each.member_epoch, each.member_type) for each in found.members
    ]
    members.sort(key=lambda member: talk.plain(member[0]))
    talk.title(f"{found.group_state} {found.group_epoch} {found.assignment_epoch} {members}")
    talk.look(group)


def await_classic(talk: Talk, group: str) -> None:
    def is_classic() -> bool:
        (found,) = talk.connection("somebody").call(DescribeGroupsRequest(groups=[group])).groups
        return bool(found.group_state == "PreparingRebalance")

    wait_until(is_classic, "the downgrade")


def classic_group(talk: Talk, group: str, assignor: str) -> str:
    """A stable group with one member, who reads everything; the member's id."""
    ann = talk.enter("ann", group, protocols=offer(assignor))
    talk.hears("ann")
    talk.sync("ann", group, ann, 1, {ann: ALL}, protocol_name=assignor)
    return ann


# -- lives ------------------------------------------------------------------------------------------------


def there_and_back(talk: Talk) -> None:
    for assignor in ("range", "cooperative-sticky"):
        group = f"back-{assignor}"
        ann = classic_group(talk, group, assignor)
        modern_beat(talk, group, "ben", 0)
        look(talk, group)
        for generation in (1, 2):
            talk.beat("ann", group, ann, generation)
            talk.sync("ann", group, ann, generation, protocol_name=assignor)
            talk.commit("ann", group, ann, generation)
        talk.beat("ann", group, "ben", 2)
        talk.join("ann", group, ann, protocols=offer(assignor, 0, 1, 2, 3))
        for name in (assignor, "other", None):
            for generation in (1, 2):
                talk.sync("ann", group, ann, generation, protocol_name=name)
        talk.sync("ann", group, ann, 2, protocol_name=assignor, protocol_type="connect")
        look(talk, group)
        modern_beat(talk, group, "ben", 2)
        generation = rejoin(talk, group, ann, assignor, 2, 3)
        talk.beat("ann", group, ann, generation)
        modern_beat(talk, group, "ben", 2)
        modern_beat(talk, group, "ben", 2, 0, 1)
        look(talk, group)
        static_member_comes_and_goes(talk, group, assignor)
        rejoin(talk, group, ann, assignor, 2, 3)
        generation = rejoin(talk, group, ann, assignor, 2, 3)
        modern_beat(talk, group, "ben", 2, 0, 1)
        look(talk, group)
        modern_beat(talk, group, "ben", -1)
        await_classic(talk, group)
        for number in (generation, generation + 1):
            talk.beat("ann", group, ann, number)
            talk.commit("ann", group, ann, number)
        joined = talk.join("ann", group, ann, protocols=offer(assignor, 2, 3))
        talk.sync("ann", group, ann, joined.generation_id, {ann: ALL}, protocol_name=assignor)
        look(talk, group)
        talk.leave("ann", group, (ann, None))
        look(talk, group)


def rejoin(talk: Talk, group: str, member_id: str, assignor: str, *owned: int) -> int:
    generation: int = talk.join("ann", group, member_id, protocols=offer(assignor, *owned)).generation_id
    talk.sync("ann", group, member_id, generation, protocol_name=assignor)
    return generation


def static_member_comes_and_goes(talk: Talk, group: str, assignor: str) -> None:
    talk.join("cat", group, protocols=offer("other"))
    talk.join("cat", group, protocols=offer(assignor), protocol_type="connect")
    joined = talk.join("cat", group, group_instance_id="C", protocols=offer(assignor))
    cat, generation = joined.member_id, joined.generation_id
    look(talk, group)
    talk.join("cat", group, cat, group_instance_id="D", protocols=offer(assignor))
    for instance in ("C", "D"):
        for member_id in (cat, "x"):
            talk.beat("cat", group, member_id, generation, instance)
            talk.sync("cat", group, member_id, generation, group_instance_id=instance, protocol_name=assignor)
            talk.commit("cat", group, member_id, generation, group_instance_id=instance)
    talk.leave("cat", group, (cat, "D"), ("x", "C"), ("", "nobody"), ("", "C"))
    look(talk, group)


def upgrades_that_are_refused(talk: Talk) -> None:
    for group, kind in (("of-connect", "connect"), ("of-strangers", "consumer")):
        ann = talk.enter("ann", group, protocol_type=kind)
        talk.hears("ann")
        if kind == "connect":
            modern_beat(talk, group, "ben", 0)
        talk.sync("ann", group, ann, 1, protocol_type=kind)
        for epoch in (0, 1, -1):
            modern_beat(talk, group, "ben", epoch)
        look(talk, group)


def upgrades_in_the_middle(talk: Talk) -> None:
    protocols = offer("cooperative-sticky")
    for group in ("completing", "preparing"):
        if group == "completing":
            ann = talk.enter("ann", group, protocols=protocols)
            talk.hears("ann")
            cat = talk.join("cat", group, protocols=protocols).member_id
        else:
            ann = classic_group(talk, group, "cooperative-sticky")
            cat = talk.enter("cat", group, protocols=protocols)
            talk.waits("cat")
        modern_beat(talk, group, "ben", 0)
        if group == "preparing":
            talk.hears("cat")
        look(talk, group)
        talk.sync("ann", group, ann, 1, protocol_name="cooperative-sticky")
        talk.beat("ann", group, ann, 1)
        talk.join("cat", group, cat, protocols=protocols)
        talk.join("ann", group, ann, protocols=protocols)
        look(talk, group)


def empty_groups(talk: Talk) -> None:
    group = "empty"
    talk.commit("ann", group)
    for round_number in range(2):
        modern_beat(talk, group, f"ben-{round_number}", 0)
        look(talk, group)
        modern_beat(talk, group, f"ben-{round_number}", -1)
        look(talk, group)
        dan = talk.enter("dan", group, protocols=offer("range"))
        generation = talk.hears("dan").generation_id
        look(talk, group)
        talk.sync("dan", group, dan, generation)
        talk.leave("dan", group, (dan, None))
        look(talk, group)
        talk.commit("ann", group, offsets={"t": {round_number: 5}})


def under_a_policy(talk: Talk) -> None:
    """Both directions, as far as the broker's policy goes."""
    ann = classic_group(talk, "upward", "range")
    modern_beat(talk, "upward", "ben", 0)
    look(talk, "upward")
    talk.beat("ann", "upward", ann, 1)
    group = "downward"
    modern_beat(talk, group, "ben", 0)
    joined = talk.join("ann", group, protocols=offer("range"), group_instance_id="A")
    modern_beat(talk, group, "ben", 2)
    modern_beat(talk, group, "ben", 2, 2, 3)
    if joined.error_code == 0:
        talk.join("ann", group, joined.member_id, protocols=offer("range"))
        talk.sync("ann", group, joined.member_id, joined.generation_id)
    modern_beat(talk, group, "ben", -1)
    time.sleep(DOWNGRADE_SECONDS)
    look(talk, group)
    talk.beat("ann", group, joined.member_id, joined.generation_id + 1)


MIGRATION_LIVES = (
    there_and_back,
    under_a_policy,
    upgrades_that_are_refused,
    upgrades_in_the_middle,
    empty_groups,
)
