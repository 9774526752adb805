"""DeleteRecords (API 21)."""

from tidemill.wire.schema import Message, array, int16, int32, int64, string


class DeleteRecordsPartition(Message):
    partition_index: int = int32()
    offset: int = int64()


class DeleteRecordsTopic(Message):
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(Message, versions=(0, 2), flexible=2):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsPartitionResult(Message):
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


class DeleteRecordsTopicResult(Message):
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Message, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
