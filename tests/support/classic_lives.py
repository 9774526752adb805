"""What members of classic groups go through, to be lived on two brokers and compared (see `group_talk`).

Groups have their own names, so that all lives fit into one broker. It has `SETTINGS`: rebalances begin at once,
sessions may be short, groups are small.
"""

from __future__ import annotations

import time

from group_talk import Talk, join_request, sync_request

from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.leave_group import LeaveGroupRequest

SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.max.size": 3,
    "offset.metadata.max.bytes": 10,
}
NEW, OTHER = {"range": b"new"}, {"range": b"other"}
"""Metadata that nobody can read; what lies in it must not look like a long array, which Kafka 4.3 stumbles over."""


def every_version(talk: Talk) -> None:
    for version in range(10):
        group = f"join-v{version}"
        joined = talk.join("ann", group, version=version)
        if version >= 4:
            joined = talk.join("ann", group, joined.member_id, version=version)
        member_id = joined.member_id
        older = min(version, 5)
        talk.sync("ann", group, member_id, 1, {member_id: b"a", "stranger": b"s"}, version=older)
        talk.look(group)
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id)
        talk.ask("ann", request, min(version, 4))
        if older >= 3:
            talk.leave("ann", group, (member_id, None), version=older)
        else:
            talk.ask("ann", LeaveGroupRequest(group_id=group, member_id=member_id), older)
        talk.look(group)


def refused_joins(talk: Talk) -> None:
    for version in (0, 3, 4, 6, 7, 9):
        group = f"refused-v{version}"
        for session_ms in (-1, 0, 10, 1_800_001):
            talk.join("ann", group, version=version, session_timeout_ms=session_ms)
        talk.join("ann", group, "unknown", version=version, session_timeout_ms=1)
        talk.join("ann", group, version=version, protocol_type="")
        talk.join("ann", group, version=version, protocols={})
        talk.join("ann", group, version=version, protocol_type="", protocols={})
        talk.join("ann", group, "unknown", version=version)
        talk.join("ann", f"{group}-never", "unknown", version=version, protocols={})
        talk.join("ann", "", version=version)
        talk.join("ann", "", "unknown", version=version, session_timeout_ms=1)
        if version >= 5:
            talk.join("ann", group, "unknown", version=version, group_instance_id="i")


def strangers(talk: Talk) -> None:
    group = "strangers"
    ann = talk.enter("ann", group)
    talk.hears("ann")
    for version in (3, 6, 7, 9):
        talk.join("ben", group, version=version, protocol_type="connect")
        talk.join("ben", group, version=version, protocols={"sticky": b""})
        talk.join("ben", group, version=version, protocols={})
        talk.join("ben", group, "unknown", version=version)
        talk.join("ben", group, "unknown", version=version, protocols={"sticky": b""})
        talk.join("ben", group, ann, version=version, protocol_type="connect")
        if version >= 5:
            talk.join("ben", group, ann, version=version, group_instance_id="i")
    talk.sync("ann", group, ann, 1, {ann: b"1"})
    talk.join("ben", group, protocol_type="connect")
    talk.title("a member id that was given, and not used yet")
    pending = talk.join("ben", group).member_id
    for generation in (1, 0, -1):
        talk.beat("ben", group, pending, generation)
        talk.sync("ben", group, pending, generation)
        talk.commit("ben", group, pending, generation)
    talk.look(group)
    talk.join("ben", group, pending, group_instance_id="i")
    talk.leave("ben", group, (pending, None))
    talk.join("ben", group, pending)
    pending = talk.join("ben", group).member_id
    talk.leave("ben", group, (pending, "i"), (ann, "i"))
    talk.join("ben", group, pending)
    talk.leave("ann", group, (ann, None))


