"""Was a write of that name published? For whoever wants to know before doing the work for nothing.

    is_published({"kafka.bootstrap.servers": "127.0.0.1:9092", "commitKey": "tea of tuesday"})       # False

The sink does not depend on the answer: it looks again, with older writers shut out, before it publishes. So this only
looks, and where the last writer of the name died with its transaction open it answers no.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.spark.client.cluster import Cluster
from tidemill.spark.options import Options
from tidemill.spark.sink.decisions import UnmarkedDecision, standing_decisions
from tidemill.spark.sink.topics import COMMITS
from tidemill.spark.sink.writers import split_commit_key


def is_published(given: Mapping[str, str]) -> bool:
    """`given` are options of a batch write with a `commitKey`."""
    options = Options(given)
    query, batch = split_commit_key(options.required("commitKey", "a name"))
    with Cluster(options.kafka) as cluster:
        if COMMITS.topic not in cluster.partitions([COMMITS.topic]):
            return False
        try:
            return batch in standing_decisions(cluster, query, options.kafka.request_timeout_ms)
        except UnmarkedDecision:
            return False
