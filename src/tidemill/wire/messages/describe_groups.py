"""DescribeGroups (API 15)."""

from tidemill.wire.schema import STRING, Message, array, blob, boolean, int16, int32, string


class DescribeGroupsRequest(Message, versions=(0, 6), flexible=5):
    groups: list[str] = array(STRING)
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=4, nullable_since=4)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = blob()
    member_assignment: bytes = blob()


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(default=None, since=6, nullable_since=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(default=-2147483648, since=3)


class DescribeGroupsResponse(Message, versions=(0, 6), flexible=5):
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)
