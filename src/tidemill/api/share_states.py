"""InitializeShareGroupState v0, ReadShareGroupState v0, WriteShareGroupState v0-1, DeleteShareGroupState v0 and
ReadShareGroupStateSummary v0-1: what brokers ask of the share coordinator; clients never do.

All five have the same shape: topics with partitions, and for each partition an error of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
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
Ask = Callable[[SharePartitionKey, Any, Any], Awaitable[None]]
"""Does what is asked for one partition (the second argument) and fills in its result (the third)."""


class ShareStateApi:
    def __init__(self, services: Services) -> None:
        self._persister = services.coordinators.share_persister

    async def initialize(
        self, context: RequestContext, request: InitializeShareGroupStateRequest
    ) -> InitializeShareGroupStateResponse:
        async def ask(key: SharePartitionKey, asked: Any, answer: Any) -> None:
            await self._persister.initialize(key, asked.state_epoch, asked.start_offset)

        messages = initialize_share_group_state
        results = await _answers(request, messages.InitializeStateResult, messages.PartitionResult, ask)
        return InitializeShareGroupStateResponse(results=results)

    async def read(
        self, context: RequestContext, request: ReadShareGroupStateRequest
    ) -> ReadShareGroupStateResponse:
        async def ask(key: SharePartitionKey, asked: Any, answer: Any) -> None:
            state = await self._persister.read(key, asked.leader_epoch)
            answer.state_epoch, answer.start_offset = state.state_epoch, state.start_offset
            answer.state_batches = [messages.StateBatch(**batch._asdict()) for batch in state.batches]

        messages = read_share_group_state
        results = await _answers(request, messages.ReadStateResult, messages.PartitionResult, ask)
        return ReadShareGroupStateResponse(results=results)

    async def write(
        self, context: RequestContext, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        async def ask(key: SharePartitionKey, asked: Any, answer: Any) -> None:
            await self._persister.write(key, _change(asked))

        messages = write_share_group_state
        results = await _answers(request, messages.WriteStateResult, messages.PartitionResult, ask)
        return WriteShareGroupStateResponse(results=results)

    async def delete(
        self, context: RequestContext, request: DeleteShareGroupStateRequest
    ) -> DeleteShareGroupStateResponse:
        async def ask(key: SharePartitionKey, asked: Any, answer: Any) -> None:
            await self._persister.delete(key)

        messages = delete_share_group_state
        results = await _answers(request, messages.DeleteStateResult, messages.PartitionResult, ask)
        return DeleteShareGroupStateResponse(results=results)

    async def summarize(
        self, context: RequestContext, request: ReadShareGroupStateSummaryRequest
    ) -> ReadShareGroupStateSummaryResponse:
        async def ask(key: SharePartitionKey, asked: Any, answer: Any) -> None:
            summary = await self._persister.summary(key, asked.leader_epoch)
            vars(answer).update(summary._asdict())

        messages = read_share_group_state_summary
        results = await _answers(request, messages.ReadStateSummaryResult, messages.PartitionResult, ask)
        return ReadShareGroupStateSummaryResponse(results=results)


async def _answers(request: Any, topic_class: type[R], partition_class: type[Message], ask: Ask) -> list[R]:
    results = []
    for topic in request.topics:
        answers = await _partitions(request.group_id, topic.topic_id, topic.partitions, partition_class, ask)
        results.append(topic_class(topic_id=topic.topic_id, partitions=answers))
    return results


async def _partitions(
    group_id: str, topic_id: bytes, partitions: Iterable[Any], partition_class: type[Message], ask: Ask
) -> list[Message]:
    answers = []
    for asked in partitions:
        answer: Any = partition_class(partition=asked.partition)
        try:
            await ask(SharePartitionKey(group_id, topic_id, asked.partition), asked, answer)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message or None
        answers.append(answer)
    return answers


def _change(asked: write_share_group_state.PartitionData) -> StateWrite:
    batches = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in asked.state_batches
    )
    return StateWrite(
        asked.state_epoch, asked.leader_epoch, asked.start_offset, batches, asked.delivery_complete_count
    )
