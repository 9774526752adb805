"""Registration of brokers: who belongs to the cluster, and who may lead.

    state       register   unfence    fence    unregister
    unknown     fenced     -          -        -
    fenced      fenced     active     fenced   unknown
    active      fenced     active     fenced   unknown

`-` raises BROKER_ID_NOT_REGISTERED. A registration always begins fenced: the broker first catches up with
the metadata, then it is unfenced and elected where it can be. Its epoch is the offset of its registration
record; a request that carries an older one comes from a previous life of that broker and is refused.

A broker that registers again after a crash may have lost what was not yet on its disk, so its leaderships
end and begin anew under a higher leader epoch: who read the lost tail can tell. After a clean shutdown they
simply go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tidemill.metadata.conversions import broker_record
from tidemill.metadata.decisions import Decision
from tidemill.metadata.elections import changes_with_broker, changes_without_broker
from tidemill.metadata.features import SUPPORTED_FEATURES
from tidemill.metadata.image import (
    METADATA_VERSION_FEATURE,
    BrokerRegistration,
    Endpoint,
    FeatureRange,
    MetadataImage,
)
from tidemill.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.wire.schema import Message

FENCE, UNFENCE = 1, -1


@dataclasses.dataclass(frozen=True, slots=True)
class RegistrationRequest:
    broker_id: int
    incarnation_id: bytes
    """A new uuid for each start of the process."""
    listeners: tuple[Endpoint, ...]
    directories: tuple[bytes, ...]
    rack: str | None = None
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES
    after_clean_shutdown: bool = False
    cluster_id: str | None = None


def register_broker(
    image: MetadataImage, request: RegistrationRequest, next_offset: int, *, has_session: bool = False
) -> Decision[int]:
    """The broker's epoch; `has_session` says that the registered incarnation was heard of lately."""
    _check_registration(image, request, has_session)
    before = image.brokers.get(request.broker_id)
    changes: list[Message] = []
    if before is not None and not request.after_clean_shutdown and _is_new_incarnation(before, request):
        changes = changes_without_broker(image, request.broker_id)
    epoch = next_offset + len(changes)
    registration = BrokerRegistration(
        broker_id=request.broker_id,
        epoch=epoch,
        incarnation_id=request.incarnation_id,
        listeners=request.listeners,
        features=request.features,
        rack=request.rack,
        fenced=True,
        directories=request.directories,
    )
    return Decision([*changes, broker_record(registration)], epoch)


def _is_new_incarnation(before: BrokerRegistration, request: RegistrationRequest) -> bool:
    return before.incarnation_id != request.incarnation_id


def _check_registration(image: MetadataImage, request: RegistrationRequest, has_session: bool) -> None:
    if request.cluster_id is not None and request.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    before = image.brokers.get(request.broker_id)
    if before is not None and has_session and _is_new_incarnation(before, request):
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is registered with that broker id {request.broker_id}.",
        )
    level = image.metadata_version
    ranges = {feature.name: feature for feature in request.features}
    supported = ranges.get(METADATA_VERSION_FEATURE)
    if supported is None or not supported.minimum <= level <= supported.maximum:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {level} of "
            f"{METADATA_VERSION_FEATURE}.",
        )


def unfence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    records: list[Message] = []
    if broker.fenced:
        records.append(_fencing_change(broker, UNFENCE))
    return Decision(records + changes_with_broker(image, broker_id), None)


def fence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if broker.fenced:
        return Decision([], None)
    return Decision([*changes_without_broker(image, broker_id), _fencing_change(broker, FENCE)], None)


def unregister_broker(image: MetadataImage, broker_id: int) -> Decision[None]:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise _not_registered(broker_id)
    removal = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return Decision([*changes_without_broker(image, broker_id), removal], None)


def assign_directories(
    image: MetadataImage, broker_id: int, broker_epoch: int, assigned: Mapping[TopicPartition, bytes]
) -> Decision[dict[TopicPartition, ErrorCode]]:
    """Note in which of its directories a broker keeps its replicas (KIP-858)."""
    check_broker_epoch(image, broker_id, broker_epoch)
    records: list[Message] = []
    result: dict[TopicPartition, ErrorCode] = {}
    for where, directory in assigned.items():
        topic = image.topics.get(where.topic)
        partition = topic.partitions.get(where.partition) if topic else None
        if topic is None or partition is None:
            result[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif broker_id not in partition.replicas:
            result[where] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            result[where] = ErrorCode.NONE
            directories = list(partition.directories)
            position = partition.replicas.index(broker_id)
            if directories[position] != directory:
                directories[position] = directory
                records.append(
                    PartitionChangeRecord(
                        topic_id=topic.topic_id, partition_id=where.partition, directories=directories
                    )
                )
    return Decision(records, result)


def change_directories(
    image: MetadataImage, broker_id: int, broker_epoch: int, online: tuple[bytes, ...]
) -> Decision[None]:
    """Note which directories of a broker are online; of none there is nothing to note, such a broker stops."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if not online or set(online) == set(broker.directories):
        return Decision([], None)
    change = BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, log_dirs=list(online)
    )
    return Decision([change], None)


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise _not_registered(broker_id)
    if broker.epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch} for broker {broker_id}, but got {broker_epoch}",
        )
    return broker


def _not_registered(broker_id: int) -> ApiError:
    return ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")


def _fencing_change(broker: BrokerRegistration, fenced: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=fenced
    )
