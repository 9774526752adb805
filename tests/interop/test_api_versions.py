"""The same version range as Apache Kafka for every API that we list."""

from __future__ import annotations

from api_ranges import ApiRanges, api_ranges
from cluster_under_test import Cluster
from sample_data import Written

from tidemill.api import table

NAMES = {api.key: api.name for api in table.APIS}

# Kafka hides these two unless a plug-in for client metrics is installed; version 0 is all there is of them.
TELEMETRY: ApiRanges = {71: (0, 0), 72: (0, 0)}


def test_every_api_has_the_version_range_of_apache_kafka(cluster: Cluster, written_by_kafka: Written) -> None:
    ours = api_ranges(cluster.bootstrap)
    theirs = {**TELEMETRY, **written_by_kafka.apis}
    differences = [
        f"{NAMES.get(key, key)} (API {key}): we say {ours[key]}, Apache Kafka says {theirs.get(key)}"
        for key in sorted(ours)
        if ours[key] != theirs.get(key)
    ]
    assert not differences, "\n".join(differences)
