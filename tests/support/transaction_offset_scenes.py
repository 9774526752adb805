"""Offsets in transactions: pending, committed, taken back, and fenced by groups; see `transaction_life`."""

from __future__ import annotations

from transaction_life import Life
from transaction_transcript import GROUP, STRANGER, Who


def before_the_first_group(life: Life) -> None:
    """A producer of version 1 adds the offsets of a group before anybody has looked for a group's coordinator."""
    who = life.init("first")
    life.add_offsets(who, GROUP)
    life.describe("first")
    life.warm_up(GROUP)
    life.commit_offsets(who, GROUP, (life.topic(1), 0, 1), version=4)
    life.end(who, commit=False, version=4)


def offsets(life: Life) -> None:
    topic = life.topic(2)
    stranger = Who("nobody", STRANGER + 99, 0)
    for version in range(5):
        life.add_offsets(stranger, GROUP, version=version)
        life.add_offsets(stranger, "", version=version)
        life.add_offsets(stranger.called(""), GROUP, version=version)
        life.add_offsets(stranger.called(""), "", version=version)
    ann = life.init("offsets-ann")
    for version in range(5):
        life.add_offsets(ann.at(9), GROUP, version=version)
        life.add_offsets(ann._replace(producer_id=STRANGER), GROUP, version=version)
    for version in range(6):
        life.commit_offsets(stranger, GROUP, (topic, 0, 1), version=version)
        life.commit_offsets(stranger.called(""), GROUP, (topic, 0, 1), version=version)
        life.commit_offsets(stranger, "", (topic, 0, 1), version=version)
        life.commit_offsets(stranger, "", version=version)
        life.commit_offsets(stranger, GROUP, version=version)
        life.commit_offsets(stranger, GROUP, ("no-such-topic", 0, 1), version=version)
        life.commit_offsets(
            stranger, GROUP, ("no-such-topic", 0, 1), (topic, 0, 1), (topic, 9, 1), version=version
        )
        life.commit_offsets(ann.at(7), GROUP, (topic, 0, 1), version=version)
        life.commit_offsets(ann._replace(producer_id=STRANGER), GROUP, (topic, 0, 1), version=version)
    for version in range(5):
        life.commit_offsets(ann, GROUP, (topic, 0, 1), version=version)
    life.describe("offsets-ann")
    life.add_offsets(ann, "")
    life.describe("offsets-ann")
    life.add_offsets(ann, GROUP)
    life.describe("offsets-ann")
    for version in range(6):
        life.commit_offsets(
            ann, GROUP, (topic, 0, 1), (topic, 9, 1), ("no", 0, 4), (topic, 1, 5), version=version
        )
    life.commit_offsets(ann, GROUP)
    life.commit_offsets(ann, GROUP, (topic, 0, 1), generation_id=3)
    life.commit_offsets(ann, GROUP, (topic, 0, 1), generation_id=0, member_id="m")
    life.commit_offsets(ann, GROUP, (topic, 0, 1), member_id="m")
    life.commit_offsets(ann, GROUP, (topic, 0, 1), group_instance_id="i")
    life.commit_offsets(ann, GROUP, (topic, 0, 1), group_instance_id="i", member_id="m", generation_id=-2)
    life.commit_offsets(ann, GROUP, (topic, 0, -5), (topic, 1, 2**62))
    life.commit_offsets(ann, GROUP, (topic, 0, 3), metadata="x" * 4097)
    life.commit_offsets(ann, GROUP, (topic, 0, 3), metadata="é" * 4096)
    life.commit_offsets(ann, GROUP, (topic, 0, 3), metadata=None)
    life.commit_offsets(ann.at(8), GROUP, (topic, 0, 3))
    life.describe("offsets-ann")
    for stable in (False, True):
        life.committed(GROUP, (topic, [0, 1, 9]), ("no", [0]), stable=stable)
        life.committed(GROUP, stable=stable)
    life.group(GROUP)
    life.delete_offsets(GROUP, topic, 1, 9)
    life.delete_offsets(GROUP, "no", 0)
    life.committed(GROUP, (topic, [0, 1]), stable=True)
    life.delete_group(GROUP)
    ann = life.end(ann, commit=True)
    for stable in (False, True):
        life.committed(GROUP, (topic, [0, 1]), stable=stable)
    life.commit_offsets(ann, GROUP, (topic, 0, 20))
    life.committed(GROUP, stable=True)
    life.committed(GROUP)
    ann = life.end(ann, commit=False)
    life.committed(GROUP, stable=True)
    life.commit_offsets(ann, GROUP, (topic, 0, 20))
    life.delete_group(GROUP)
    life.committed(GROUP, (topic, [0]), stable=True)
    ann = life.end(ann, commit=True)
    life.committed(GROUP, (topic, [0]), stable=True)
    life.group(GROUP)
    life.delete_offsets(GROUP, topic, 0, 1)
    life.group(GROUP)


