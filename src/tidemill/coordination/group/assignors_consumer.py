"""The two assignors of consumer groups, by the names and promises of Kafka's: `uniform` and `range`.

*uniform* is balanced and sticky. No member could take a partition from another one and both be better balanced, and
of all balanced assignments it makes one that moves little. If all members subscribe to the same topics:

    members a, b; a has 0 1 2 3        ->  a keeps 0 1, b gets 2 3
    members a, b, c; a: 0 1, b: 2 3    ->  quota 2, 1, 1: a keeps 0 1, b keeps 2, c gets 3

If they differ, every partition that is free goes to the subscriber with the fewest, those with the fewest possible
takers first; then partitions move from who has more to who has fewer, as long as that brings the two closer.

*range* gives every subscriber of a topic a run of partitions, in the order of instance ids, then of member ids. Topics
with the same subscribers and the same number of partitions are cut at the same places, so that a member gets the same
partition numbers of each (they are co-partitioned):

    3 partitions, members a, b         ->  a: 0 1 of every topic, b: 2

Limits: racks are not considered, as in Kafka's.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tidemill.coordination.group.assignor import Assignment, Assignor, GroupSpec

Partition = tuple[bytes, int]


# -- range ------------------------------------------------------------------------------------------------


class RangeAssignor:
    name = "range"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        order = sorted(spec.members, key=lambda member_id: _rank(spec, member_id))
        shares: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in order}
        for topic_id, count in spec.partition_counts.items():
            takers = [member_id for member_id in order if topic_id in spec.members[member_id].topic_ids]
            for member_id, run in zip(takers, _runs(count, len(takers)), strict=True):
                if run:
                    shares[member_id][topic_id] = frozenset(run)
        return dict(shares)


def _rank(spec: GroupSpec, member_id: str) -> tuple[bool, str, str]:
    """Static members first: their place does not change when they restart."""
    instance_id = spec.members[member_id].instance_id
    return instance_id is None, instance_id or "", member_id


def _runs(count: int, takers: int) -> Iterable[range]:
    start = 0
    for number in range(takers):
        size = count // takers + (number < count % takers)
        yield range(start, start + size)
        start += size


# -- uniform ----------------------------------------------------------------------------------------------


class UniformAssignor:
    name = "uniform"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        if not spec.members:
            return {}
        kept = _still_valid(spec)
        shares = _homogeneous(spec, kept) if spec.is_homogeneous else _heterogeneous(spec, kept)
        return {member_id: _by_topic(share) for member_id, share in shares.items()}


Shares = dict[str, list[Partition]]


def _all_partitions(spec: GroupSpec) -> list[Partition]:
    return [
        (topic_id, index)
        for topic_id, count in sorted(spec.partition_counts.items())
        for index in range(count)
    ]


def _still_valid(spec: GroupSpec) -> Shares:
    """What each has, subscribes to and exists; what two have stays with the first."""
    taken: set[Partition] = set()
    kept: Shares = {}
    for member_id, member in spec.members.items():
        mine = [
            (topic_id, index)
            for topic_id, indexes in member.assigned.items()
            if topic_id in member.topic_ids
            for index in sorted(indexes)
            if index < spec.partition_counts.get(topic_id, 0) and (topic_id, index) not in taken
        ]
        taken.update(mine)
        kept[member_id] = mine
    return kept


def _homogeneous(spec: GroupSpec, kept: Shares) -> Shares:
    """Everybody keeps what it has up to its quota; the rest fills up those below theirs."""
    partitions = _all_partitions(spec) if next(iter(spec.members.values())).topic_ids else []
    quota, extra = divmod(len(partitions), len(spec.members))
    quotas: dict[str, int] = {}
    for member_id in sorted(kept, key=lambda member_id: (-len(kept[member_id]), member_id)):
        gets_one_more = extra > 0
        quotas[member_id] = quota + gets_one_more
        extra -= gets_one_more
    shares = {member_id: kept[member_id][: quotas[member_id]] for member_id in spec.members}
    held = {partition for share in shares.values() for partition in share}
    free = iter([partition for partition in partitions if partition not in held])
    for member_id, share in shares.items():
        share.extend(next(free) for _ in range(quotas[member_id] - len(share)))
    return shares


def _heterogeneous(spec: GroupSpec, kept: Shares) -> Shares:
    takers: dict[bytes, list[str]] = defaultdict(list)
    for member_id in sorted(spec.members):
        for topic_id in spec.members[member_id].topic_ids:
            takers[topic_id].append(member_id)
    shares = {member_id: list(share) for member_id, share in kept.items()}
    _hand_out(spec, takers, shares)
    _balance(takers, shares)
    return shares


def _hand_out(spec: GroupSpec, takers: Mapping[bytes, list[str]], shares: Shares) -> None:
    """Every free partition to the taker that has the fewest."""
    held = {partition for share in shares.values() for partition in share}
    free = [partition for partition in _all_partitions(spec) if partition not in held]
    heaps: dict[bytes, list[tuple[int, str]]] = {}
    for partition in sorted(free, key=lambda partition: len(takers[partition[0]])):
        heap = heaps.get(partition[0])
        if heap is None:
            heap = [(len(shares[member_id]), member_id) for member_id in takers[partition[0]]]
            heapq.heapify(heap)
            heaps[partition[0]] = heap
        member_id = _fewest(heap, shares)
        if member_id is not None:
            shares[member_id].append(partition)


def _fewest(heap: list[tuple[int, str]], shares: Shares) -> str | None:
    """Counts in the heap may be behind: an entry that is goes back with what is true."""
    while heap:
        count, member_id = heap[0]
        if count == len(shares[member_id]):
            return member_id
        heapq.heapreplace(heap, (len(shares[member_id]), member_id))
    return None


def _balance(takers: Mapping[bytes, list[str]], shares: Shares) -> None:
    """Move partitions from members with more to members with fewer until no move helps.

    Every move lowers the sum of the squares of the counts, so this ends.
    """
    least: dict[bytes, str] = {}
    moved = True
    while moved:
        moved = False
        for giver in sorted(shares, key=lambda member_id: (-len(shares[member_id]), member_id)):
            for partition in tuple(shares[giver]):
                taker = least.get(partition[0], "")
                if not taker:
                    taker = min(takers[partition[0]], key=lambda each: (len(shares[each]), each))
                    least[partition[0]] = taker
                if len(shares[giver]) - len(shares[taker]) > 1:
                    shares[giver].remove(partition)
                    shares[taker].append(partition)
                    least.clear()  # counts have changed
                    moved = True


def _by_topic(partitions: Iterable[Partition]) -> Assignment:
    grouped: dict[bytes, set[int]] = defaultdict(set)
    for topic_id, index in partitions:
        grouped[topic_id].add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in grouped.items()}


CONSUMER_ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor for assignor in (UniformAssignor(), RangeAssignor())
}