def every_state(talk: Talk) -> None:
    group = "states"
    talk.title("a group that does not exist")
    for member_id in ("x", ""):
        for generation in (0, 1, -1):
            talk.beat("cat", group, member_id, generation)
            talk.sync("cat", group, member_id, generation)
            if generation >= 0:
                talk.commit("cat", group, member_id, generation)
                talk.commit("cat", group, member_id, generation, version=8)
    talk.leave("cat", group, ("x", None), ("", None), ("", "i"))
    talk.ask("cat", LeaveGroupRequest(group_id=group, member_id="x"), 2)
    ann = talk.enter("ann", group)
    talk.hears("ann")
    talk.title("CompletingRebalance")
    ask_everything(talk, group, ann, 1)
    refused_syncs(talk, group, ann)
    talk.sync("ann", group, ann, 1, version=4)
    talk.title("Stable")
    ask_everything(talk, group, ann, 1)
    talk.sync("ann", group, ann, 1, {ann: b"late"})
    talk.title("PreparingRebalance")
    ben = talk.enter("ben", group)
    talk.waits("ben")
    ask_everything(talk, group, ann, 1)
    talk.sync("ann", group, ann, 1)
    for generation in (1, 2):
        talk.beat("cat", group, ben, generation)
        talk.commit("cat", group, ben, generation)
        talk.sync("cat", group, ben, generation)
    talk.join("ann", group, ann)
    talk.hears("ben")
    talk.say("ben", sync_request(group, ben, 2))
    talk.waits("ben")
    talk.sync("ann", group, ann, 2, {ben: b"b"})
    talk.hears("ben")
    talk.look(group)
    talk.leave("ann", group, (ann, None), (ben, None), (ben, None))
    talk.title("Empty")
    ask_everything(talk, group, ann, 3)
    talk.look(group)


def ask_everything(talk: Talk, group: str, member_id: str, generation: int) -> None:
    """All but the sync that is right."""
    for name, number, instance in (
        (member_id, generation, None),
        (member_id, generation + 1, None),
        (member_id, -1, None),
        ("x", generation, None),
        ("", generation, None),
        ("", -1, None),
        (member_id, generation, "i"),
        ("", -1, "i"),
        ("x", -1, "i"),
    ):
        talk.beat("cat", group, name, number, instance)
        if (name, number, instance) != (member_id, generation, None):
            talk.sync("cat", group, name, number, group_instance_id=instance)
        talk.commit("cat", group, name, number, group_instance_id=instance)
        talk.commit("cat", group, name, number, version=8, group_instance_id=instance)
    talk.look(group)
    talk.ask("cat", DeleteGroupsRequest(groups_names=[group]))


def refused_syncs(talk: Talk, group: str, member_id: str) -> None:
    talk.sync("cat", group, member_id, 1, protocol_type="connect")
    talk.sync("cat", group, member_id, 1, protocol_name="other")
    talk.sync("cat", group, member_id, 1, protocol_name="")
    talk.sync("cat", group, member_id, 1, protocol_name=None)
    talk.sync("cat", group, member_id, 1, protocol_type=None)
    talk.sync("cat", group, member_id, 2, protocol_type=None)
    talk.sync("cat", group, "x", 1, protocol_type=None)
    talk.sync("cat", "nowhere", "x", 1, protocol_type=None)


def rejoins(talk: Talk) -> None:
    group = "rejoins"
    ann = talk.enter("ann", group)
    talk.hears("ann")
    talk.title("while the group waits for the assignment: the same, then other metadata")
    talk.join("ann", group, ann)
    talk.join("ann", group, ann, protocols=NEW)
    talk.sync("ann", group, ann, 2, {ann: b"a"})
    talk.title("the leader of a stable group, and a newcomer")
    talk.join("ann", group, ann, protocols=NEW, reason="for no reason")
    talk.sync("ann", group, ann, 3, {ann: b"a"})
    ben = talk.enter("ben", group)
    talk.waits("ben")
    talk.beat("cat", group, ann, 3)
    talk.join("ann", group, ann, protocols=NEW | {"sticky": b""})
    talk.hears("ben")
    talk.title("a follower whose sync waits, and a follower of a stable group")
    talk.join("ben", group, ben)
    talk.say("ben", sync_request(group, ben, 4))
    talk.waits("ben")
    talk.join("cat", group, ben)
    talk.waits("ben")
    talk.sync("ann", group, ann, 4, {ann: b"a4", ben: b"b4"})
    talk.hears("ben")
    talk.join("ben", group, ben)
    talk.join("ben", group, ben, session_timeout_ms=20_000, rebalance_timeout_ms=12_345)
    talk.say("ben", join_request(group, ben, protocols=OTHER))
    talk.waits("ben")
    talk.beat("ann", group, ann, 4)
    talk.join("ann", group, ann)
    talk.hears("ben")
    syncs_that_are_cut_off(talk, group, ann, ben)


