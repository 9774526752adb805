"""ListGroups (API 16)."""

from tidemill.wire.schema import STRING, Message, array, int16, int32, string


class ListGroupsRequest(Message, versions=(0, 5), flexible=3):
    states_filter: list[str] = array(STRING, since=4)
    types_filter: list[str] = array(STRING, since=5)


class ListedGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class ListGroupsResponse(Message, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
