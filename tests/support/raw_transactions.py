"""Transactions in single protocol messages: what a producer sends, when a test says so, and as late as it likes.

    producer = RawProducer(bootstrap, "payments")          # version 2 of the protocol
    producer.begin()                                       # InitProducerId
    producer.produce(topic, b"a")                          # adds the partition by writing to it
    late = producer.end_request(commit=True)               # to be sent now, later, or twice
    producer.end(commit=True)                              # takes over the next epoch
    producer.send_late(late)                               # the error code of the answer

Version 1 (`RawProducer(..., version=1)`) adds partitions by AddPartitionsToTxn and keeps its epoch.
"""

from __future__ import annotations

from typing import Any, Self

from raw import batch_of, produce_request
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.batch import TRANSACTIONAL_MASK
from tidemill.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.produce import ProduceRequest
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

TIMEOUT_MS = 60_000
LATEST = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TRANSACTION_COORDINATOR = 1
PRODUCE_VERSIONS = {1: 11, 2: 12}
END_VERSIONS = {1: 4, 2: 5}
OFFSET_COMMIT_VERSIONS = {1: 4, 2: 5}
BUSY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class RawProducer:
    def __init__(self, bootstrap: str, transactional_id: str, version: int = 2) -> None:
        self.connection = WireClient(bootstrap)
        self.transactional_id, self.version = transactional_id, version
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def reconnect(self, bootstrap: str) -> None:
        """The broker was away; the producer goes on as it was."""
        self.connection.close()
        self.connection = WireClient(bootstrap)

    def begin(self) -> Self:
        """A new epoch; ends what a predecessor, or this one, left open."""
        request = FindCoordinatorRequest(
            key_type=TRANSACTION_COORDINATOR, coordinator_keys=[self.transactional_id]
        )
        wait_until(lambda: self.connection.call(request).coordinators[0].error_code == 0, "a coordinator", 20)
        answer = self._until_not_busy(
            InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS),
            5,
        )
        assert answer.error_code == 0, ErrorCode(answer.error_code).name
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return self

    def add(self, topic: str, partition: int = 0) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        answer = self.connection.call(request, 3)
        code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def produce_request(self, topic: str, *values: bytes, partition: int = 0) -> ProduceRequest:
        """A batch of the current epoch, to be sent when it pleases the test."""
        key = (topic, partition, self.epoch)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        batch = batch_of(
            *values,
            attributes=TRANSACTIONAL_MASK,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        request = produce_request(topic, batch, partition=partition)
        request.transactional_id = self.transactional_id
        return request

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> int:
        return self.send_late(self.produce_request(topic, *values, partition=partition))

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, *, commit: bool) -> int:
        answer = self._until_not_busy(self.end_request(commit=commit), END_VERSIONS[self.version])
        if answer.error_code == 0 and self.version == 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    def offsets_request(self, group: str, topic: str, offset: int) -> TxnOffsetCommitRequest:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )

    def send_late(self, request: ProduceRequest | EndTxnRequest | TxnOffsetCommitRequest) -> int:
        """The error code of the answer."""
        if isinstance(request, ProduceRequest):
            answer = self.connection.call(request, PRODUCE_VERSIONS[self.version])
            return int(answer.responses[0].partition_responses[0].error_code)
        if isinstance(request, TxnOffsetCommitRequest):
            answer = self.connection.call(request, OFFSET_COMMIT_VERSIONS[self.version])
            return int(answer.topics[0].partitions[0].error_code)
        return int(self.connection.call(request, END_VERSIONS[self.version]).error_code)

    def _until_not_busy(self, request: Any, version: int) -> Any:
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(self.connection.call(request, version))
            return answers[-1].error_code not in BUSY

        wait_until(is_answered, "the end of the transaction before", 20)
        return answers[-1]


def end_offsets(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    with WireClient(bootstrap) as connection:
        found = []
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            asked = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
            )
            found.append(connection.call(request).topics[0].partitions[0].offset)
    return found[0], found[1]


def is_stable(bootstrap: str, topic: str, partition: int = 0) -> bool:
    """Whether every transaction on the partition has ended."""
    stable, high = end_offsets(bootstrap, topic, partition)
    return stable == high