def syncs_that_are_cut_off(talk: Talk, group: str, ann: str, ben: str) -> None:
    talk.title("by the follower's other metadata")
    talk.say("ann", sync_request(group, ben, 5))
    talk.waits("ann")
    talk.say("ben", join_request(group, ben, protocols=NEW))
    talk.hears("ann")
    talk.waits("ben")
    talk.join("ann", group, ann)
    talk.hears("ben")
    talk.title("by the leader's")
    talk.say("ben", sync_request(group, ben, 6))
    talk.waits("ben")
    talk.say("ann", join_request(group, ann, protocols=OTHER))
    talk.hears("ben")
    talk.waits("ann")
    talk.join("ben", group, ben)
    talk.hears("ann")
    talk.title("by a leader that leaves")
    talk.say("ben", sync_request(group, ben, 7))
    talk.waits("ben")
    talk.leave("ann", group, (ann, None))
    talk.hears("ben")
    talk.join("ben", group, ben)
    talk.sync("ben", group, ben, 8, {ben: b"all"})
    talk.leave("ben", group, ("y", None), (ben, None))
    talk.title("an empty group takes members of another kind")
    cat = talk.enter("cat", group, protocol_type="connect", protocols={"p": b""})
    talk.hears("cat")
    talk.sync("cat", group, cat, 10, {cat: b""}, protocol_type="connect", protocol_name="p")
    talk.look(group)
    talk.leave("cat", group, (cat, None))


def protocols(talk: Talk) -> None:
    group = "protocols"
    many, some = {"one": b"1", "two": b"2", "three": b"3"}, {"two": b"b2", "three": b"b3"}
    ann = talk.enter("ann", group, protocols=many)
    talk.hears("ann")
    ben = talk.enter("ben", group, protocols=some)
    talk.waits("ben")
    talk.join("ann", group, ann, protocols=many)
    talk.hears("ben")
    cat = talk.enter("cat", group, protocols=some)
    talk.waits("cat")
    talk.say("ben", join_request(group, ben, protocols=some))
    talk.waits("ben")
    talk.join("ann", group, ann, protocols=many)
    talk.hears("ben")
    talk.hears("cat")
    talk.sync("ann", group, ann, 3, {ann: b"A", ben: b"B"}, protocol_name="two")
    talk.look(group)
    talk.sync("cat", group, cat, 3, protocol_name="two")
    talk.sync("cat", group, cat, 3, protocol_name="three")
    talk.leave("ann", group, (ann, None), (ben, None), (cat, None))


def static_members(talk: Talk) -> None:
    group = "static"
    ann: str = talk.join("ann", group, group_instance_id="A").member_id
    talk.sync("ann", group, ann, 1, {ann: b"a"}, group_instance_id="A")
    for version in (5, 7, 9):
        talk.title(f"comes back, v{version}")
        old, ann = ann, talk.join("ann", group, group_instance_id="A", version=version).member_id
        talk.sync("ann", group, ann, 1, group_instance_id="A")
        for name, instance in ((old, "A"), (old, None), (ann, "A"), (ann, None), (ann, "other")):
            talk.beat("cat", group, name, 1, instance)
        for instance in ("A", None):
            talk.sync("cat", group, old, 1, group_instance_id=instance)
            talk.commit("cat", group, old, 1, group_instance_id=instance)
            talk.join("cat", group, old, group_instance_id=instance)
        talk.leave("cat", group, (old, "A"), (old, None), ("", "nobody"), (ann, "other"))
        talk.look(group)
    talk.title("comes back with other metadata, with another protocol, with both, and before it has synced")
    ann = talk.join("ann", group, group_instance_id="A", protocols=NEW).member_id
    talk.sync("ann", group, ann, 1, group_instance_id="A")
    ann = talk.join("ann", group, group_instance_id="A", protocols={"sticky": b"new"}).member_id
    talk.sync("ann", group, ann, 2, {ann: b"s"}, group_instance_id="A", protocol_name="sticky")
    both = {"range": b"r", "sticky": b"s"}
    talk.join("ann", group, group_instance_id="A", protocols=both)
    talk.look(group)
    ann = talk.join("ann", group, group_instance_id="A", protocols=both).member_id
    talk.sync("ann", group, ann, 3, {ann: b"x"}, group_instance_id="A")
    talk.sync("ann", group, ann, 4, {ann: b"x"}, group_instance_id="A")
    talk.look(group)
    fenced_while_they_wait(talk, group, ann)


