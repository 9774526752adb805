"""Which brokers get the replicas of a new partition.

Two rules, the first being the stronger: replicas of a partition lie in as many racks as possible, and
partitions (and above all their leaders) are spread evenly over the brokers. The brokers are laid out in one
circle that alternates between racks. Partition p takes its leader p steps after a random start, and its
followers clockwise from there, passing over racks that the partition already has:

    racks a: 1 4, b: 2 5, c: 3 6         circle 1 2 3 4 5 6      three replicas each
    partition 0: 1 2 3      partition 3: 4 5 6
    partition 1: 2 3 4      partition 4: 5 6 1
    partition 2: 3 4 5      partition 5: 6 1 2

After each whole turn the followers begin one step further from their leader, so that the leaderships of a
broker that fails do not all fall to the same neighbour. Fenced brokers get followers only when there are not
enough others; a leader must be active. Without racks the circle is simply the brokers in their order.

Limits: a broker counts as one place whatever its size, and existing partitions are not weighed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from tidemill.metadata.image import BrokerRegistration
from tidemill.model.errors import ApiError, ErrorCode


def place_replicas(
    brokers: Iterable[BrokerRegistration], start: int, partitions: int, replication_factor: int
) -> list[list[int]]:
    """The replicas of each partition, leader first; `start` is where in the circle the first leader is."""
    registered = list(brokers)
    active = _circle(broker for broker in registered if broker.is_active)
    _check(active, len(registered), replication_factor)
    reserve = _circle(broker for broker in registered if not broker.is_active)
    return [_replicas(active, reserve, start + index, replication_factor) for index in range(partitions)]


def position_after(brokers: Iterable[BrokerRegistration], leader: int) -> int | None:
    """Where the circle goes on after this leader, so that added partitions continue the pattern."""
    ids = [broker.broker_id for broker in _circle(broker for broker in brokers if broker.is_active)]
    return ids.index(leader) + 1 if leader in ids else None


def _circle(brokers: Iterable[BrokerRegistration]) -> list[BrokerRegistration]:
    racks: dict[str, list[BrokerRegistration]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.rack or "", broker.broker_id)):
        racks.setdefault(broker.rack or "", []).append(broker)
    return [broker for row in zip_longest(*racks.values()) for broker in row if broker is not None]


def _check(active: Sequence[BrokerRegistration], registered: int, replication_factor: int) -> None:
    if not active:
        raise _cannot(replication_factor, "All brokers are currently fenced or in controlled shutdown.")
    if replication_factor > registered:
        raise _cannot(
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{registered} broker(s) are registered.",
        )


def _cannot(replication_factor: int, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


def _replicas(
    active: Sequence[BrokerRegistration], reserve: Sequence[BrokerRegistration], position: int, wanted: int
) -> list[int]:
    turn, leader_position = divmod(position, len(active))
    leader = active[leader_position]
    others = [*active[leader_position + 1 :], *active[:leader_position]]
    chosen = [leader.broker_id]
    racks = {leader.rack}
    for candidates in (_rotated(others, turn), _rotated(reserve, position)):
        _choose(candidates, wanted, chosen, racks)
    return chosen


def _choose(
    candidates: Sequence[BrokerRegistration], wanted: int, chosen: list[int], racks: set[str | None]
) -> None:
    """First from new racks, then from any."""
    for broker in candidates:
        if len(chosen) < wanted and broker.rack not in racks:
            chosen.append(broker.broker_id)
            racks.add(broker.rack)
    for broker in candidates:
        if len(chosen) < wanted and broker.broker_id not in chosen:
            chosen.append(broker.broker_id)


def _rotated(brokers: Sequence[BrokerRegistration], steps: int) -> list[BrokerRegistration]:
    if not brokers:
        return []
    steps %= len(brokers)
    return [*brokers[steps:], *brokers[:steps]]
