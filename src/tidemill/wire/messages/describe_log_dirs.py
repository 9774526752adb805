"""DescribeLogDirs (API 35)."""

from tidemill.wire.schema import INT32, Message, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Message):
    topic: str = string()
    partitions: list[int] = array(INT32)


class DescribeLogDirsRequest(Message, versions=(1, 5), flexible=2):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable_since=0)


class DescribeLogDirsPartition(Message):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Message):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(default=-1, since=4)
    usable_bytes: int = int64(default=-1, since=4)
    is_cordoned: bool = boolean(since=5)


class DescribeLogDirsResponse(Message, versions=(1, 5), flexible=2):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
