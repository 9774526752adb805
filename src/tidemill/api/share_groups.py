"""ShareGroupHeartbeat v1 and ShareGroupDescribe v1: translation to the group coordinator.

A partition that a share group reads for the first time needs state at the share coordinator. Kafka asks for it behind
the member's back, and the member hears of its partitions with the next heartbeat, five seconds later. Here the answer
waits for the state and for a second look at the group: a first member can read at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from tidemill.api.context import RequestContext
from tidemill.api.groups import ALL_GROUP_OPERATIONS, group_context
from tidemill.api.services import Services
from tidemill.coordination.core import Outcome
from tidemill.coordination.group.share_heartbeat import HeartbeatAnswer, Initialization
from tidemill.coordination.share.persister import UNCHANGED_START_OFFSET, SharePartitionKey
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from tidemill.coordination.group.assignor import Assignment
    from tidemill.coordination.group.contract import Step
    from tidemill.coordination.group.shard import GroupShard
    from tidemill.coordination.group.share_shard import ShareGroups

logger = logging.getLogger(__name__)

Act = Callable[["ShareGroups", Hashable, "Step"], None]


class ShareGroupApi:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._persister = services.coordinators.share_persister

    async def submit(self, group_id: str, act: Act) -> Any:
        """Let the group's coordinator act; what it refuses is raised."""

        def call(core: GroupShard, token: Hashable, now_ms: int) -> Outcome:
            return core.with_share_groups(lambda share, step: act(share, token, step), now_ms)

        return await self._services.groups.submit(group_id, call)

    # -- membership -----------------------------------------------------------------------------------

    async def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse:
        response, initialization = await self._heartbeat(context, request)
        if initialization is None:
            return response
        await self.initialize(request.group_id, initialization)
        again = ShareGroupHeartbeatRequest(
            group_id=request.group_id, member_id=request.member_id, member_epoch=response.member_epoch
        )
        newer, more = await self._heartbeat(context, again)
        if more is not None:
            await self.initialize(request.group_id, more)  # a topic that appeared in between
        if newer.error_code:
            return response
        newer.assignment = newer.assignment or response.assignment
        return newer

    async def _heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> HeartbeatAnswer:
        asked = group_context(context)
        answer: HeartbeatAnswer = await self.submit(
            request.group_id, lambda share, token, step: share.heartbeat(request, asked, token, step)
        )
        return answer

    # -- state ----------------------------------------------------------------------------------------

    async def initialize(
        self,
        group_id: str,
        initialization: Initialization,
        start_offsets: dict[tuple[bytes, int], int] | None = None,
    ) -> dict[tuple[bytes, int], ApiError]:
        """Ask the share coordinator for state, and tell the group how it went; what failed, and why."""
        failures: dict[tuple[bytes, int], ApiError] = {}
        done: dict[bytes, frozenset[int]] = {}
        for topic_id, index in _each(initialization.partitions):
            start_offset = (start_offsets or {}).get((topic_id, index), UNCHANGED_START_OFFSET)
            key = SharePartitionKey(group_id, topic_id, index)
            try:
                await self._persister.initialize(key, initialization.state_epoch, start_offset)
                done[topic_id] = done.get(topic_id, frozenset()) | {index}
            except ApiError as error:
                logger.warning("no state for %s: %s", key.as_coordinator_key(), error)
                failures[topic_id, index] = error
        await self._note(group_id, done, failures)
        return failures

    async def _note(
        self, group_id: str, done: Assignment, failures: dict[tuple[bytes, int], ApiError]
    ) -> None:
        if done:
            await self.submit(
                group_id, lambda share, token, step: share.state_initialized(group_id, done, token, step)
            )
        if failures:
            refused: dict[bytes, frozenset[int]] = {}
            for topic_id, index in failures:
                refused[topic_id] = refused.get(topic_id, frozenset()) | {index}
            await self.submit(
                group_id, lambda share, token, step: share.state_refused(group_id, refused, token, step)
            )

    async def delete_state(self, group_id: str, partitions: Assignment) -> dict[bytes, ApiError]:
        """Delete it at the share coordinator; which topics failed, and why."""
        failures = {}
        for topic_id, index in _each(partitions):
            try:
                await self._persister.delete(SharePartitionKey(group_id, topic_id, index))
            except ApiError as error:
                failures[topic_id] = error
        return failures

    async def delete_group_state(self, group_id: str) -> None:
        """What goes before a group is deleted; groups of other kinds have none."""
        partitions: Assignment = await self.submit(
            group_id, lambda share, token, step: share.begin_delete_group(group_id, token, step)
        )
        for error in (await self.delete_state(group_id, partitions)).values():
            raise error

    # -- for people -----------------------------------------------------------------------------------

    async def describe(
        self, context: RequestContext, request: ShareGroupDescribeRequest
    ) -> ShareGroupDescribeResponse:
        named_last = sorted(request.group_ids, key=bool)
        groups = [await self._describe(group_id) for group_id in named_last]
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == 0:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return ShareGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        try:
            require_name(group_id)
            groups: list[DescribedGroup] = await self.submit(
                group_id, lambda share, token, step: step.reply(token, share.describe([group_id]))
            )
        except ApiError as error:
            return DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message or None
            )
        return groups[0]


def require_name(group_id: str) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "the name of the group is empty")


def _each(partitions: Assignment) -> list[tuple[bytes, int]]:
    return [(topic_id, index) for topic_id in sorted(partitions) for index in sorted(partitions[topic_id])]
