"""DeleteGroups (API 42)."""

from tidemill.wire.schema import STRING, Message, array, int16, int32, string


class DeleteGroupsRequest(Message, versions=(0, 2), flexible=2):
    groups_names: list[str] = array(STRING)


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
