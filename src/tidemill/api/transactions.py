"""Transactions: InitProducerId v0-5 (with a transactional id), AddPartitionsToTxn v0-5, AddOffsetsToTxn v0-4,
EndTxn v0-5, WriteTxnMarkers v1-2, TxnOffsetCommit v0-5, DescribeTransactions v0, ListTransactions v0-2.

The versions differ in three things. A producer of version 2 of the protocol (EndTxn v5, Produce v12, TxnOffsetCommit
v5) adds partitions by writing to them and gets a new epoch with each end; AddPartitionsToTxn from v4 on is spoken by
brokers, for many transactions at once; and old clients know a fenced producer only as INVALID_PRODUCER_EPOCH.

Gaps: two-phase commit with an outside coordinator (InitProducerId v6) is not advertised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tidemill.api.context import RequestContext
from tidemill.api.coordination import Coordinator
from tidemill.api.groups import group_context
from tidemill.api.internal_topics import OFFSETS_TOPIC
from tidemill.api.producer_ids import ProducerIdSupply
from tidemill.api.services import Services
from tidemill.api.transaction_gate import TransactionGate
from tidemill.api.transaction_markers import EndOfTransaction, Errors, MarkerWriter
from tidemill.coordination.core import Outcome, Reply, Token
from tidemill.coordination.patterns import whole_match
from tidemill.coordination.record_codec import Producer
from tidemill.coordination.transaction.driven import DrivenShard
from tidemill.coordination.transaction.shard import (
    ListFilter,
    ProducerResult,
    TransactionOutcome,
    TransactionShard,
)
from tidemill.coordination.transaction.state import (
    EPOCH_BUMP_SINCE,
    ProducerIdentity,
    State,
    TransactionMetadata,
    is_exhausted,
)
from tidemill.coordination.transaction.verification import OFFSET_COMMIT
from tidemill.metadata.image import is_internal_topic
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import NO_PRODUCER_ID, TopicPartition
from tidemill.wire.messages import describe_transactions as describing
from tidemill.wire.messages import list_transactions as listing
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

FENCED_SINCE = 2
"""From this version on AddPartitionsToTxn, AddOffsetsToTxn and EndTxn may answer PRODUCER_FENCED."""
INIT_FENCED_SINCE = 4
BATCHED_ADD_SINCE = 4
END_BUMPS_SINCE = 5
STATES = {state.text: state for state in State}

Ask = Callable[[TransactionShard, Token, int], TransactionOutcome]


class TransactionApi:
    def __init__(
        self,
        services: Services,
        transactions: Coordinator[DrivenShard],
        gate: TransactionGate,
        markers: MarkerWriter,
    ) -> None:
        self._services = services
        self._transactions = transactions
        self._gate = gate
        self._markers = markers
        self._producer_ids = ProducerIdSupply(services)

    async def _ask(self, transactional_id: str, ask: Ask) -> Any:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")

        def call(core: DrivenShard, token: Token, now_ms: int) -> Outcome:
            return core.carry_out(ask(core.shard, token, now_ms))

        return await self._transactions.submit(transactional_id, call)

    # -- InitProducerId -------------------------------------------------------------------------------

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """For a request with a transactional id; the others never reach a coordinator."""
        transactional_id = request.transactional_id or ""
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = ProducerIdentity(request.producer_id, request.producer_epoch)
        await self._producer_ids.fill_up()
        timeout_ms = request.transaction_timeout_ms
        result: ProducerResult = await self._ask(
            transactional_id,
            lambda shard, token, now_ms: shard.init_producer_id(
                token, now_ms, transactional_id, timeout_ms, expected
            ),
        )
        return InitProducerIdResponse(
            error_code=_known(result.error, context.version, INIT_FENCED_SINCE),
            producer_id=result.identity.producer_id,
            producer_epoch=result.identity.epoch,
        )

    # -- AddPartitionsToTxn, AddOffsetsToTxn ----------------------------------------------------------

    async def add_partitions_to_txn(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        if context.version >= BATCHED_ADD_SINCE:
            results = [await self._add(each, context.version) for each in request.transactions]
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        result = await self._add(transaction, context.version)
        for topic in result.topic_results:
            for partition in topic.results_by_partition:
                error = ErrorCode(partition.partition_error_code)
                partition.partition_error_code = _known(error, context.version, FENCED_SINCE)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)

    async def _add(
        self, transaction: AddPartitionsToTxnTransaction, version: int
    ) -> AddPartitionsToTxnResult:
        """One transaction, all of its partitions or none."""
        names = [
            TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions
        ]
        refused = {name: error for name in names if (error := self._objection(name, version))}
        if refused:
            errors = dict.fromkeys(names, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
        else:
            client_version = EPOCH_BUMP_SINCE if version >= BATCHED_ADD_SINCE else 0
            errors = await self._add_known(transaction, names, client_version)
        return AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index,
                            partition_error_code=errors[TopicPartition(topic.name, index)],
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in transaction.topics
            ],
        )

    async def _add_known(
        self, transaction: AddPartitionsToTxnTransaction, names: list[TopicPartition], client_version: int
    ) -> Errors:
        transactional_id = transaction.transactional_id
        identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        try:
            if transaction.verify_only:
                errors: Errors = await self._ask(
                    transactional_id,
                    lambda shard, token, now_ms: shard.verify_partitions(
                        token, now_ms, transactional_id, identity, names
                    ),
                )
                return errors
            error = await self._ask(
                transactional_id,
                lambda shard, token, now_ms: shard.add_partitions(
                    token, now_ms, transactional_id, identity, names, client_version
                ),
            )
        except ApiError as failure:
            error = failure.code
        return dict.fromkeys(names, error)

    def _objection(self, name: TopicPartition, version: int) -> ErrorCode:
        """Clients have no business in the coordinators' topics: their offsets come by AddOffsetsToTxn."""
        if version < BATCHED_ADD_SINCE and is_internal_topic(name.topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = self._services.metadata.image.topics.get(name.topic)
        is_known = topic is not None and name.partition in topic.partitions
        return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def add_offsets_to_txn(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        """The partition of the group's offsets becomes part of the transaction, whatever the group is called.

        A producer asks for this before it looks for the coordinator of the group: it may be the first who needs one.
        """
        await self._services.coordinators.internal_topics.make_sure_of(OFFSETS_TOPIC)
        transactional_id = request.transactional_id
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        offsets = {TopicPartition(OFFSETS_TOPIC, self._services.groups.partition_for(request.group_id))}
        error: ErrorCode = await self._ask(
            transactional_id,
            lambda shard, token, now_ms: shard.add_partitions(
                token, now_ms, transactional_id, identity, offsets
            ),
        )
        return AddOffsetsToTxnResponse(error_code=_known(error, context.version, FENCED_SINCE))

    # -- TxnOffsetCommit ------------------------------------------------------------------------------

    async def txn_offset_commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        """Offsets that count when the transaction is committed; those of partitions that do not exist are refused."""
        asked = request.topics
        answers = [self._refuse_missing(topic) for topic in asked]
        request.topics = [topic for topic in asked if topic.partitions]
        if request.topics:
            committed = iter((await self._commit_offsets(context, request)).topics)
            for topic, answer in zip(asked, answers, strict=True):
                if topic.partitions:
                    answer.partitions += next(committed).partitions
        return TxnOffsetCommitResponse(topics=answers)

    def _refuse_missing(self, topic: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
        """Take the partitions that do not exist out of the request, and answer them."""
        state = self._services.metadata.image.topics.get(topic.name)
        known = {} if state is None else state.partitions
        missing = [each for each in topic.partitions if each.partition_index not in known]
        topic.partitions = [each for each in topic.partitions if each.partition_index in known]
        return _refused_offsets(topic.name, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _commit_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        asked = group_context(context)
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            index = await self._admit_offsets(context, request)
            response: TxnOffsetCommitResponse = await self._services.groups.submit_to(
                index,
                lambda core, token, now_ms: core.commit_transactional_offsets(request, asked, token, now_ms),
                producer,
            )
        except ApiError as error:
            refused = [_refused_offsets(topic.name, topic.partitions, error.code) for topic in request.topics]
            return TxnOffsetCommitResponse(topics=refused)
        return response

    async def _admit_offsets(self, context: RequestContext, request: TxnOffsetCommitRequest) -> int:
        """The partition of the group, once it is part of the transaction."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the name of the group is empty")
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        index = self._services.groups.partition_for(request.group_id)
        name = TopicPartition(OFFSETS_TOPIC, index)
        partition = self._services.replicas.partitions.get(name)
        if partition is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        if not self._gate.is_open(partition, identity.producer_id, identity.epoch):
            partition.leader_log().check_epoch(identity.producer_id, identity.epoch)
            guard = await self._gate.admit(
                name,
                request.transactional_id,
                identity,
                context.version,
                OFFSET_COMMIT,
                is_verifying=self._services.settings.verifies_transactions,
            )
            self._gate.pass_through(name, identity.producer_id, guard)
        return index

    # -- EndTxn, WriteTxnMarkers ----------------------------------------------------------------------

    async def end_txn(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        """Commit or abort; answered when the decision is durable, before the markers are written."""
        transactional_id = request.transactional_id
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        client_version = EPOCH_BUMP_SINCE if context.version >= END_BUMPS_SINCE else 0
        if client_version and is_exhausted(identity.epoch):
            await self._producer_ids.fill_up()
        result: ProducerResult = await self._ask(
            transactional_id,
            lambda shard, token, now_ms: shard.end(
                token, now_ms, transactional_id, identity, request.committed, client_version
            ),
        )
        return EndTxnResponse(
            error_code=_known(result.error, context.version, FENCED_SINCE),
            producer_id=result.identity.producer_id,
            producer_epoch=result.identity.epoch,
        )

    async def write_txn_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """From a coordinator, or from an administrator who ends a hanging transaction."""
        return WriteTxnMarkersResponse(markers=[await self._write_marker(each) for each in request.markers])

    async def _write_marker(self, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
        """One whose producer cannot be is refused, with the code that Kafka has for it."""
        names = [
            TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ]
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            return _marked(marker, dict.fromkeys(names, ErrorCode.UNKNOWN_SERVER_ERROR))
        end = EndOfTransaction(
            Producer(marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        written: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        self._markers.write(end, dict.fromkeys(names), written.set_result)
        return _marked(marker, await written)

    # -- DescribeTransactions, ListTransactions -------------------------------------------------------

    async def describe_transactions(
        self, context: RequestContext, request: describing.DescribeTransactionsRequest
    ) -> describing.DescribeTransactionsResponse:
        states = [await self._describe(each) for each in request.transactional_ids]
        return describing.DescribeTransactionsResponse(transaction_states=states)

    async def _describe(self, transactional_id: str) -> describing.TransactionState:
        try:
            found: TransactionMetadata | None = await self._ask(
                transactional_id,
                lambda shard, token, now_ms: _answer(token, shard.describe(transactional_id)),
            )
            if found is None:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        except ApiError as error:
            return describing.TransactionState(transactional_id=transactional_id, error_code=error.code)
        return describing.TransactionState(
            transactional_id=transactional_id,
            transaction_state=found.state.text,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=_topics(found.partitions),
        )

    async def list_transactions(
        self, context: RequestContext, request: listing.ListTransactionsRequest
    ) -> listing.ListTransactionsResponse:
        """The transactional ids that this broker coordinates; one that is loading makes the list an error."""
        pattern = request.transactional_id_pattern
        matches = whole_match(pattern) if pattern else None
        wanted = ListFilter(
            states=[STATES[name] for name in request.state_filters if name in STATES],
            producer_ids=frozenset(request.producer_id_filters),
            longer_than_ms=request.duration_filter,
        )
        found: list[TransactionMetadata] = []
        if wanted.states or not request.state_filters:
            for index in self._transactions.runtime.led_partitions:
                found += await self._list(index, wanted)
        if matches is not None:
            found = await asyncio.to_thread(_matching, matches, found)
        return listing.ListTransactionsResponse(
            unknown_state_filters=[name for name in request.state_filters if name not in STATES],
            transaction_states=[
                listing.TransactionState(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    transaction_state=each.state.text,
                )
                for each in found
            ],
        )

    async def _list(self, index: int, wanted: ListFilter) -> list[TransactionMetadata]:
        def call(core: DrivenShard, token: Token, now_ms: int) -> Outcome:
            return _answer(token, core.shard.list(wanted, now_ms))

        found: list[TransactionMetadata] = await self._transactions.submit_to(index, call)
        return found


def _answer(token: Token, response: object) -> TransactionOutcome:
    return TransactionOutcome(replies=[Reply(token, response)])


def _known(error: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Old clients know a fenced producer by another name."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _matching(matches: Callable[[str], bool], found: list[TransactionMetadata]) -> list[TransactionMetadata]:
    """In a thread: ids are as long as their producers like, and there may be many."""
    return [each for each in found if matches(each.transactional_id)]


def _marked(marker: WritableTxnMarker, errors: Errors) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=errors[TopicPartition(topic.name, index)]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[describing.TopicData]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, []).append(index)
    return [describing.TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()]


def _refused_offsets(
    topic: str, partitions: Iterable[TxnOffsetCommitRequestPartition], code: ErrorCode
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in partitions
        ],
    )
