"""Apache Kafka's own producer and consumer tools talk to us."""

from __future__ import annotations

import re

import pytest
from cluster_under_test import Cluster
from kafka_tools import kafka_tool
from sample_data import read_partition


@pytest.mark.parametrize(
    "settings", [("acks=all",), ("acks=1", "compression.type=lz4"), ("enable.idempotence=false",)]
)
def test_producer_performance(cluster: Cluster, settings: tuple[str, ...]) -> None:
    topic = cluster.topic(partitions=3)
    text = kafka_tool(
        *("ProducerPerformance", "--topic", topic, "--num-records", "20000", "--record-size", "200"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={cluster.bootstrap}", *settings),
    )
    assert re.search(r"^20000 records sent", text, re.MULTILINE), text
    assert sum(len(read_partition(cluster.bootstrap, topic, partition)) for partition in range(3)) == 20000


def test_console_producer_and_consumer(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=1)
    lines = [f"key-{number}\tvalue {number}" for number in range(50)]
    kafka_tool(
        *("ConsoleProducer", "--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--reader-property", "parse.key=true"),
        standard_input="\n".join(lines) + "\n",
    )
    assert [
        f"{record.key}\t{record.value}" for record in read_partition(cluster.bootstrap, topic, 0)
    ] == lines
    text = _console_consumer(cluster, topic, "--offset", "earliest", "--max-messages", "50")
    assert [line for line in text.splitlines() if line.startswith("key-")] == lines


def test_console_consumer_from_an_offset(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    kafka_tool(
        *("ConsoleProducer", "--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--command-property", "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner"),
        standard_input="\n".join(f"key-\t{number}" for number in range(40)) + "\n",
    )
    held = read_partition(cluster.bootstrap, topic, 1)
    text = _console_consumer(cluster, topic, "--offset", "3", "--max-messages", "5", partition=1)
    values = [line.partition("\t")[2] for line in text.splitlines() if "\t" in line]
    assert values == [record.value for record in held[3:8]]


def test_console_consumer_waits_for_messages_to_come(cluster: Cluster) -> None:
    """At the end of the log it polls in vain and says so; nothing else goes wrong."""
    topic = cluster.topic()
    text = _console_consumer(cluster, topic, "--offset", "latest", timeout_ms=3000)
    assert "Processed a total of 0 messages" in text


def _console_consumer(
    cluster: Cluster, topic: str, *arguments: str, partition: int = 0, timeout_ms: int = 30_000
) -> str:
    return kafka_tool(
        *("ConsoleConsumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--partition", str(partition), "--timeout-ms", str(timeout_ms)),
        *("--formatter-property", "print.key=true", *arguments),
    )
