"""Share groups with the Java client: Kafka's share consumers and tools against us, and our state in Kafka's hands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from cluster_under_test import Cluster
from confluent_kafka import Producer
from kafka_peer import KafkaPeer
from kafka_tools import complaints, dump_log, dumped_records, kafka_tool
from tidemill_peer import TidemillPeer
from waiting import wait_until

from tidemill.testing.embedded import create_topic

GROUP = "workers"
PATIENCE_MS = "60000"
SHARE_STATE = "__share_group_state-*/*.log"


def produce(bootstrap: str, topic: str, count: int) -> list[str]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = [f"job-{number}" for number in range(count)]
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(30) == 0
    return values


def from_the_start(bootstrap: str, group: str) -> None:
    where = ("--bootstrap-server", bootstrap, "--entity-type", "groups", "--entity-name", group)
    kafka_tool("ConfigCommand", *where, "--alter", "--add-config", "share.auto.offset.reset=earliest")


def consume(bootstrap: str, topic: str, count: int, group: str = GROUP) -> list[str]:
    text = kafka_tool(
        *("ConsoleShareConsumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", str(count), "--timeout-ms", PATIENCE_MS),
    )
    return [line for line in text.splitlines() if line.startswith("job-")]


def share_groups(bootstrap: str, *arguments: str) -> str:
    return kafka_tool("ShareGroupCommand", "--bootstrap-server", bootstrap, *arguments)


def start_and_lag(bootstrap: str, group: str = GROUP) -> list[str]:
    text = share_groups(bootstrap, "--describe", "--group", group)
    found = re.search(rf"^{group}\s+\S+\s+0\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    assert found is not None, text
    return [found[1], found[2]]


def test_the_console_consumer_takes_what_others_left(cluster: Cluster) -> None:
    topic, group = cluster.topic(partitions=1), cluster.topic_name()
    values = produce(cluster.bootstrap, topic, 20)
    from_the_start(cluster.bootstrap, group)
    assert consume(cluster.bootstrap, topic, 5, group) == values[:5]
    assert start_and_lag(cluster.bootstrap, group) == ["5", "15"]
    assert consume(cluster.bootstrap, topic, 15, group) == values[5:]
    assert start_and_lag(cluster.bootstrap, group) == ["20", "0"]


def test_the_tool_for_share_groups(cluster: Cluster) -> None:
    topic, group = cluster.topic(partitions=1), cluster.topic_name()
    values = produce(cluster.bootstrap, topic, 6)
    from_the_start(cluster.bootstrap, group)
    consume(cluster.bootstrap, topic, 6, group)
    assert group in share_groups(cluster.bootstrap, "--list").splitlines()
    state = share_groups(cluster.bootstrap, "--describe", "--group", group, "--state")
    assert re.search(rf"^{group}\s+\S+\s+\(1\)\s+Empty\s+0", state, re.MULTILINE), state
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert re.search(rf"^{group}\s+{topic}\s+0\s+0", share_groups(cluster.bootstrap, *reset), re.MULTILINE)
    assert start_and_lag(cluster.bootstrap, group) == ["0", "6"]
    assert consume(cluster.bootstrap, topic, 6, group) == values
    deleted = share_groups(cluster.bootstrap, "--delete-offsets", "--group", group, "--topic", topic)
    assert re.search(rf"^{topic}\s+Successful", deleted, re.MULTILINE), deleted
    assert "successful" in share_groups(cluster.bootstrap, "--delete", "--group", group)
    assert group not in share_groups(cluster.bootstrap, "--list").splitlines()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_verifiable_share_consumer(cluster: Cluster, mode: str) -> None:
    """It acknowledges each record by itself, and says which."""
    topic, group = cluster.topic(partitions=1), cluster.topic_name()
    produce(cluster.bootstrap, topic, 300)
    text = kafka_tool(
        *("VerifiableShareConsumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--group-id", group, "--max-messages", "300", "--acknowledgement-mode", mode),
        *("--offset-reset-strategy", "earliest"),
    )
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    settled = [event for event in events if event["name"] == "offsets_acknowledged"]
    assert all(event["success"] for event in settled), settled
    assert sum(event["count"] for event in settled) == 300
    assert start_and_lag(cluster.bootstrap, group) == ["300", "0"]


def live(broker: BrokerProcess) -> list[str]:
    """Ten jobs, four of which are done."""
    create_topic(broker.bootstrap, "jobs", 1, {})
    values = produce(broker.bootstrap, "jobs", 10)
    from_the_start(broker.bootstrap, GROUP)
    assert consume(broker.bootstrap, "jobs", 4) == values[:4]
    return values


def test_kafkas_decoder_reads_our_state(tmp_path: Path) -> None:
    with TidemillPeer(data_directory=tmp_path / "data") as broker:
        live(broker)
        broker.stop()
    logs = [path for path in (tmp_path / "data").glob(SHARE_STATE) if path.stat().st_size]
    text = dump_log(logs, "--share-group-state-decoder")
    assert not complaints(text), text
    records = [(json.loads(each.key or ""), json.loads(each.payload or "")) for each in dumped_records(text)]
    first_key, first = records[0]
    assert (first_key["type"], first_key["data"]["groupId"]) == ("0", GROUP)
    assert first["data"]["startOffset"] == -1 and first["data"]["snapshotEpoch"] == 0
    assert max(value["data"]["startOffset"] for _, value in records) == 4
    groups = [path for path in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    decoded = dump_log(groups, "--offsets-decoder")
    assert not complaints(decoded), decoded
    types = {json.loads(each.key or "{}")["type"] for each in dumped_records(decoded)}
    assert types >= {"10", "11", "12", "13", "14", "15"}


@pytest.mark.parametrize(("writer", "reader"), [(KafkaPeer, TidemillPeer), (TidemillPeer, KafkaPeer)])
def test_share_groups_move_with_the_directory(
    writer: type[BrokerProcess], reader: type[BrokerProcess], tmp_path: Path
) -> None:
    settings: dict[str, object] = {
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }
    with writer(data_directory=tmp_path / "data", settings=settings) as first:
        values = live(first)
    with reader(data_directory=tmp_path / "data", settings=settings) as second:
        wait_until(lambda: GROUP in share_groups(second.bootstrap, "--list"), "the group", 60)
        assert start_and_lag(second.bootstrap) == ["4", "6"]
        assert consume(second.bootstrap, "jobs", 6) == values[4:]
