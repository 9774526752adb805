"""From a wish for partitions to their records: replicas by placement or by hand, then leader and ISR.

A new partition's ISR is made of its active replicas and its leader is the first of them; both epochs begin
at 0. A replica on a broker with a single directory is assigned to it at once; a broker with several chooses
for itself and reports later (`brokers.assign_directories`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.metadata.conversions import partition_record
from tidemill.metadata.image import MetadataImage, PartitionState, TopicState
from tidemill.metadata.placement import place_replicas, position_after
from tidemill.metadata.records import PartitionRecord
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import Randomness

UNASSIGNED_DIRECTORY = bytes(16)


class Assigner:
    def __init__(self, image: MetadataImage, randomness: Randomness) -> None:
        self._image = image
        self._randomness = randomness

    def by_placement(
        self, partitions: int, replication_factor: int, *, after: TopicState | None = None
    ) -> list[list[int]]:
        """The replicas of each new partition; `after` is the topic whose pattern they continue."""
        brokers = list(self._image.brokers.values())
        start = None
        if after is not None:
            start = position_after(brokers, after.partitions[len(after.partitions) - 1].replicas[0])
        if start is None:
            start = self._randomness.below(max(1, len(brokers)))
        return place_replicas(brokers, start, partitions, replication_factor)

    def by_hand(
        self,
        assignments: Sequence[tuple[int, Sequence[int]]],
        *,
        first: int = 0,
        replication_factor: int | None = None,
    ) -> list[list[int]]:
        """What the client chose, checked; partition numbers must run on from `first`."""
        chosen: dict[int, list[int]] = {}
        for index, replicas in assignments:
            if index in chosen:
                raise _invalid(f"Found multiple manual partition assignments for partition {index}")
            self._check_replicas(index, replicas, replication_factor)
            replication_factor = len(replicas)
            chosen[index] = list(replicas)
        if sorted(chosen) != list(range(first, first + len(chosen))):
            raise _invalid("partitions should be a consecutive 0-based integer sequence")
        return [chosen[index] for index in sorted(chosen)]

    def _check_replicas(self, index: int, replicas: Sequence[int], replication_factor: int | None) -> None:
        listed = list(replicas)
        if not listed:
            raise _invalid("The manual partition assignment includes an empty replica list.")
        for broker in sorted(listed):
            if broker not in self._image.brokers:
                raise _invalid(
                    f"The manual partition assignment includes broker {broker}, but no such broker is "
                    "registered."
                )
            if listed.count(broker) > 1:
                raise _invalid(
                    f"The manual partition assignment includes the broker {broker} more than once."
                )
        if replication_factor is not None and len(listed) != replication_factor:
            raise _invalid(
                f"The manual partition assignment includes a partition with {len(listed)} replica(s), but "
                f"this is not consistent with previous partitions, which have {replication_factor} "
                "replica(s)."
            )
        if not any(self._image.is_active(broker) for broker in listed):
            raise _invalid(
                f"All brokers specified in the manual partition assignment for partition {index} are "
                "fenced or in controlled shutdown."
            )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def new_partition_records(
    image: MetadataImage, topic_id: bytes, first: int, replicas: Sequence[Sequence[int]]
) -> Iterator[PartitionRecord]:
    for index, brokers in enumerate(replicas, first):
        isr = tuple(broker for broker in brokers if image.is_active(broker))
        state = PartitionState(
            replicas=tuple(brokers),
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(_only_directory(image, broker) for broker in brokers),
        )
        yield partition_record(topic_id, index, state)


def _only_directory(image: MetadataImage, broker_id: int) -> bytes:
    directories = image.brokers[broker_id].directories
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY
