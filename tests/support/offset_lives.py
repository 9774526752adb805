"""How committed offsets and groups are administered, to be lived on two brokers and compared (see `group_talk`).

There are topics `t` and `u` with four partitions each; other names are those of topics that do not exist. The broker
has the settings of `classic_lives`. Lists of groups are compared as a whole: these lives come first.
"""

from __future__ import annotations

from typing import Any

from group_talk import Talk, commit_request
from waiting import wait_until

from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

SHARE_KEY = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
SHARE_MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
READS_T, READS_U = (b"\0\0\0\0\0\1\0\1%b\xff\xff\xff\xff" % topic for topic in (b"t", b"u"))
"""Subscriptions of consumers, as an assignor's metadata."""
EVERYTHING = {"t": [0, 9], "u": [0, 8, 1], "nowhere": [0]}
ODD_NAMES = ("nonsense", "", " stable", "Unknown", "Dead", "NotReady")
STATES = ("Stable", "stable", "STABLE", "Empty", "PreparingRebalance", "Preparing_Rebalance", "Reconciling")
TYPES = ("classic", "Classic", "CONSUMER", "share", "streams", "unknown", " classic", "nonsense", "")

# -- words ------------------------------------------------------------------------------------------------


def fetch(
    talk: Talk, group: str, topics: dict[str, list[int]] | None, version: int = 9, **changes: Any
) -> None:
    """`changes` are fields of the group from version 8 on, but for `require_stable`."""
    stable = {"require_stable": True} if changes.pop("require_stable", False) else {}
    if version < 8:
        old = [
            OffsetFetchRequestTopic(name=name, partition_indexes=some)
            for name, some in (topics or {}).items()
        ]
        request = OffsetFetchRequest(group_id=group, topics=None if topics is None else old, **stable)
    else:
        asked = fetch_group(talk, group, topics)
        for name, value in changes.items():
            setattr(asked, name, value)
        request = OffsetFetchRequest(groups=[asked], **stable)
    talk.ask("ann", request, version)


def fetch_group(talk: Talk, group: str, topics: dict[str, list[int]] | None) -> OffsetFetchRequestGroup:
    listed = [
        OffsetFetchRequestTopics(name=name, topic_id=talk.topic_id(name), partition_indexes=some)
        for name, some in (topics or {}).items()
    ]
    return OffsetFetchRequestGroup(group_id=group, topics=None if topics is None else listed)


def delete_offsets(talk: Talk, group: str, topics: dict[str, list[int]]) -> None:
    listed = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for name, indexes in topics.items()
    ]
    talk.ask("ann", OffsetDeleteRequest(group_id=group, topics=listed))


def delete_groups(talk: Talk, *groups: str, version: int = 2) -> None:
    talk.ask("ann", DeleteGroupsRequest(groups_names=list(groups)), version)


# -- lives ------------------------------------------------------------------------------------------------


def coordinators(talk: Talk) -> None:
    for key_type, key in ((1, "g"), (2, SHARE_KEY)):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        found = talk.connection("nobody").call
        wait_until(lambda: found(request).coordinators[0].error_code == 0, "a coordinator", 20)  # noqa: B023
    for version in range(7):
        for key_type in (0, 1, 2, 3, -1) if version else (0,):
            for key in ("g", ""):
                request = FindCoordinatorRequest(key_type=key_type, key=key, coordinator_keys=[key])
                talk.ask("ann", request, version)
    for keys in ([], ["a", "b", "a"], ["", "b"]):
        for version, key_type in ((4, 0), (6, 1), (6, 3)):
            talk.ask("ann", FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys), version)
    group, topic_id, _ = SHARE_KEY.split(":")
    keys = [SHARE_KEY, "wrong", SHARE_KEY, f"{SHARE_KEY}:1", f"{group}:x:0", "g::", "::0", f":{topic_id}:0"]
    keys += [f"a:b:{topic_id}:1", *(f"{group}:{topic_id}:{partition}" for partition in ("", "x", "-1"))]
    talk.ask("ann", FindCoordinatorRequest(key_type=2, coordinator_keys=keys))


def simple_consumers(talk: Talk) -> None:
    for version in range(2, 11):
        group = f"simple-v{version}"
        for member_id, generation in (("", 0), ("x", 0), ("x", 5), ("x", -1), ("", -1), ("", -2)):
            talk.commit("ann", group, member_id, generation, version)
        for offsets in (
            {"t": {0: 1, 9: 2, 1: 3, -1: 4}, "nowhere": {0: 1}, "u": {3: 4}},
            {"nowhere": {0: 1}},
            {},
            {"t": {}},
            {"t": {}, "u": {1: 1}},
            {"t": {2: -1}, "u": {0: 2**62}},
            {"t": {2: -5}},
        ):
            talk.commit("ann", group, version=version, offsets=offsets)
        for metadata in ("0123456789", "01234567890", None, "é" * 10, "é" * 11, "😀" * 5, "😀" * 6):
            talk.commit("ann", group, version=version, metadata=metadata)
        for retention_ms in (0, 3_600_000, -7) if version <= 4 else ():
            talk.commit("ann", group, version=version, retention_time_ms=retention_ms, offsets={"u": {2: 1}})
        for member_id, generation in (("x", -1), ("", -1), ("", 0)) if version >= 7 else ():
            talk.commit("ann", group, member_id, generation, version, group_instance_id="i")
        talk.commit("ann", "", version=version)
        talk.commit("ann", "", "x", 1, version)
        fetch(talk, group, None, 8)
        talk.look(group)
    nameless = commit_request("by-id", offsets={"t": {0: 1}, "u": {0: 1}}, ids={"u": talk.topic_id("u")})
    talk.ask("ann", nameless, 10)
    for version in (9, 10):
        fetch(talk, "by-id", None, version)


