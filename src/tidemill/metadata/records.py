"""The records of the metadata log, in Kafka's schemas."""

from tidemill.wire.schema import (
    INT32,
    STRING,
    UUID,
    Message,
    array,
    blob,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class AbortTransactionRecord(Message, versions=(0, 0), flexible=0):
    reason: str | None = string(default=None, nullable_since=0, tag=0)


class AccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class BeginTransactionRecord(Message, versions=(0, 0), flexible=0):
    name: str | None = string(default=None, nullable_since=0, tag=0)


class BrokerRegistrationChangeRecord(Message, versions=(0, 3), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8(since=1, tag=1)
    log_dirs: list[bytes] = array(UUID, since=2, tag=2)
    cordoned_log_dirs: list[bytes] | None = array(UUID, default=None, since=3, nullable_since=3, tag=3)


class ClearElrRecord(Message, versions=(0, 0), flexible=0):
    topic_name: str = string()


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable_since=0)


class ClientQuotaRecord(Message, versions=(0, 0), flexible=0):
    entity: list[EntityData] = array(EntityData)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class ConfigRecord(Message, versions=(0, 0), flexible=0):
    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable_since=0)


class DelegationTokenRecord(Message, versions=(0, 0), flexible=0):
    owner: str = string()
    requester: str = string()
    renewers: list[str] = array(STRING)
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class EndTransactionRecord(Message, versions=(0, 0), flexible=0):
    pass


class FeatureLevelRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    feature_level: int = int16()


class FenceBrokerRecord(Message, versions=(0, 0), flexible=0):
    id: int = int32()
    epoch: int = int64()


class NoOpRecord(Message, versions=(0, 0), flexible=0):
    pass


class PartitionChangeRecord(Message, versions=(0, 2), flexible=0):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    isr: list[int] | None = array(INT32, default=None, nullable_since=0, tag=0)
    leader: int = int32(default=-2, tag=1)
    replicas: list[int] | None = array(INT32, default=None, nullable_since=0, tag=2)
    removing_replicas: list[int] | None = array(INT32, default=None, nullable_since=0, tag=3)
    adding_replicas: list[int] | None = array(INT32, default=None, nullable_since=0, tag=4)
    leader_recovery_state: int = int8(default=-1, tag=5)
    directories: list[bytes] | None = array(UUID, default=None, since=1, nullable_since=1, tag=8)
    eligible_leader_replicas: list[int] | None = array(INT32, default=None, since=2, nullable_since=2, tag=6)
    last_known_elr: list[int] | None = array(INT32, default=None, since=2, nullable_since=2, tag=7)


class PartitionRecord(Message, versions=(0, 2), flexible=0):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    replicas: list[int] = array(INT32)
    isr: list[int] = array(INT32)
    removing_replicas: list[int] = array(INT32)
    adding_replicas: list[int] = array(INT32)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array(UUID, since=1)
    eligible_leader_replicas: list[int] | None = array(INT32, default=None, since=2, nullable_since=2, tag=1)
    last_known_elr: list[int] | None = array(INT32, default=None, since=2, nullable_since=2, tag=2)


class ProducerIdsRecord(Message, versions=(0, 0), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class BrokerEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class BrokerFeature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterBrokerRecord(Message, versions=(0, 4), flexible=0):
    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(since=2)
    incarnation_id: bytes = uuid()
    broker_epoch: int = int64()
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint)
    features: list[BrokerFeature] = array(BrokerFeature)
    rack: str | None = string(nullable_since=0)
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean(since=1)
    log_dirs: list[bytes] = array(UUID, since=3, tag=0)
    cordoned_log_dirs: list[bytes] | None = array(UUID, default=None, since=4, nullable_since=4, tag=1)


class ControllerEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class ControllerFeature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterControllerRecord(Message, versions=(0, 0), flexible=0):
    controller_id: int = int32()
    incarnation_id: bytes = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[ControllerEndpoint] = array(ControllerEndpoint)
    features: list[ControllerFeature] = array(ControllerFeature)


class RemoveAccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    id: bytes = uuid()


class RemoveDelegationTokenRecord(Message, versions=(0, 0), flexible=0):
    token_id: str = string()


class RemoveTopicRecord(Message, versions=(0, 0), flexible=0):
    topic_id: bytes = uuid()


class RemoveUserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    mechanism: int = int8()


class TopicRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    topic_id: bytes = uuid()


class UnfenceBrokerRecord(Message, versions=(0, 0), flexible=0):
    id: int = int32()
    epoch: int = int64()


class UnregisterBrokerRecord(Message, versions=(0, 0), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64()


class UserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    mechanism: int = int8()
    salt: bytes = blob()
    stored_key: bytes = blob()
    server_key: bytes = blob()
    iterations: int = int32()


class ZkMigrationStateRecord(Message, versions=(0, 0), flexible=0):
    zk_migration_state: int = int8()


RECORD_TYPES: dict[int, type[Message]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
