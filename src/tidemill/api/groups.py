"""JoinGroup v0-9, SyncGroup v0-5, Heartbeat v0-4, LeaveGroup v0-5, ListGroups v0-5, DescribeGroups v0-6 and
DeleteGroups v0-2: translation to the group coordinator.

A join or a sync is answered when the whole group has come so far; meanwhile its connection takes no further request,
as in Kafka, and all others go on. Members are answered by callbacks, administrators by coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.coordination.core import Outcome
from tidemill.coordination.group.contract import RequestContext as GroupContext
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidemill.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.messages.leave_group import LeaveGroupRequest
from tidemill.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tidemill.wire.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from tidemill.api.share_groups import ShareGroupApi
    from tidemill.coordination.group.shard import GroupShard

PROTOCOL_NAME_NULLABLE_SINCE = 7
ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe and alter configs: without access control, all."""

Call = Callable[["GroupShard", Hashable, int], Outcome]
Respond = Callable[[Any], None]
"""Takes the response, or an `ApiError`."""


def group_context(context: RequestContext) -> GroupContext:
    return GroupContext(context.client_id or "", f"/{context.peer_address}", context.version)


def _no_name(version: int) -> str | None:
    """The protocol of a join that was refused."""
    return None if version >= PROTOCOL_NAME_NULLABLE_SINCE else ""


class GroupApi:
    def __init__(self, services: Services, share_groups: Callable[[], ShareGroupApi]) -> None:
        self._services = services
        self._groups = services.groups
        self._share_groups = share_groups

    # -- members --------------------------------------------------------------------------------------

    def join_group(self, context: RequestContext, request: JoinGroupRequest, respond: Respond) -> None:
        asked = group_context(context)

        def respond_as_told(response: JoinGroupResponse | ApiError) -> None:
            if isinstance(response, JoinGroupResponse) and not response.protocol_name:
                response.protocol_name = _no_name(context.version)
            respond(response)

        self._submit(
            request.group_id,
            lambda core, token, now_ms: core.join_group(request, asked, token, now_ms),
            respond_as_told,
        )

    def join_group_failed(
        self, context: RequestContext, request: JoinGroupRequest, error: ApiError
    ) -> JoinGroupResponse:
        no_name = _no_name(context.version)
        return JoinGroupResponse(error_code=error.code, member_id=request.member_id, protocol_name=no_name)

    def sync_group(self, context: RequestContext, request: SyncGroupRequest, respond: Respond) -> None:
        asked = group_context(context)
        self._submit(
            request.group_id,
            lambda core, token, now_ms: core.sync_group(request, asked, token, now_ms),
            respond,
        )

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest, respond: Respond) -> None:
        self._submit(
            request.group_id,
            lambda core, token, now_ms: core.heartbeat(request, token, now_ms),
            respond,
        )

    def heartbeat_failed(
        self, context: RequestContext, request: HeartbeatRequest, error: ApiError
    ) -> HeartbeatResponse:
        """While the group is loading clients would give up their session; Kafka tells them all is well."""
        is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest, respond: Respond) -> None:
        asked = group_context(context)
        self._submit(
            request.group_id,
            lambda core, token, now_ms: core.leave_group(request, asked, token, now_ms),
            respond,
        )

    def _submit(self, group_id: str, call: Call, respond: Respond) -> None:
        """Whatever is wrong goes to `respond` as well."""
        if not group_id:
            respond(ApiError(ErrorCode.INVALID_GROUP_ID, "the name of the group is empty"))
            return
        try:
            index = self._groups.partition_for(group_id)
        except ApiError as error:
            respond(error)
            return
        self._groups.runtime.submit(index, call, respond)

    # -- administration -------------------------------------------------------------------------------

    async def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """All groups of this broker; one that is still loading makes the list incomplete, and so an error."""
        response = ListGroupsResponse()
        for index in self._groups.runtime.led_partitions:
            try:
                listed: list[ListedGroup] = await self._groups.submit_to(
                    index, lambda core, token, now_ms: core.list_groups(request, token, now_ms)
                )
            except ApiError as error:
                if error.code is ErrorCode.NOT_COORDINATOR:
                    continue
                raise
            response.groups.extend(listed)
        return response

    async def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        groups = [await self._describe(context, group_id) for group_id in request.groups]
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == 0:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    async def _describe(self, context: RequestContext, group_id: str) -> DescribedGroup:
        asked = group_context(context)
        try:
            groups: list[DescribedGroup] = await self._groups.submit(
                group_id, lambda core, token, now_ms: core.describe_groups([group_id], asked, token, now_ms)
            )
        except ApiError as error:
            return DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message or None
            )
        return groups[0]

    async def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[await self._delete(group_id) for group_id in dict.fromkeys(request.groups_names)]
        )

    async def _delete(self, group_id: str) -> DeletableGroupResult:
        try:
            await self._share_groups().delete_group_state(group_id)
            results: list[DeletableGroupResult] = await self._groups.submit(
                group_id, lambda core, token, now_ms: core.delete_groups([group_id], token, now_ms)
            )
        except ApiError as error:
            return DeletableGroupResult(group_id=group_id, error_code=error.code)
        return results[0]
