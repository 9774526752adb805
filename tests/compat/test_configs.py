"""Settings of topics and brokers: described with their source, changed at run time, refused when wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka.admin
import kafka.admin
import pytest
from cluster_under_test import Cluster
from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from raw import batch_of, produce
from waiting import wait_until

from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
TOPIC_CODE, BROKER_CODE = 2, 4
SET, DELETE = 0, 1
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def describe(cluster: Cluster, kind: Any, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    described: dict[str, ConfigEntry] = cluster.admin().describe_configs([resource])[resource].result(20)
    return described


def value(cluster: Cluster, topic: str, key: str) -> str | None:
    found: str | None = describe(cluster, TOPIC, topic)[key].value
    return found


def wait_for(cluster: Cluster, topic: str, **expected: str) -> None:
    """A change is visible at once on one broker, and soon on several."""
    for key, wanted in expected.items():
        dotted = key.replace("_", ".")
        wait_until(lambda: value(cluster, topic, dotted) == wanted, f"{dotted}={wanted}")  # noqa: B023


def alter(cluster: Cluster, kind: Any, name: str, **changes: tuple[AlterConfigOpType, str | None]) -> None:
    """Incremental changes; names with underscores for dots."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=operation)
        for key, (operation, value) in changes.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    cluster.admin().incremental_alter_configs([resource])[resource].result(20)


def broker_id(cluster: Cluster) -> str:
    return str(next(iter(cluster.admin().list_topics(timeout=20).brokers)))


def test_defaults_of_a_topic(cluster: Cluster, topic: str) -> None:
    described = describe(cluster, TOPIC, topic)
    assert {key: described[key].value for key in DEFAULTS} == DEFAULTS
    by_default = set(DEFAULTS) - {"min.insync.replicas"}  # which Kafka 4 sets for the whole cluster
    assert {described[key].source for key in by_default} == {ConfigSource.DEFAULT_CONFIG.value}
    assert all(described[key].is_default for key in by_default)
    assert not described["retention.ms"].is_read_only


