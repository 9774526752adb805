"""InitializeShareGroupState v0, ReadShareGroupState v0, WriteShareGroupState v0-1, DeleteShareGroupState v0 and
ReadShareGroupStateSummary v0-1: what brokers ask of the share coordinator; clients never do.

All five have the same shape: topics with partitions, and for each partition an error of its own. A request without a
group, and a topic without partitions, ask for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.coordination.share.persister import SharePartitionKey, StateBatch, StateWrite
from tidemill.model.errors import ApiError
from tidemill.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from tidemill.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from tidemill.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from tidemill.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
)
from tidemill.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from tidemill.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from tidemill.wire.schema import Message

R = TypeVar("R", bound=Message)
Facts = dict[str, Any]
"""Fields of a partition's result, beyond its error."""
Ask = Callable[[SharePartitionKey, Any], Awaitable[Facts | None]]
"""Does what is asked for one partition (the second argument)."""


class ShareStateApi:
    def __init__(self, services: Services) -> None:
        self._persister = services.coordinators.share_persister

    async def initialize(
        self, context: RequestContext, request: InitializeShareGroupStateRequest
    ) -> InitializeShareGroupStateResponse:
        return await _answer(
            request, InitializeShareGroupStateResponse,
            initialize_share_group_state.InitializeStateResult, initialize_share_group_state.PartitionResult,
            lambda key, asked: self._persister.initialize(key, asked.state_epoch, asked.start_offset),
        )  # fmt: skip

    async def read(
        self, context: RequestContext, request: ReadShareGroupStateRequest
    ) -> ReadShareGroupStateResponse:
        return await _answer(
            request, ReadShareGroupStateResponse,
            read_share_group_state.ReadStateResult, read_share_group_state.PartitionResult, self._read,
        )  # fmt: skip

    async def write(
        self, context: RequestContext, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        return await _answer(
            request, WriteShareGroupStateResponse,
            write_share_group_state.WriteStateResult, write_share_group_state.PartitionResult,
            lambda key, asked: self._persister.write(key, _change(asked)),
        )  # fmt: skip

    async def delete(
        self, context: RequestContext, request: DeleteShareGroupStateRequest
    ) -> DeleteShareGroupStateResponse:
        return await _answer(
            request, DeleteShareGroupStateResponse,
            delete_share_group_state.DeleteStateResult, delete_share_group_state.PartitionResult,
            lambda key, asked: self._persister.delete(key),
        )  # fmt: skip

    async def summarize(
        self, context: RequestContext, request: ReadShareGroupStateSummaryRequest
    ) -> ReadShareGroupStateSummaryResponse:
        return await _answer(
            request, ReadShareGroupStateSummaryResponse,
            read_share_group_state_summary.ReadStateSummaryResult,
            read_share_group_state_summary.PartitionResult, self._summary,
        )  # fmt: skip

    async def _read(self, key: SharePartitionKey, asked: Any) -> Facts:
        state = await self._persister.read(key, asked.leader_epoch)
        batches = [read_share_group_state.StateBatch(**batch._asdict()) for batch in state.batches]
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": batches,
        }

    async def _summary(self, key: SharePartitionKey, asked: Any) -> Facts:
        return (await self._persister.summary(key))._asdict()


async def _answer(
    request: Any, response_class: type[R], topic_class: type[Message], result_class: type[Message], ask: Ask
) -> R:
    topics = []
    for topic in request.topics if request.group_id else ():
        results = []
        for asked in topic.partitions:
            key = SharePartitionKey(request.group_id, topic.topic_id, asked.partition)
            results.append(result_class(partition=asked.partition, **await _outcome(ask, key, asked)))
        if results:
            topics.append(topic_class(topic_id=topic.topic_id, partitions=results))
    return response_class(results=topics)


async def _outcome(ask: Ask, key: SharePartitionKey, asked: Any) -> Facts:
    try:
        return await ask(key, asked) or {}
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message or None}


def _change(asked: write_share_group_state.PartitionData) -> StateWrite:
    batches = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in asked.state_batches
    )
    return StateWrite(
        asked.state_epoch, asked.leader_epoch, asked.start_offset, batches, asked.delivery_complete_count
    )
