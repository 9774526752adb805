"""Apache Kafka's own consumers and group tools: Java consumer, performance test, console, verifiable programs."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from kafka_tools import java_program, kafka_tool

CLASSIC_ASSIGNORS = ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")
ASSIGNORS = tuple(f"org.apache.kafka.clients.consumer.{name}" for name in CLASSIC_ASSIGNORS)
REMOTE_ASSIGNORS = ("uniform", "range")
"""Of the broker: with them the consumer speaks the newer protocol (KIP-848)."""
PARTITIONS = 4
COUNT = 500


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled(cluster: Cluster) -> str:
    topic = cluster.topic(PARTITIONS)
    for partition in range(PARTITIONS):
        messages = [Sent(b"%d" % number) for number in range(COUNT)]
        CONFLUENT.produce(cluster.bootstrap, topic, messages, partition=partition)
    return topic


def events(text: str, name: str) -> list[dict[str, Any]]:
    """Of a verifiable program: JSON objects, one in a line."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [event for event in found if event["name"] == name]


@pytest.mark.parametrize("assignor", ASSIGNORS + REMOTE_ASSIGNORS)
def test_the_java_consumer(cluster: Cluster, group: str, filled: str, assignor: str) -> None:
    text = java_program(
        "GroupClient", cluster.bootstrap, filled, group, assignor, str(PARTITIONS), str(PARTITIONS * COUNT)
    )
    assert f"shared and read {PARTITIONS * COUNT}\n" in text
    assert f"left with {PARTITIONS} partitions\ncommitted {COUNT}\nafter seek 0\n" in text


def test_the_java_consumer_with_a_pattern(cluster: Cluster, group: str) -> None:
    prefix = f"pattern-{uuid.uuid4().hex[:12]}"
    text = java_program("PatternClient", cluster.bootstrap, group, prefix)
    steps = [
        line for line in text.splitlines() if line.startswith(("waited", "began", "went", "ended", "refused"))
    ]
    assert steps == [
        f"waited for [early-{prefix}]",
        f"began with [{prefix}-one]",
        f"went on with [{prefix}-one, {prefix}-two]",
        f"ended with [{prefix}-two]",
        "refused",
    ], text


def test_consumer_performance(cluster: Cluster, group: str, filled: str) -> None:
    text = kafka_tool(
        *("ConsumerPerformance", "--bootstrap-server", cluster.bootstrap, "--topic", filled),
        *("--num-records", str(PARTITIONS * COUNT), "--group", group, "--hide-header"),
    )
    figures = [line.split(", ") for line in text.splitlines() if line.count(", ") == 9]
    assert [int(line[4]) for line in figures] == [PARTITIONS * COUNT], text


def test_the_console_consumer_with_a_group_goes_on_where_it_stopped(
    cluster: Cluster, group: str, filled: str
) -> None:
    common = ("ConsoleConsumer", "--bootstrap-server", cluster.bootstrap, "--topic", filled, "--group", group)
    first = kafka_tool(*common, "--from-beginning", "--max-messages", "700", "--timeout-ms", "30000")
    second = kafka_tool(*common, "--from-beginning", "--max-messages", "1300", "--timeout-ms", "30000")
    values = [line for text in (first, second) for line in text.splitlines() if line.isdigit()]
    assert sorted(map(int, values)) == sorted(number for number in range(COUNT) for _ in range(PARTITIONS))


def test_verifiable_producer_and_consumer(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(PARTITIONS)
    common = ("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--max-messages", str(COUNT))
    produced = kafka_tool("VerifiableProducer", *common, "--acks", "-1")
    sent = events(produced, "producer_send_success")
    assert sorted(int(event["value"]) for event in sent) == list(range(COUNT))
    (summary,) = events(produced, "tool_data")
    assert (summary["sent"], summary["acked"]) == (COUNT, COUNT)
    consumed = kafka_tool("VerifiableConsumer", *common, "--group-id", group, "--verbose")
    records = events(consumed, "record_data")
    assert {(event["partition"], event["offset"], event["value"]) for event in records} == {
        (event["partition"], event["offset"], event["value"]) for event in sent
    }
    assert all(event["success"] for event in events(consumed, "offsets_committed"))
    (assigned,) = events(consumed, "partitions_assigned")
    assert len(assigned["partitions"]) == PARTITIONS


def test_the_command_for_groups(cluster: Cluster, group: str, filled: str) -> None:
    def command(*arguments: str, **options: bool) -> str:
        return kafka_tool(
            "ConsumerGroupCommand", "--bootstrap-server", cluster.bootstrap, *arguments, **options
        )

    reset = ("--reset-offsets", "--group", group, "--topic", filled)
    shown = command(*reset, "--to-offset", "100", "--dry-run")
    assert re.search(rf"{group}\s+{filled}\s+0\s+100\b", shown), shown
    command(*reset, "--to-offset", "100", "--execute")
    command(*reset, "--shift-by", "-40", "--execute")
    described = command("--describe", "--group", group)
    rows = re.findall(rf"^{group}\s+{filled}\s+(\d)\s+(\d+)\s+(\d+)\s+(\d+)", described, re.MULTILINE)
    assert sorted(rows) == [(str(n), "60", str(COUNT), str(COUNT - 60)) for n in range(PARTITIONS)], described
    assert re.search(
        rf"^{group}\s.*Empty\s+0$", command("--describe", "--state", "--group", group), re.MULTILINE
    )
    assert group in command("--list", "--state", "empty")
    assert "Successful" in command("--delete-offsets", "--group", group, "--topic", f"{filled}:0,1")
    assert len(re.findall(filled, command("--describe", "--group", group))) == 2
    assert "was successful" in command("--delete", "--group", group)
    assert group not in command("--list")
