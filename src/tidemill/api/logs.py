"""DescribeLogDirs v1-5: what lies where on this broker's disks."""

from __future__ import annotations

from collections import defaultdict

from tidemill.api.context import RequestContext
from tidemill.api.services import Services
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.storage.manager import PartitionDescription
from tidemill.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


class LogApi:
    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    async def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        asked: set[TopicPartition] | None = None
        if request.topics is not None:
            asked = {TopicPartition(t.topic, index) for t in request.topics for index in t.partitions}
        results = []
        for directory in self._replicas.logs.describe():
            if directory.failure is not None:
                results.append(
                    DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
                )
                continue
            results.append(
                DescribeLogDirsResult(
                    log_dir=directory.path,
                    topics=_topics(directory.partitions, asked),
                    total_bytes=directory.total_bytes,
                    usable_bytes=directory.usable_bytes,
                    is_cordoned=directory.is_cordoned,
                )
            )
        return DescribeLogDirsResponse(results=results)


def _topics(
    partitions: list[PartitionDescription], asked: set[TopicPartition] | None
) -> list[DescribeLogDirsTopic]:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for each in partitions:
        if asked is None or each.partition in asked:
            by_topic[each.partition.topic].append(
                DescribeLogDirsPartition(
                    partition_index=each.partition.partition,
                    partition_size=each.size_bytes,
                    offset_lag=each.offset_lag,
                )
            )
    return [DescribeLogDirsTopic(name=name, partitions=found) for name, found in by_topic.items()]
