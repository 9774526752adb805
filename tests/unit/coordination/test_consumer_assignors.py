"""The assignors of consumer groups: everything once, balanced, sticky, co-partitioned."""

from __future__ import annotations

import random

import pytest

from tidemill.coordination.group.assignor import Assignment, GroupSpec, MemberSpec
from tidemill.coordination.group.assignors_consumer import CONSUMER_ASSIGNORS, RangeAssignor, UniformAssignor

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
UNIFORM, RANGE = UniformAssignor(), RangeAssignor()


def spec(counts: dict[bytes, int], **members: MemberSpec) -> GroupSpec:
    return GroupSpec(members, counts)


def reader(*topics: bytes, has: Assignment | None = None, instance: str | None = None) -> MemberSpec:
    return MemberSpec(frozenset(topics), has or {}, instance)


def flat(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


# -- uniform ----------------------------------------------------------------------------------------------


def test_uniform_shares_evenly() -> None:
    shares = UNIFORM.assign(spec({A: 3, B: 2}, x=reader(A, B), y=reader(A, B)))
    assert sorted(len(flat(share)) for share in shares.values()) == [2, 3]


def test_uniform_moves_no_more_than_it_must() -> None:
    has = {A: frozenset({0, 1, 2, 3})}
    shares = UNIFORM.assign(spec({A: 4}, x=reader(A, has=has), y=reader(A)))
    assert shares["x"] == {A: frozenset({0, 1})} and shares["y"] == {A: frozenset({2, 3})}
    again = UNIFORM.assign(spec({A: 4}, x=reader(A, has=shares["x"]), y=reader(A, has=shares["y"])))
    assert again == shares
    left = UNIFORM.assign(spec({A: 4}, y=reader(A, has=shares["y"])))
    assert left["y"] == {A: frozenset({0, 1, 2, 3})}


def test_uniform_lets_the_fuller_one_keep_the_odd_partition() -> None:
    x, y = {A: frozenset({0})}, {A: frozenset({1, 2})}
    assert UNIFORM.assign(spec({A: 3}, x=reader(A, has=x), y=reader(A, has=y))) == {"x": x, "y": y}


def test_uniform_forgets_what_does_not_exist_or_is_not_wanted() -> None:
    has = {A: frozenset({0, 9}), C: frozenset({0})}
    assert UNIFORM.assign(spec({A: 1, B: 1}, x=reader(A, B, has=has)))["x"] == {
        A: frozenset({0}),
        B: frozenset({0}),
    }


def test_uniform_with_different_subscriptions() -> None:
    shares = UNIFORM.assign(spec({A: 4, B: 2}, x=reader(A), y=reader(A, B), z=reader(B)))
    assert shares["x"] == {A: frozenset({0, 1})} or len(flat(shares["x"])) == 2
    assert [len(flat(shares[name])) for name in "xyz"] == [2, 2, 2]


@pytest.mark.parametrize("seed", range(60))
def test_every_partition_once_and_balanced_whatever_they_subscribe_to(seed: int) -> None:
    dice = random.Random(seed)
    topics = [bytes([number]) * 16 for number in range(dice.randrange(1, 6))]
    counts = {topic: dice.randrange(1, 8) for topic in topics}
    targets: dict[str, Assignment] = {}
    for _ in range(6):
        names = [f"m-{number}" for number in range(8) if dice.random() < 0.6] or ["m-0"]
        is_same = dice.random() < 0.4
        common = frozenset(dice.sample(topics, dice.randrange(1, len(topics) + 1)))
        members = {
            name: MemberSpec(
                common if is_same else frozenset(topic for topic in topics if dice.random() < 0.6),
                targets.get(name, {}),
            )
            for name in names
        }
        used = {topic for member in members.values() for topic in member.topic_ids}
        group = GroupSpec(members, {topic: counts[topic] for topic in used})
        for assignor in CONSUMER_ASSIGNORS.values():
            check_complete(group, assignor.assign(group))
        targets = UNIFORM.assign(group)
        check_balanced(group, targets)
        assert UNIFORM.assign(with_targets(group, targets)) == targets, "nothing changed, so nothing moves"


def check_complete(group: GroupSpec, shares: dict[str, Assignment]) -> None:
    assert shares.keys() == group.members.keys()
    held = [partition for share in shares.values() for partition in flat(share)]
    wanted = {(topic, index) for topic, count in group.partition_counts.items() for index in range(count)}
    assert len(held) == len(set(held)) and set(held) == wanted
    for name, share in shares.items():
        assert share.keys() <= group.members[name].topic_ids and all(share.values())


def check_balanced(group: GroupSpec, shares: dict[str, Assignment]) -> None:
    """Nobody could hand a partition to one that has two fewer."""
    for giver in shares:
        for topic in shares[giver]:
            for taker, member in group.members.items():
                if topic in member.topic_ids:
                    assert len(flat(shares[giver])) - len(flat(shares[taker])) <= 1, (giver, taker)


def with_targets(group: GroupSpec, targets: dict[str, Assignment]) -> GroupSpec:
    members = {name: member._replace(assigned=targets[name]) for name, member in group.members.items()}
    return GroupSpec(members, group.partition_counts)


# -- range ------------------------------------------------------------------------------------------------


def test_range_cuts_topics_at_the_same_places() -> None:
    shares = RANGE.assign(spec({A: 5, B: 5}, x=reader(A, B), y=reader(A, B)))
    assert shares["x"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}
    assert shares["y"] == {A: frozenset({3, 4}), B: frozenset({3, 4})}


def test_range_leaves_members_empty_if_there_are_too_many() -> None:
    shares = RANGE.assign(spec({A: 1}, x=reader(A), y=reader(A)))
    assert shares == {"x": {A: frozenset({0})}, "y": {}}


def test_range_puts_static_members_first() -> None:
    shares = RANGE.assign(spec({A: 2}, x=reader(A), y=reader(A, instance="i")))
    assert shares["y"] == {A: frozenset({0})} and shares["x"] == {A: frozenset({1})}
