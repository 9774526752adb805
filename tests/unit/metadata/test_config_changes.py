from __future__ import annotations

import pytest
from metadata_cluster import MetadataCluster

from tidemill.metadata.config_changes import ConfigChange, Operation, ResourceChange, ResourceReplacement
from tidemill.metadata.decisions import Outcome
from tidemill.metadata.image import ConfigResource, ResourceType
from tidemill.metadata.topics import NewTopic
from tidemill.model.errors import ErrorCode

ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
BROKER = ConfigResource(ResourceType.BROKER, "1")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.fixture
def cluster() -> MetadataCluster:
    cluster = MetadataCluster()
    cluster.run(cluster.controller.create_topics(cluster.image, [NewTopic("orders")]))
    return cluster


def alter(
    cluster: MetadataCluster, resource: ConfigResource, *changes: tuple[str, int, str | None]
) -> Outcome:
    request = ResourceChange(resource, tuple(ConfigChange(*change) for change in changes))
    return cluster.run(cluster.controller.incremental_alter_configs(cluster.image, [request]))[resource]


def test_set_and_delete(cluster: MetadataCluster) -> None:
    assert alter(cluster, ORDERS, ("retention.ms", SET, "5"), ("segment.bytes", SET, "2000000")).is_success
    assert cluster.image.configs[ORDERS] == {"retention.ms": "5", "segment.bytes": "2000000"}
    assert cluster.changes.configs == {ORDERS}
    assert alter(cluster, ORDERS, ("retention.ms", DELETE, None)).is_success
    assert cluster.image.configs[ORDERS] == {"segment.bytes": "2000000"}


def test_lists_grow_from_their_default_and_shrink(cluster: MetadataCluster) -> None:
    assert alter(cluster, ORDERS, ("cleanup.policy", APPEND, "compact")).is_success
    assert cluster.image.configs[ORDERS]["cleanup.policy"] == "delete,compact"
    assert alter(cluster, ORDERS, ("cleanup.policy", APPEND, "compact")).is_success
    assert alter(cluster, ORDERS, ("cleanup.policy", SUBTRACT, "delete")).is_success
    assert cluster.image.configs[ORDERS]["cleanup.policy"] == "compact"


def test_a_resource_changes_as_a_whole_or_not_at_all(cluster: MetadataCluster) -> None:
    outcome = alter(cluster, ORDERS, ("retention.ms", SET, "5"), ("segment.bytes", SET, "many"))
    assert outcome.error is ErrorCode.INVALID_CONFIG and "segment.bytes" in (outcome.message or "")
    assert ORDERS not in cluster.image.configs


def test_it_is_the_result_that_is_validated(cluster: MetadataCluster) -> None:
    assert alter(cluster, ORDERS, ("max.compaction.lag.ms", SET, "10")).is_success
    outcome = alter(cluster, ORDERS, ("min.compaction.lag.ms", SET, "20"))
    assert outcome.error is ErrorCode.INVALID_CONFIG
    both = (("min.compaction.lag.ms", SET, "20"), ("max.compaction.lag.ms", SET, "30"))
    assert alter(cluster, ORDERS, *both).is_success


@pytest.mark.parametrize(
    ("resource", "change", "code"),
    [
        (ORDERS, ("no.such.key", SET, "1"), ErrorCode.INVALID_CONFIG),
        (ORDERS, ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (ORDERS, ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (ORDERS, ("cleanup.policy", SET, "burn"), ErrorCode.INVALID_CONFIG),
        (ORDERS, ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (ORDERS, ("follower.replication.throttled.replicas", SET, "x" * 40_000), ErrorCode.INVALID_CONFIG),
        (ConfigResource(2, "unknown"), ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResource(2, ""), ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(2, "a b"), ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ConfigResource(4, "7"), ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (ConfigResource(4, "one"), ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "-1"), ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(8, "1"), ("x", SET, "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(77, "1"), ("x", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, ("num.partitions", SET, "3"), ErrorCode.INVALID_CONFIG),
        (BROKER, ("log.retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (ALL_BROKERS, ("num.partitions", SET, "3"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_refusals(
    cluster: MetadataCluster, resource: ConfigResource, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    before = cluster.image.configs
    outcome = alter(cluster, resource, change)
    assert outcome.error is code and outcome.message
    assert cluster.image.configs == before


def test_brokers_and_their_common_default(cluster: MetadataCluster) -> None:
    assert alter(cluster, BROKER, ("log.retention.ms", SET, "5")).is_success
    assert alter(cluster, ALL_BROKERS, ("log.retention.ms", SET, "9")).is_success
    layers = cluster.controller.settings.layers(cluster.image)
    assert (layers.broker, layers.cluster) == ({"log.retention.ms": "5"}, {"log.retention.ms": "9"})


def test_an_unchanged_value_writes_a_record_for_brokers_only(cluster: MetadataCluster) -> None:
    for resource, name, written in ((ORDERS, "retention.ms", 0), (BROKER, "log.retention.ms", 1)):
        alter(cluster, resource, (name, SET, "5"))
        request = ResourceChange(resource, (ConfigChange(name, SET, "5"),))
        decision = cluster.controller.incremental_alter_configs(cluster.image, [request])
        assert len(decision.records) == written


def test_doubled_keys_and_doubled_resources(cluster: MetadataCluster) -> None:
    outcome = alter(cluster, ORDERS, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    assert outcome.error is ErrorCode.INVALID_REQUEST
    request = ResourceChange(ORDERS, (ConfigChange("retention.ms", SET, "1"),))
    decision = cluster.controller.incremental_alter_configs(cluster.image, [request, request])
    assert decision.result[ORDERS].error is ErrorCode.INVALID_REQUEST and not decision.records


def test_the_legacy_request_replaces_everything(cluster: MetadataCluster) -> None:
    alter(cluster, ORDERS, ("retention.ms", SET, "5"), ("segment.bytes", SET, "2000000"))
    request = ResourceReplacement(ORDERS, (("segment.bytes", "3000000"),))
    tried = cluster.controller.alter_configs(cluster.image, [request], validate_only=True)
    assert tried.result[ORDERS].is_success and not tried.records
    cluster.run(cluster.controller.alter_configs(cluster.image, [request]))
    assert cluster.image.configs[ORDERS] == {"segment.bytes": "3000000"}