def test_settings_of_creation_are_dynamic(cluster: Cluster) -> None:
    topic = cluster.topic(retention_ms=123_000, cleanup_policy="compact,delete")
    described = describe(cluster, TOPIC, topic)
    assert described["retention.ms"].value == "123000"
    assert described["cleanup.policy"].value == "compact,delete"
    assert described["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert described["segment.ms"].source == ConfigSource.DEFAULT_CONFIG.value


def test_set_and_delete(cluster: Cluster, topic: str) -> None:
    alter(cluster, TOPIC, topic, retention_ms=(AlterConfigOpType.SET, "5000000"))
    alter(cluster, TOPIC, topic, segment_ms=(AlterConfigOpType.SET, "60000"))
    wait_for(cluster, topic, retention_ms="5000000", segment_ms="60000")
    alter(cluster, TOPIC, topic, retention_ms=(AlterConfigOpType.DELETE, None))
    wait_for(cluster, topic, retention_ms="604800000", segment_ms="60000")
    assert describe(cluster, TOPIC, topic)["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value


def test_append_and_subtract(cluster: Cluster, topic: str) -> None:
    alter(cluster, TOPIC, topic, cleanup_policy=(AlterConfigOpType.APPEND, "compact"))
    wait_for(cluster, topic, cleanup_policy="delete,compact")
    alter(cluster, TOPIC, topic, cleanup_policy=(AlterConfigOpType.SUBTRACT, "delete"))
    wait_for(cluster, topic, cleanup_policy="compact")


def test_legacy_alter_replaces_everything(cluster: Cluster, topic: str) -> None:
    alter(cluster, TOPIC, topic, retention_ms=(AlterConfigOpType.SET, "5000000"))
    resource = ConfigResource(TOPIC, topic, set_config={"segment.ms": "70000"})
    cluster.admin().alter_configs([resource])[resource].result(20)
    wait_for(cluster, topic, retention_ms="604800000", segment_ms="70000")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("segment.bytes", "13"),
        ("cleanup.policy", "burn"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "Sometimes"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.insync.replicas", "0"),
        ("preallocate", "perhaps"),
        ("no.such.setting", "1"),
    ],
)
def test_bad_values_are_refused_and_change_nothing(
    cluster: Cluster, topic: str, key: str, value: str
) -> None:
    before = {name: entry.value for name, entry in describe(cluster, TOPIC, topic).items()}
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        alter(cluster, TOPIC, topic, **{key.replace(".", "_"): (AlterConfigOpType.SET, value)})
    assert {name: entry.value for name, entry in describe(cluster, TOPIC, topic).items()} == before


def test_one_bad_value_spoils_the_whole_change(cluster: Cluster, topic: str) -> None:
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        alter(
            cluster,
            TOPIC,
            topic,
            segment_ms=(AlterConfigOpType.SET, "60000"),
            retention_ms=(AlterConfigOpType.SET, "soon"),
        )
    assert describe(cluster, TOPIC, topic)["segment.ms"].value == DEFAULTS["segment.ms"]


def test_validate_only_changes_nothing(cluster: Cluster, topic: str) -> None:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(TOPIC, topic, incremental_configs=[entry])
    cluster.admin().incremental_alter_configs([resource], validate_only=True)[resource].result(20)
    assert describe(cluster, TOPIC, topic)["retention.ms"].value == DEFAULTS["retention.ms"]


def test_settings_of_an_unknown_topic(cluster: Cluster) -> None:
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        describe(cluster, TOPIC, cluster.topic_name())
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        alter(cluster, TOPIC, cluster.topic_name(), retention_ms=(AlterConfigOpType.SET, "1"))


def test_broker_settings_change_at_run_time(cluster: Cluster, topic: str) -> None:
    """A broker-wide default reaches topics that do not set it, and is named as their source."""
    node = broker_id(cluster)
    try:
        alter(cluster, BROKER, node, message_max_bytes=(AlterConfigOpType.SET, "2000000"))
        wait_for(cluster, topic, max_message_bytes="2000000")
        described = describe(cluster, BROKER, node)
        assert described["message.max.bytes"].value == "2000000"
        assert described["message.max.bytes"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        of_topic = describe(cluster, TOPIC, topic)["max.message.bytes"]
        assert (of_topic.value, of_topic.source) == ("2000000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
        with cluster.connect(topic) as connection:
            assert produce(connection, topic, batch_of(b"x" * 1_900_000)).error_code == 0
    finally:
        alter(cluster, BROKER, node, message_max_bytes=(AlterConfigOpType.DELETE, None))
    wait_for(cluster, topic, max_message_bytes="1048588")


def alter_all_brokers(cluster: Cluster, operation: int, key: str, value: str | None) -> None:
    """Change the resource with the empty name, every broker's default, which no Python client can name."""
    change = AlterableConfig(name=key, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=BROKER_CODE, resource_name="", configs=[change])
    with cluster.connect() as connection:
        (answer,) = connection.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert answer.error_code == 0


def test_a_default_for_all_brokers(cluster: Cluster, topic: str) -> None:
    alter_all_brokers(cluster, SET, "log.retention.ms", "700000000")
    try:
        wait_for(cluster, topic, retention_ms="700000000")
        source = describe(cluster, TOPIC, topic)["retention.ms"].source
        assert source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
    finally:
        alter_all_brokers(cluster, DELETE, "log.retention.ms", None)
    wait_for(cluster, topic, retention_ms="604800000")


def test_read_only_broker_settings_are_refused(cluster: Cluster) -> None:
    node = broker_id(cluster)
    described = describe(cluster, BROKER, node)
    assert described["node.id"].value == node
    assert described["node.id"].is_read_only
    with pytest.raises(KafkaException, match=r"INVALID_REQUEST|INVALID_CONFIG"):
        alter(cluster, BROKER, node, node_id=(AlterConfigOpType.SET, "7"))


def test_synonyms_types_and_documentation(cluster: Cluster) -> None:
    topic = cluster.topic(retention_ms=1_000_000)
    keys = ["retention.ms", "cleanup.policy", "preallocate", "min.cleanable.dirty.ratio"]
    asked = DescribeConfigsResource(resource_type=TOPIC_CODE, resource_name=topic, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    with cluster.connect() as connection:
        (result,) = connection.call(request).results
    configs = {config.name: config for config in result.configs}
    assert set(configs) == set(keys)
    nearest = configs["retention.ms"].synonyms[0]
    assert (nearest.name, nearest.value) == ("retention.ms", "1000000")
    assert {key: config.config_type for key, config in configs.items()} == {
        "retention.ms": 5,
        "cleanup.policy": 7,
        "preallocate": 1,
        "min.cleanable.dirty.ratio": 6,
    }
    assert all(config.documentation for config in configs.values())


def test_describe_a_wrong_type(cluster: Cluster, topic: str) -> None:
    wrong = DescribeConfigsResource(resource_type=99, resource_name=topic, configuration_keys=None)
    with cluster.connect() as connection:
        (result,) = connection.call(DescribeConfigsRequest(resources=[wrong])).results
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_kafka_python_configs(cluster: Cluster, topic: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        resource.configs = {"retention.ms": "987654"}
        admin.alter_configs([resource])
        wait_for(cluster, topic, retention_ms="987654")
        asked = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        found = admin.describe_configs([asked])["topic"][topic]
        assert found["retention.ms"]["value"] == "987654"
    finally:
        admin.close()


def test_aiokafka_configs(cluster: Cluster, topic: str) -> None:
    async def administer() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
            change = aiokafka.admin.config_resource.ConfigResource(kind, topic, {"retention.ms": "76543"})
            await admin.alter_configs([change])
            wait_for(cluster, topic, retention_ms="76543")
            asked = aiokafka.admin.config_resource.ConfigResource(kind, topic)
            (answer,) = await admin.describe_configs([asked])
            values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert values["retention.ms"] == "76543"
        finally:
            await admin.close()

    asyncio.run(administer())
