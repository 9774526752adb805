"""DescribeCluster (API 60)."""

from tidemill.wire.schema import Message, array, boolean, int8, int16, int32, string


class DescribeClusterRequest(Message, versions=(0, 2), flexible=0):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(default=1, since=1)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterBroker(Message):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(default=None, nullable_since=0)
    is_fenced: bool = boolean(since=2)


class DescribeClusterResponse(Message, versions=(0, 2), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    endpoint_type: int = int8(default=1, since=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-2147483648)