def fetches(talk: Talk) -> None:
    talk.commit("ann", "fetched", offsets={"t": {0: 5, 2: 6}, "u": {1: 7}}, metadata="meta")
    for version in range(1, 11):
        for group in ("fetched", "unknown", ""):
            fetch(talk, group, {"t": [0, 1, 2, 9], "u": [], "nowhere": [0]}, version)
            fetch(talk, group, {"t": [0, 0], "strange": [1, 2]}, version)
            fetch(talk, group, {}, version)
            fetch(talk, group, None, version) if version > 1 else None
            if version >= 7:
                fetch(talk, group, None, version, require_stable=True)
            for member_id in ("", None, "x") if version >= 9 else ():
                for epoch in (-1, 0, 5):
                    fetch(talk, group, {"t": [0]}, version, member_id=member_id, member_epoch=epoch)
    talk.title("all, in the version that cannot ask for it")
    fetch(talk, "fetched", None, 1)
    talk.title("several groups, and none")
    several = [("fetched", None), ("unknown", {"t": [0]}), ("", None), ("fetched", {"u": [1, 0]})]
    for version in (8, 9, 10):
        groups = [fetch_group(talk, group, topics) for group, topics in several]
        talk.ask("ann", OffsetFetchRequest(groups=groups), version)
        talk.ask("ann", OffsetFetchRequest(), version)


def offsets_of_members(talk: Talk) -> None:
    group = "lively"
    ann = talk.enter("ann", group, protocols={"range": READS_T})
    talk.hears("ann")
    for state in ("CompletingRebalance", "Stable"):
        talk.title(state)
        for member_id, generation in ((ann, 1), (ann, 0), ("", -1), ("x", 1)):
            talk.commit("ann", group, member_id, generation)
            talk.commit("ann", group, member_id, generation, 2)
            fetch(talk, group, {"t": [0]}, member_id=member_id, member_epoch=generation)
        talk.commit("ann", group, ann, 1, offsets={"u": {0: 1, 1: 2}})
        delete_offsets(talk, group, EVERYTHING)
        if state == "CompletingRebalance":
            talk.sync("ann", group, ann, 1, {ann: b""})
    talk.title("PreparingRebalance, and with another subscription")
    ben = talk.enter("ben", group, protocols={"range": READS_U})
    talk.waits("ben")
    delete_offsets(talk, group, EVERYTHING)
    talk.join("ann", group, ann, protocols={"range": READS_T})
    talk.hears("ben")
    talk.sync("ann", group, ann, 2)
    delete_offsets(talk, group, EVERYTHING)
    talk.title("Empty")
    talk.leave("ann", group, (ann, None), (ben, None))
    delete_offsets(talk, group, EVERYTHING)
    delete_offsets(talk, group, {"t": [1]})
    fetch(talk, group, None)
    talk.title("members that are no consumers, or cannot be understood")
    cat = talk.enter("cat", group, protocol_type="connect", protocols={"p": b""})
    talk.hears("cat")
    delete_offsets(talk, group, EVERYTHING)
    talk.leave("cat", group, (cat, None))
    ann = talk.enter("ann", group)
    talk.hears("ann")
    delete_offsets(talk, group, EVERYTHING)
    talk.leave("ann", group, (ann, None))
    talk.title("nothing, and nobody")
    for group in ("lively", "unknown", ""):
        for topics in ({}, {"t": []}, {"nowhere": [1]}, EVERYTHING):
            delete_offsets(talk, group, topics)


