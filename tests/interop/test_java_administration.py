"""The Java client's administration calls, through Apache Kafka's own command-line tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cluster_under_test import Cluster
from kafka_tools import kafka_tool
from sample_data import read_partition

SERVER = "--bootstrap-server"


def test_topics_from_creation_to_deletion(cluster: Cluster) -> None:
    topic = cluster.topic_name()
    server = (SERVER, cluster.bootstrap)
    create = ("--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    assert f"Created topic {topic}." in kafka_tool("TopicCommand", *server, *create)
    again = kafka_tool("TopicCommand", *server, *create, expect_failure=True)
    assert "already exists" in again
    described = kafka_tool("TopicCommand", *server, "--describe", "--topic", topic)
    assert re.search(
        rf"Topic: {topic}\s+TopicId: \S+\s+PartitionCount: 3\s+ReplicationFactor: 1", described
    ), described
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3, (
        described
    )
    kafka_tool("TopicCommand", *server, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in kafka_tool("TopicCommand", *server, "--describe", "--topic", topic)
    assert topic in kafka_tool("TopicCommand", *server, "--list").splitlines()
    kafka_tool("TopicCommand", *server, "--delete", "--topic", topic)
    assert topic not in kafka_tool("TopicCommand", *server, "--list").splitlines()


def test_topic_configs_are_set_and_removed(cluster: Cluster) -> None:
    topic = cluster.topic()
    where = (SERVER, cluster.bootstrap, "--entity-type", "topics", "--entity-name", topic)
    kafka_tool(
        "ConfigCommand",
        *where,
        "--alter",
        "--add-config",
        "retention.ms=123456,cleanup.policy=[compact,delete]",
    )
    described = kafka_tool("ConfigCommand", *where, "--describe")
    assert "retention.ms=123456" in described
    assert "cleanup.policy=compact,delete" in described
    kafka_tool("ConfigCommand", *where, "--alter", "--delete-config", "retention.ms")
    described = kafka_tool("ConfigCommand", *where, "--describe")
    assert "retention.ms" not in described
    refused = kafka_tool(
        "ConfigCommand", *where, "--alter", "--add-config", "retention.ms=soon", expect_failure=True
    )
    assert "retention.ms" in refused
    every = kafka_tool("ConfigCommand", *where, "--describe", "--all")
    names = set(re.findall(r"^  ([a-z.]+)=", every, re.MULTILINE))
    assert {"segment.bytes", "max.message.bytes", "min.insync.replicas", "compression.type"} <= names, every


def test_broker_configs_are_set_and_removed(cluster: Cluster) -> None:
    where = (SERVER, cluster.bootstrap, "--entity-type", "brokers", "--entity-name", "1")
    kafka_tool("ConfigCommand", *where, "--alter", "--add-config", "log.retention.ms=86400000")
    assert "log.retention.ms=86400000" in kafka_tool("ConfigCommand", *where, "--describe")
    kafka_tool("ConfigCommand", *where, "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms=86400000" not in kafka_tool("ConfigCommand", *where, "--describe")
    every = kafka_tool("ConfigCommand", *where, "--describe", "--all")
    assert "log.segment.bytes=" in every, every[:2000]


def test_features_are_described(cluster: Cluster) -> None:
    text = kafka_tool("FeatureCommand", SERVER, cluster.bootstrap, "describe")
    assert re.search(
        r"Feature: metadata.version\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+", text
    ), text
    assert re.search(r"metadata.version\b.*FinalizedVersionLevel: [1-9]\S*\s+Epoch: \d+", text), text


def test_log_directories_are_described(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    text = kafka_tool("LogDirsCommand", SERVER, cluster.bootstrap, "--describe", "--topic-list", topic)
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    (broker,) = json.loads(line)["brokers"]
    partitions = [entry for directory in broker["logDirs"] for entry in directory["partitions"]]
    assert {entry["partition"] for entry in partitions} == {f"{topic}-0", f"{topic}-1"}
    assert all(directory["error"] is None for directory in broker["logDirs"])


def test_broker_api_versions(cluster: Cluster) -> None:
    text = kafka_tool("BrokerApiVersionsCommand", SERVER, cluster.bootstrap)
    assert re.search(r"Produce\(0\): \d+ to \d+ \[usable: \d+\]", text), text
    assert "Fetch(1): " in text
    assert "UNSUPPORTED" not in "".join(line for line in text.splitlines() if "Fetch(1)" in line)


def test_cluster_id(cluster: Cluster) -> None:
    text = kafka_tool("ClusterTool", "cluster-id", SERVER, cluster.bootstrap)
    assert re.search(r"Cluster ID: [A-Za-z0-9_-]{22}", text), text


def test_offsets_by_every_special_time(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=1)
    lines = "".join(f"message {number}\n" for number in range(30))
    kafka_tool("ConsoleProducer", SERVER, cluster.bootstrap, "--topic", topic, standard_input=lines)
    for time, expected in (
        ("earliest", "0"),
        ("latest", "30"),
        ("max-timestamp", r"\d+"),
        ("-2", "0"),
        ("-1", "30"),
    ):
        text = kafka_tool("GetOffsetShell", SERVER, cluster.bootstrap, "--topic", topic, "--time", time)
        assert re.search(rf"^{topic}:0:{expected}$", text, re.MULTILINE), f"--time {time}: {text}"


def test_records_are_deleted(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic()
    lines = "".join(f"message {number}\n" for number in range(20))
    kafka_tool("ConsoleProducer", SERVER, cluster.bootstrap, "--topic", topic, standard_input=lines)
    asked = tmp_path / "offsets.json"
    asked.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 12}], "version": 1})
    )
    text = kafka_tool("DeleteRecordsCommand", SERVER, cluster.bootstrap, "--offset-json-file", str(asked))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 12", text), text
    assert [record.offset for record in read_partition(cluster.bootstrap, topic, 0)] == list(range(12, 20))


def test_producers_are_described(cluster: Cluster) -> None:
    topic = cluster.topic()
    kafka_tool("ConsoleProducer", SERVER, cluster.bootstrap, "--topic", topic, standard_input="one\ntwo\n")
    where = ("describe-producers", "--topic", topic, "--partition", "0")
    text = kafka_tool("TransactionsCommand", SERVER, cluster.bootstrap, *where)
    header, *rows = text.strip().splitlines()
    assert header.split()[:3] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"], text
    assert len(rows) == 1, f"one idempotent producer wrote here:\n{text}"