def offsets_of_members(life: Life) -> None:
    """The fences of the group, by either of its protocols."""
    topic = life.topic(1)
    who = life.init("member")
    group = "classic-group"
    member = life.join(group, topic)
    for generation, name, instance in (
        (1, member, "i"), (1, member, None), (1, member, "j"), (1, "m", "i"), (1, "m", None), (1, "", "i"),
        (1, "", None), (0, member, "i"), (2, member, "i"), (-1, member, "i"), (-1, "", None), (-1, "", "i"),
        (-1, "m", None),
        (0, "", None), (-2, "", None),
    ):  # fmt: skip
        shown = {"generation_id": generation, "group_instance_id": instance}
        for version in (3, 5):
            life.commit_offsets(who, group, (topic, 0, 5), version=version, member_id=name, **shown)
    life.describe("member")
    life.delete_offsets(group, topic, 0)
    life.committed(group, stable=True)
    who = life.end(who, commit=True)
    life.committed(group, stable=True)
    group = "consumer-group"
    for epoch, name in ((0, "m-1"), (1, "m-1"), (-1, "")):
        life.commit_offsets(who, group, (topic, 0, 6), generation_id=epoch, member_id=name)
    who = life.end(who, commit=False)
    life.beat(group, topic, "m-1")
    for epoch, name in ((2, "m-1"), (1, "m-1"), (3, "m-1"), (0, "m-1"), (-1, "m-1"), (2, "m-2"), (-1, "m-2"), (2, ""),
                        (-1, ""), (0, ""), (-2, "")):  # fmt: skip
        for version in (3, 5):
            life.commit_offsets(
                who, group, (topic, 0, 6), version=version, generation_id=epoch, member_id=name
            )
        life.commit_offsets(
            who, group, (topic, 0, 6), generation_id=epoch, member_id=name, group_instance_id="i"
        )
    life.committed(group, (topic, [0]), stable=True)
    life.end(who, commit=True)
    life.committed(group, (topic, [0]), stable=True)


def offsets_of_two(life: Life) -> None:
    """The younger record counts, not the one whose transaction ended last."""
    topic = life.topic(3)
    group = "shared-group"
    ann, bob = life.init("two-ann"), life.init("two-bob")
    life.commit_offsets(ann, group, (topic, 0, 10), (topic, 1, 10))
    life.group(group)
    life.commit_offsets(bob, group, (topic, 0, 20), (topic, 2, 20))
    life.commit_plainly(group, topic, 1, 15)
    for stable in (True, False):
        life.committed(group, stable=stable)
        life.committed(group, (topic, [0, 1, 2]), stable=stable)
    for version in (1, 2, 5, 6, 7):
        life.committed_before_batches(group, topic, 0, 1, 2, version=version)
    bob = life.end(bob, commit=True)
    life.committed(group, (topic, [0, 1, 2]), stable=True)
    life.committed(group, (topic, [0, 1, 2]))
    ann = life.end(ann, commit=True)
    life.committed(group, (topic, [0, 1, 2]), stable=True)
    life.commit_offsets(ann, group, (topic, 0, 30))
    life.delete_offsets(group, topic, 0)
    life.committed(group, (topic, [0, 1, 2]), stable=True)
    life.delete_group(group)
    life.committed(group, (topic, [0, 1, 2]), stable=True)
    life.commit_offsets(bob, group, (topic, 2, 31))
    ann = life.end(ann, commit=True)
    life.committed(group, (topic, [0, 1, 2]), stable=True)
    bob = life.end(bob, commit=False)
    life.committed(group, stable=True)
    life.commit_offsets(bob, group, (topic, 2, 31))
    life.end(bob, commit=True)
    life.group(group)
