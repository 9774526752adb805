"""WriteTxnMarkers (API 27)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(INT32)


class WritableTxnMarker(Message):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2)


class WriteTxnMarkersRequest(Message, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Message):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Message):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Message):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
