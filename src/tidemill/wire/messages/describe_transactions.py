"""DescribeTransactions (API 65)."""

from tidemill.wire.schema import INT32, STRING, Message, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message, versions=(0, 0), flexible=0):
    transactional_ids: list[str] = array(STRING)


class TopicData(Message):
    topic: str = string()
    partitions: list[int] = array(INT32)


class TransactionState(Message):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
