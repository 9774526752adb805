"""Who leads a partition when brokers come and go.

A leader is elected from the in-sync replicas alone, in the order of the replicas, so the first replica (the
preferred one) wins whenever it can. When a broker goes:

    it leads, others are in sync       the first active one of them leads; it leaves the ISR
    it leads, nobody else is in sync   no leader; it stays in the ISR, for it alone holds what was committed
    it follows                         it leaves the ISR

When a broker comes back, it leads every partition that has no leader and of which it is in the ISR, or among
the eligible leaders that an Apache Kafka controller left behind when it stopped (KIP-966): those hold all
that was committed, although the ISR is empty.

Limits: no unclean elections (`unclean.leader.election.enable`) and none back to the preferred leader yet;
both need more than one broker.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.metadata.image import MetadataImage, PartitionState
from tidemill.metadata.records import PartitionChangeRecord
from tidemill.model.ids import NO_LEADER
from tidemill.wire.schema import Message


def best_leader(partition: PartitionState, isr: list[int], is_active: Callable[[int], bool]) -> int:
    return next((id for id in partition.replicas if id in isr and is_active(id)), NO_LEADER)


def changes_without_broker(image: MetadataImage, broker_id: int) -> list[Message]:
    """The partition changes that let this broker go."""
    changes: list[Message] = []
    for topic, index, partition in image.partitions():
        if broker_id not in partition.isr and broker_id != partition.leader:
            continue
        change = _change_without(image, broker_id, partition)
        if change is not None:
            change.topic_id, change.partition_id = topic.topic_id, index
            changes.append(change)
    return changes


def _change_without(
    image: MetadataImage, broker_id: int, partition: PartitionState
) -> PartitionChangeRecord | None:
    others = [id for id in partition.isr if id != broker_id]
    change = PartitionChangeRecord(isr=others or None)
    if partition.leader == broker_id:
        change.leader = best_leader(partition, others, lambda id: id != broker_id and image.is_active(id))
    elif not others:
        return None
    return change


def changes_with_broker(image: MetadataImage, broker_id: int) -> list[Message]:
    """The elections that this broker wins by becoming active."""
    changes: list[Message] = []
    for topic, index, partition in image.partitions():
        if partition.has_leader:
            continue
        if broker_id in partition.isr:
            changes.append(_election(topic.topic_id, index, broker_id))
        elif not partition.isr and broker_id in partition.eligible_leader_replicas:
            changes.append(_election_of_eligible(topic.topic_id, index, broker_id))
    return changes


def _election(topic_id: bytes, index: int, leader: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=topic_id, partition_id=index, leader=leader)


def _election_of_eligible(topic_id: bytes, index: int, leader: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=index,
        leader=leader,
        isr=[leader],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
