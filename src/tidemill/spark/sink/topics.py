"""The topics that the sink needs: those it writes to, and its own two kinds.

    tidemill.spark.commits              decision records, compacted, one partition: never delete it while queries live
    tidemill.spark.staging.<name>       rows of tasks that are done and not yet published: of a query (its id), emptied
                                        after each batch, or of one batch write (run-<uuid>), deleted after it

A target topic is never made here by name, but asked for as every producer does: a cluster with
`auto.create.topics.enable` makes it, another refuses, and then the write fails with the topic's name.

Limits: `tidemill.spark.commits` must keep its one partition; more are not read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition
from tidemill.spark.sink.transaction import patiently
from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

COMMITS = TopicPartition("tidemill.spark.commits", 0)
STAGING_PREFIX = "tidemill.spark.staging."

COMMITS_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
STAGING_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(24 * 3_600_000),
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(512 << 20),
    "compression.type": "producer",
}
_MISSING_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_ADMIN_TIMEOUT_MS = 10_000


def staging_topic(name: str) -> str:
    return STAGING_PREFIX + name


class SinkTopics:
    """Looks topics up, and makes those of the sink's own that are missing."""

    def __init__(self, cluster: Cluster, patience_ms: int) -> None:
        self._cluster = cluster
        self._patience_ms = patience_ms
        self._counts: dict[str, int] = {}

    def partition_count(self, topic: str) -> int:
        """How many partitions a target topic has; it is asked for once."""
        if topic not in self._counts:
            self._counts[topic] = self._wait_present(topic)
        return self._counts[topic]

    def _wait_present(self, topic: str) -> int:
        """The cluster may be about to make it."""
        deadline = time.monotonic() + _MISSING_SECONDS
        asked = [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
        while True:
            answer = patiently(self._cluster, self._patience_ms, lambda: self._cluster.call_any(request))
            found = answer.topics[0]
            if found.partitions:
                return len(found.partitions)
            is_hopeless = found.error_code in (
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
            if is_hopeless or time.monotonic() > deadline:
                raise BrokerError(found.error_code, f"topic {topic} cannot be written to")
            time.sleep(_PAUSE_SECONDS)

    def ensure_commits(self) -> None:
        self._ensure(COMMITS.topic, 1, COMMITS_CONFIGS)

    def ensure_staging(self, topic: str, partitions: int) -> int:
        """How many partitions a staging topic has, which is made when it is missing."""
        return self._ensure(topic, partitions, STAGING_CONFIGS)

    def _ensure(self, topic: str, partitions: int, configs: dict[str, str]) -> int:
        present = patiently(self._cluster, self._patience_ms, lambda: self._cluster.partitions([topic]))
        if present.get(topic):
            return len(present[topic])
        patiently(self._cluster, self._patience_ms, lambda: self._create(topic, partitions, configs))
        return self._wait_present(topic)

    def _create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        listed = [CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
        asked = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=-1, configs=listed)
        for result in self._cluster.call_any(CreateTopicsRequest(topics=[asked])).topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise BrokerError(result.error_code, f"creating {topic} ({result.error_message})")

    def delete_staged(self, ends: Mapping[TopicPartition, int]) -> None:
        """Drop what is staged below these offsets; what the cluster refuses to drop, retention will."""
        for where, end in ends.items():
            part = DeleteRecordsPartition(partition_index=where.partition, offset=end)
            topic = DeleteRecordsTopic(name=where.topic, partitions=[part])
            request = DeleteRecordsRequest(topics=[topic], timeout_ms=_ADMIN_TIMEOUT_MS)
            self._cluster.connection(self._cluster.leader(where)).call(request)

    def delete_topic(self, topic: str) -> None:
        asked = [DeleteTopicState(name=topic)]
        request = DeleteTopicsRequest(topics=asked, topic_names=[topic], timeout_ms=_ADMIN_TIMEOUT_MS)
        self._cluster.call_any(request)
