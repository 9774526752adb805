"""InitProducerId (API 22)."""

from tidemill.wire.schema import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, versions=(0, 6), flexible=2):
    transactional_id: str | None = string(nullable_since=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(default=-1, since=3)
    producer_epoch: int = int16(default=-1, since=3)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message, versions=(0, 6), flexible=2):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(default=-1, since=6)
    ongoing_txn_producer_epoch: int = int16(default=-1, since=6)
