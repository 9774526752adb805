"""ListTransactions (API 66)."""

from tidemill.wire.schema import INT64, STRING, Message, array, int16, int32, int64, string


class ListTransactionsRequest(Message, versions=(0, 2), flexible=0):
    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = int64(default=-1, since=1)
    transactional_id_pattern: str | None = string(default=None, since=2, nullable_since=2)


class TransactionState(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, versions=(0, 2), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[TransactionState] = array(TransactionState)
