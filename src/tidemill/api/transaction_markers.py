"""Writing the ends of transactions: the second phase, for the coordinator here and for WriteTxnMarkers from others.

Each partition gets a control batch with the durability of `acks=all`. A partition of `__consumer_offsets` gets it
through the group coordinator, which then makes the offsets of the transaction count, or forgets them.

    writer.write(EndOfTransaction(...), partitions, done)      # done({partition: ErrorCode}), once, when all is known

    written and committed                     NONE
    not in the metadata (deleted)             UNKNOWN_TOPIC_OR_PARTITION: there is nothing left to end
    led by another broker, disk error, ...    the error; the coordinator tries again

Limits: the coordinator reaches partitions that this broker leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidemill.api.coordination import Coordinator
from tidemill.api.internal_topics import OFFSETS_TOPIC
from tidemill.api.services import Metadata
from tidemill.coordination.core import Outcome, Reply, Token
from tidemill.coordination.record_codec import Producer, encode_marker
from tidemill.coordination.transaction.driven import DrivenShard
from tidemill.coordination.transaction.shard import SendMarkers
from tidemill.coordination.transaction.verification import VerificationGuards
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.clock import Clock
from tidemill.replication.delayed import WaitingAppend
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import ACKS_ALL
from tidemill.wire.batch import read_header
from tidemill.wire.produce_codec import ProduceResult

logger = logging.getLogger(__name__)

MARKER_TIMEOUT_MS = 30_000
"""Until a marker that its replicas do not confirm is given up, and tried again."""

Errors = dict[TopicPartition, ErrorCode]


class EndOfTransaction(NamedTuple):
    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0


class MarkerWriter:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: Metadata,
        clock: Clock,
        groups: Coordinator[Any],
        guards: VerificationGuards,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._clock = clock
        self._groups = groups
        self._guards = guards

    def write(
        self, end: EndOfTransaction, partitions: Iterable[TopicPartition], done: Callable[[Errors], None]
    ) -> None:
        wanted = tuple(partitions)
        errors: Errors = {}

        def settle(partition: TopicPartition, error: ErrorCode) -> None:
            errors[partition] = error
            if len(errors) == len(wanted):
                done(errors)

        if not wanted:
            done(errors)
        for partition in wanted:
            self._guards.on_marker(partition, end.producer.producer_id)
            try:
                self._write_one(end, partition, settle)
            except ApiError as error:
                settle(partition, error.code)

    def _write_one(
        self, end: EndOfTransaction, name: TopicPartition, settle: Callable[[TopicPartition, ErrorCode], None]
    ) -> None:
        self._check_exists(name)
        if name.topic == OFFSETS_TOPIC:
            self._groups.runtime.end_transaction(
                name.partition, end.producer, end.is_commit, end.coordinator_epoch,
                lambda failure: settle(name, failure.code if failure is not None else ErrorCode.NONE),
                end.transaction_version,
            )  # fmt: skip
            return
        waiting = self._append(end, name)
        if waiting.partition.is_durable(waiting.end_offset):
            settle(name, ErrorCode.NONE)
            return
        due_ms = self._clock.monotonic_ms() + MARKER_TIMEOUT_MS
        self._replicas.wait_until_durable(
            [waiting], due_ms, lambda results: settle(name, ErrorCode(results[0].error))
        )

    def _append(self, end: EndOfTransaction, name: TopicPartition) -> WaitingAppend:
        partition = self._replicas.partitions.get(name)
        if partition is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        now_ms = self._clock.wall_ms()
        batch = encode_marker(end.producer, end.is_commit, end.coordinator_epoch, now_ms)
        try:
            info = partition.append(
                memoryview(batch), read_header(batch), ACKS_ALL, now_ms, end.transaction_version
            )
        except OSError as error:
            logger.error("cannot write a marker to %s: %s", name, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
        return WaitingAppend(partition, info.last_offset + 1, ProduceResult(name.partition))

    def _check_exists(self, name: TopicPartition) -> None:
        topic = self._metadata.image.topics.get(name.topic)
        if topic is None or name.partition not in topic.partitions:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class MarkerSender:
    """Carries out what the transaction shards of this broker ask for, and reports back to them."""

    def __init__(self, writer: MarkerWriter) -> None:
        self._writer = writer
        self.transactions: Coordinator[DrivenShard] | None = None
        """Set once both exist: the shards send through this, and this reports to the shards."""

    def write(self, asking: DrivenShard, markers: SendMarkers) -> None:
        producer = Producer(markers.producer_id, markers.epoch)
        end = EndOfTransaction(
            producer, markers.commit, markers.coordinator_epoch, markers.transaction_version
        )
        self._writer.write(end, markers.partitions, lambda errors: self._report(asking, markers, errors))

    def retry(self, asking: DrivenShard, markers: SendMarkers) -> None:
        """Nothing was written: the shard decides whether to ask again."""
        self._report(asking, markers, {})

    def _report(self, asking: DrivenShard, markers: SendMarkers, errors: Errors) -> None:
        for partition, error in errors.items():
            if error not in SETTLED:
                logger.warning("%s: no marker on %s: %s", markers.transactional_id, partition, error.name)
        settled = [partition for partition, error in errors.items() if error in SETTLED]

        def call(core: DrivenShard, token: Token, now_ms: int) -> Outcome:
            if core is not asking:
                return Outcome(replies=[Reply(token, None)])
            outcome = core.shard.on_markers_written(markers, settled, now_ms)
            outcome.replies.append(Reply(token, None))
            return core.carry_out(outcome)

        assert self.transactions is not None
        try:
            index = self.transactions.partition_for(markers.transactional_id)
        except ApiError:
            return  # the topic is gone, and everything it said
        self.transactions.runtime.submit(index, call, lambda response: None)


SETTLED = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
