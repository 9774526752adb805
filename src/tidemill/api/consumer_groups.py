"""ConsumerGroupHeartbeat v0-1 and ConsumerGroupDescribe v0-1: translation to the group coordinator."""

from __future__ import annotations

from tidemill.api.context import RequestContext
from tidemill.api.groups import ALL_GROUP_OPERATIONS, group_context
from tidemill.api.services import Services
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tidemill.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class ConsumerGroupApi:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups

    async def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        if not request.group_id:
            return ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message="the group id is empty"
            )
        asked = group_context(context)
        response: ConsumerGroupHeartbeatResponse = await self._groups.submit(
            request.group_id,
            lambda core, token, now_ms: core.consumer_group_heartbeat(request, asked, token, now_ms),
        )
        return response

    async def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        named_last = sorted(request.group_ids, key=bool)
        groups = [await self._describe(group_id) for group_id in named_last]
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == 0:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        if not group_id:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            groups: list[DescribedGroup] = await self._groups.submit(
                group_id,
                lambda core, token, now_ms: core.describe_consumer_groups([group_id], token, now_ms),
            )
        except ApiError as error:
            return DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message or None
            )
        return groups[0]
