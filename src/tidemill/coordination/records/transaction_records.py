"""The records of the transaction coordinator in `__transaction_state`, in Kafka's schemas."""

from tidemill.wire.schema import INT32, Message, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: str = string()


class PartitionsSchema(Message):
    topic: str = string()
    partition_ids: list[int] = array(INT32)


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    producer_id: int = int64()
    previous_producer_id: int = int64(default=-1, tag=0, tag_since=1)
    next_producer_id: int = int64(default=-1, tag=1, tag_since=1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(default=-1, tag=3, tag_since=1)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable_since=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(tag=2, tag_since=1)


RECORD_TYPES: dict[int, tuple[type[Message], type[Message]]] = {
    0: (TransactionLogKey, TransactionLogValue),
}
"""Record type (the version number in front of a key) to its key and value."""