def consumer_groups(talk: Talk) -> None:
    """What the classic requests say to a group of the newer protocol: one member at epoch 2."""
    group = "modern"
    join = ConsumerGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=0)
    join.rebalance_timeout_ms, join.subscribed_topic_names, join.topic_partitions = 20_000, ["t"], []
    talk.ask("ann", join)
    for member_id in ("m", "x", ""):
        for epoch in (2, 1, 3, -1):
            for version in (2, 8, 9):
                talk.commit("ann", group, member_id, epoch, version)
            talk.commit("ann", group, member_id, epoch, group_instance_id="i")
            fetch(talk, group, {"t": [0]}, member_id=member_id, member_epoch=epoch)
            talk.beat("ann", group, member_id, epoch)
            talk.sync("ann", group, member_id, epoch)
    talk.join("ben", group, protocol_type="connect")
    talk.join("ben", group, protocols={})
    talk.leave("ben", group, ("", "x"), ("z", None), ("z", "x"), ("m", "x"))
    delete_offsets(talk, group, EVERYTHING)
    for version in (0, 5, 6):
        talk.look(group, version=version)
    delete_groups(talk, group)
    talk.leave("ben", group, ("m", None))
    talk.look(group)
    for member_id, epoch in (("m", 2), ("", -1), ("x", -1), ("x", 1)):
        for version in (2, 9):
            talk.commit("ann", group, member_id, epoch, version)
        fetch(talk, group, {"t": [0]}, member_id=member_id, member_epoch=epoch)
        talk.beat("ann", group, member_id, epoch)
        talk.sync("ann", group, member_id, epoch)
    talk.leave("ben", group, ("m", None), ("", "i"))
    delete_offsets(talk, group, EVERYTHING)
    delete_groups(talk, group)


def share_groups(talk: Talk) -> None:
    """What the requests of other kinds of groups say to a share group."""
    group = "shared"
    join = ShareGroupHeartbeatRequest(group_id=group, member_id=SHARE_MEMBER, member_epoch=0)
    join.subscribed_topic_names = ["t"]
    talk.connection("ann").call(join)
    for member_id, epoch in ((SHARE_MEMBER, 1), ("", -1), ("x", 1)):
        for version in (2, 8, 9):
            talk.commit("ann", group, member_id, epoch, version)
        talk.commit("ann", group, member_id, epoch, offsets={"nowhere": {0: 1}, "t": {0: 1}})
        for version in (5, 8, 9, 10):
            fetch(talk, group, {"t": [0]}, version)
            fetch(talk, group, None, version)
        fetch(talk, group, {"t": [0]}, member_id=member_id, member_epoch=epoch)
        talk.beat("ann", group, member_id, epoch)
        talk.sync("ann", group, member_id, epoch)
        talk.leave("ann", group, (member_id, None), ("", "i"))
    for version in (3, 9):
        talk.join("ann", group, version=version)
    delete_offsets(talk, group, EVERYTHING)
    for version in (0, 5, 6):
        talk.look(group, version=version)
    delete_groups(talk, group)
    leave = ShareGroupHeartbeatRequest(group_id=group, member_id=SHARE_MEMBER, member_epoch=-1)
    talk.connection("ann").call(leave)
    delete_offsets(talk, group, EVERYTHING)
    talk.join("ann", group)
    talk.commit("ann", group)
    delete_groups(talk, group, group)


def administration(talk: Talk) -> None:
    ann = talk.enter("ann", "adm-stable")
    talk.hears("ann")
    talk.sync("ann", "adm-stable", ann, 1, {ann: b"x"})
    talk.enter("ben", "adm-preparing")
    talk.hears("ben")
    talk.enter("cat", "adm-preparing")
    talk.waits("cat")
    dan = talk.enter("dan", "adm-empty")
    talk.hears("dan")
    talk.leave("dan", "adm-empty", (dan, None))
    talk.commit("ann", "adm-simple")
    pending = talk.join("eve", "adm-pending").member_id
    listings(talk)
    every = ["adm-stable", "adm-preparing", "adm-empty", "adm-simple", "adm-pending", "adm-none", "adm-none"]
    for version in range(7):
        talk.look(*every, version=version)
        talk.look(version=version)
        if version >= 3:
            request = DescribeGroupsRequest(groups=every, include_authorized_operations=True)
            talk.ask("ann", request, version)
    for version in range(3):
        for groups in ([], ["adm-none", "adm-none"], ["adm-stable"], ["adm-preparing"]):
            delete_groups(talk, *groups, version=version)
        delete_groups(talk, "adm-simple", "adm-none", "adm-stable", version=version)
        delete_groups(talk, "adm-simple", version=version)
        talk.commit("ann", "adm-simple")
    delete_groups(talk, "adm-empty", "adm-empty", "adm-pending")
    talk.join("eve", "adm-pending", pending)
    talk.look("adm-empty", "adm-pending")


def listings(talk: Talk) -> None:
    for version in range(6):
        talk.ask("ann", ListGroupsRequest(), version)
    for state in (*STATES, *ODD_NAMES):
        talk.ask("ann", ListGroupsRequest(states_filter=[state]), 4)
        talk.ask("ann", ListGroupsRequest(states_filter=[state, "Empty"]))
    for name in TYPES:
        talk.ask("ann", ListGroupsRequest(types_filter=[name]))
        talk.ask("ann", ListGroupsRequest(types_filter=[name, "share"], states_filter=["Stable", "Empty"]))


OFFSET_LIVES = (
    coordinators,
    simple_consumers,
    fetches,
    offsets_of_members,
    consumer_groups,
    share_groups,
    administration,
)
