"""The same version range as Apache Kafka for every API that we list, and none missing that clients count on."""

from __future__ import annotations

from api_ranges import ApiRanges, api_ranges
from cluster_under_test import Cluster
from sample_data import Written

from tidemill.api import table

NAMES = {api.key: api.name for api in table.APIS}

# Kafka hides these two unless a plug-in for client metrics is installed; version 0 is all there is of them.
TELEMETRY: ApiRanges = {71: (0, 0), 72: (0, 0)}

REQUIRED = {
    *("ApiVersions", "Metadata", "Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch"),
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "DescribeTopicPartitions"),
    *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "DescribeCluster", "DescribeLogDirs"),
    *("InitProducerId", "DescribeProducers", "FindCoordinator"),
    *("GetTelemetrySubscriptions", "PushTelemetry"),
}
"""What a plain producer, consumer and administrator use."""


def test_every_api_that_clients_count_on_is_listed(cluster: Cluster) -> None:
    listed = {NAMES.get(key) for key in api_ranges(cluster.bootstrap)}
    assert not REQUIRED - listed


def test_every_api_has_the_version_range_of_apache_kafka(cluster: Cluster, written_by_kafka: Written) -> None:
    ours = api_ranges(cluster.bootstrap)
    theirs = {**TELEMETRY, **written_by_kafka.apis}
    differences = [
        f"{NAMES.get(key, key)} (API {key}): we say {ours[key]}, Apache Kafka says {theirs.get(key)}"
        for key in sorted(ours)
        if ours[key] != theirs.get(key)
    ]
    assert not differences, "\n".join(differences)