def fenced_while_they_wait(talk: Talk, group: str, ann: str) -> None:
    talk.title("for the others")
    talk.say("ben", join_request(group, group_instance_id="B"))
    talk.waits("ben")
    talk.say("ben again", join_request(group, group_instance_id="B"))
    talk.hears("ben")
    talk.waits("ben again")
    talk.join("ann", group, ann, group_instance_id="A")
    joined = talk.hears("ben again")
    ben, generation = joined.member_id, joined.generation_id
    talk.title("for the assignment")
    talk.say("ben again", sync_request(group, ben, generation, group_instance_id="B"))
    talk.waits("ben again")
    talk.say("ben", join_request(group, group_instance_id="B"))
    talk.hears("ben again")
    talk.waits("ben")
    talk.join("ann", group, ann, group_instance_id="A")
    ben, generation = talk.hears("ben").member_id, generation + 1
    talk.sync("ann", group, ann, generation, {ann: b"a", ben: b"b"}, group_instance_id="A")
    talk.sync("ben", group, ben, generation, group_instance_id="B")
    talk.title("a follower comes back, and goes")
    for version in (5, 9):
        ben = talk.join("ben", group, group_instance_id="B", version=version).member_id
        talk.sync("ben", group, ben, generation, group_instance_id="B")
        talk.beat("ann", group, ann, generation, "A")
    talk.join("ben", group, ben, group_instance_id="B")
    talk.join("ben", group, ben)
    talk.leave("ben", group, ("", "B"), ("", "B"))
    talk.beat("ann", group, ann, generation, "A")
    talk.join("ann", group, ann, group_instance_id="A")
    talk.look(group)
    talk.leave("ann", group, ("", "A"), ("", None), ("", ""))
    talk.look(group)


def time_is_up(talk: Talk) -> None:
    talk.title("who neither joins nor syncs again is out")
    group = "late"
    ann = talk.enter("ann", group, rebalance_timeout_ms=700)
    talk.hears("ann")
    talk.sync("ann", group, ann, 1, {ann: b"a"})
    ben = talk.enter("ben", group, rebalance_timeout_ms=700)
    talk.hears("ben")
    talk.look(group)
    talk.beat("ann", group, ann, 1)
    talk.beat("ann", group, ann, 2)
    time.sleep(1)
    talk.look(group)
    talk.beat("ben", group, ben, 2)
    talk.join("ben", group, ben)
    talk.title("but a static member stays")
    group = "late-static"
    ann = talk.join("ann", group, group_instance_id="A", rebalance_timeout_ms=700).member_id
    talk.sync("ann", group, ann, 1, {ann: b"a"}, group_instance_id="A")
    ben = talk.join("ben", group, group_instance_id="B", rebalance_timeout_ms=700).member_id
    talk.look(group)
    talk.sync("ben", group, ben, 2, {ann: b"a", ben: b"b"}, group_instance_id="B")
    talk.beat("ann", group, ann, 1, "A")
    talk.sync("ann", group, ann, 2, group_instance_id="A")
    talk.leave("ben", group, ("", "A"), ("", "B"))
    talk.title("sessions, also of a member id that was never used")
    group = "silent"
    ann = talk.enter("ann", group, session_timeout_ms=600)
    talk.hears("ann")
    talk.sync("ann", group, ann, 1, {ann: b"a"})
    pending = talk.join("ben", group, session_timeout_ms=600).member_id
    time.sleep(1)
    talk.look(group)
    talk.join("ben", group, pending, session_timeout_ms=600)
    talk.beat("ann", group, ann, 1)


def full_groups(talk: Talk) -> None:
    group = "full"
    ids: list[str] = []
    for newcomer in ("one", "two", "three"):
        ids.append(talk.enter(newcomer, group))
        if newcomer != "one":
            talk.waits(newcomer)
        for name, member_id in zip(("one", "two"), ids[:-1], strict=False):
            talk.say(name, join_request(group, member_id))
            if member_id != ids[-2]:
                talk.waits(name)
        for name in ("one", "two", "three")[: len(ids)]:
            talk.hears(name)
    for changes in ({}, {"version": 3}, {"member_id": "unknown"}, {"group_instance_id": "X"}):
        talk.join("four", group, **changes)
    talk.sync("one", group, ids[0], 3, {ids[0]: b"a"})
    talk.join("four", group)
    talk.title("while the others join again, the first to come are in")
    talk.say("one", join_request(group, ids[0]))
    talk.waits("one")
    pending = talk.join("four", group).member_id
    talk.say("two", join_request(group, ids[1]))
    talk.waits("two")
    talk.say("four", join_request(group, pending))
    talk.waits("four")
    talk.join("five", group, version=3)
    talk.join("three", group, ids[2])


CLASSIC_LIVES = (
    every_version,
    refused_joins,
    strangers,
    every_state,
    rejoins,
    protocols,
    static_members,
    time_is_up,
    full_groups,
)
