"""The log of a coordinator: an internal topic's partitions on this broker, as the coordinators' port wants them.

A coordinator writes with the durability of `acks=all` and hears when the high watermark has passed its batch. It
reads to the end of the log, beyond the high watermark: what the leader holds is what it leads with.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.replication.delayed import WaitingAppend
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import ACKS_ALL, Partition
from tidemill.wire.batch import read_header
from tidemill.wire.produce_codec import ProduceResult


class CoordinatorLog:
    """All partitions of one internal topic."""

    def __init__(self, replicas: ReplicaManager, topic: str) -> None:
        self._replicas = replicas
        self._topic = topic

    def bounds(self, index: int) -> tuple[int, int]:
        """Start and end offset."""
        log = self._partition(index).leader_log()
        return log.log_start_offset, log.log_end_offset

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        """Batches from this offset on, the last of them maybe torn; empty at the end of the log."""
        log = self._partition(index).leader_log()
        found = log.read(offset, max_bytes, log.log_end_offset)
        return b"" if found is None else bytes(found.file.read(found.position, found.length))

    def append(
        self, index: int, batch: bytearray, leader_epoch: int, now_ms: int, transaction_version: int = 0
    ) -> int:
        """Write one batch, if this broker still leads in this epoch; the offset after it."""
        partition = self._partition(index)
        limit = partition.leader_log(leader_epoch).config.max_message_bytes
        if len(batch) > limit:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{len(batch)} bytes for {partition.topic_partition}, max.message.bytes is {limit}",
            )
        try:
            info = partition.append(
                memoryview(batch), read_header(batch), ACKS_ALL, now_ms, transaction_version
            )
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk refused the write: {error}") from error
        return info.last_offset + 1

    def when_committed(
        self, index: int, end_offset: int, due_ms: int, respond: Callable[[ApiError | None], None]
    ) -> None:
        """Call back once everything below this offset is committed, or with the reason why it is not."""
        partition = self._replicas.partitions.get(TopicPartition(self._topic, index))
        if partition is None:
            respond(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif partition.is_durable(end_offset):
            respond(None)
        else:
            waiting = WaitingAppend(partition, end_offset, ProduceResult(index))
            self._replicas.wait_until_durable(
                [waiting], due_ms, lambda results: respond(_failure(results[0].error))
            )

    def _partition(self, index: int) -> Partition:
        partition = self._replicas.partitions.get(TopicPartition(self._topic, index))
        if partition is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._topic}-{index} is not on this broker")
        return partition


def _failure(code: int) -> ApiError | None:
    return ApiError(ErrorCode(code)) if code else None
