"""The assignor of share groups, `simple`: every partition to as many members as it takes to give everybody work.

In a share group several members read one partition. With M members and P partitions each partition goes to
ceil(M / P) of them, so that nobody is idle and nobody has much more than the others:

    2 members, 3 partitions     each partition to one member: 2 and 1
    5 members, 2 partitions     each partition to three members: 3 x 2 places for 5 members, one has both

Members keep what they had as far as that fits. Where members subscribe to different topics, the rule holds topic by
topic, among those who subscribe to it. A pure function: equal groups get equal assignments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.coordination.group.assignor import Assignment, GroupSpec

Place = tuple[bytes, int]
"""One partition: topic id and number."""


class SimpleAssignor:
    name = "simple"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        chosen: dict[str, set[Place]] = {member_id: set() for member_id in spec.members}
        for members, places in _circles(spec):
            _share_out(spec, members, places, chosen)
        return {member_id: _assignment(places) for member_id, places in chosen.items()}


def _circles(spec: GroupSpec) -> list[tuple[list[str], list[Place]]]:
    """Topics with the same subscribers are shared out together."""
    by_subscribers: dict[tuple[str, ...], list[Place]] = {}
    for topic_id, count in sorted(spec.partition_counts.items()):
        subscribers = tuple(
            sorted(member_id for member_id, member in spec.members.items() if topic_id in member.topic_ids)
        )
        places = by_subscribers.setdefault(subscribers, [])
        places.extend((topic_id, index) for index in range(count))
    return [(list(members), places) for members, places in by_subscribers.items() if members and places]


def _share_out(
    spec: GroupSpec, members: Sequence[str], places: Sequence[Place], chosen: Mapping[str, set[Place]]
) -> None:
    sharing = -(-len(members) // len(places))
    quota = _quotas(members, sharing * len(places))
    readers: dict[Place, int] = dict.fromkeys(places, 0)
    for member_id in members:
        assigned = spec.members[member_id].assigned
        for place in sorted((topic_id, index) for topic_id in assigned for index in assigned[topic_id]):
            if place in readers and readers[place] < sharing and quota[member_id] > 0:
                _give(place, member_id, readers, quota, chosen)
    for place in places:
        while readers[place] < sharing:
            free = [each for each in members if quota[each] > 0 and place not in chosen[each]]
            if not free:
                break
            _give(place, max(free, key=lambda each: quota[each]), readers, quota, chosen)


def _quotas(members: Sequence[str], total: int) -> dict[str, int]:
    """How many places each member gets; they differ by one at most."""
    each, more = divmod(total, len(members))
    return {member_id: each + (number < more) for number, member_id in enumerate(members)}


def _give(
    place: Place,
    member_id: str,
    readers: dict[Place, int],
    quota: dict[str, int],
    chosen: Mapping[str, set[Place]],
) -> None:
    readers[place] += 1
    quota[member_id] -= 1
    chosen[member_id].add(place)


def _assignment(places: set[Place]) -> Assignment:
    assignment: dict[bytes, frozenset[int]] = {}
    for topic_id, index in sorted(places):
        assignment[topic_id] = assignment.get(topic_id, frozenset()) | {index}
    return assignment
