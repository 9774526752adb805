"""Apache Kafka's own transactional clients and tools, the second version of the protocol included."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from kafka_tools import java_program, kafka_tool
from raw_groups import committed_offsets
from raw_transactions import RawProducer, is_stable
from tidemill_peer import TidemillPeer
from transaction_reading import committed_values
from waiting import wait_until

from tidemill.testing.embedded import create_topic

COUNT = 2_000


@pytest.fixture
def name() -> str:
    return f"transactional-{uuid.uuid4().hex[:8]}"


def test_the_java_producer(cluster: Cluster, name: str) -> None:
    source, target = cluster.topic(), cluster.topic()
    text = java_program("TransactionalClient", cluster.bootstrap, source, target, name)
    assert "copied 10\n" in text
    assert re.search(r"the zombie got (ProducerFencedException|InvalidProducerEpochException)\n", text), text
    expected = [*(f"copy of source {number}" for number in range(10)), "of the successor"]
    assert f"read [{', '.join(expected)}]\n" in text
    assert [value.decode() for value in committed_values(cluster.bootstrap, target)] == expected
    assert is_stable(cluster.bootstrap, target) and is_stable(cluster.bootstrap, source)
    assert committed_offsets(cluster.bootstrap, f"{name}-group", source, 1) == {0: 10}


@pytest.mark.parametrize("options", [(), ("--enable-random-aborts", "--group-mode", "--use-group-metadata")])
def test_the_transactional_message_copier(cluster: Cluster, name: str, options: tuple[str, ...]) -> None:
    source, target = cluster.topic(), cluster.topic()
    CONFLUENT.produce(cluster.bootstrap, source, [Sent(b"%d" % number) for number in range(COUNT)])
    text = kafka_tool(
        *("TransactionalMessageCopier", "--broker-list", cluster.bootstrap, "--transactional-id", name),
        *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
        *("--consumer-group", f"{name}-group", "--transaction-size", "100", *options),
    )
    (last,) = [json.loads(line) for line in text.splitlines() if '"ShutdownComplete"' in line]
    assert (last["remaining"], last["totalProcessed"]) == (0, COUNT)
    assert committed_values(cluster.bootstrap, target) == [b"%d" % number for number in range(COUNT)]
    assert committed_offsets(cluster.bootstrap, f"{name}-group", source, 1) == {0: COUNT}
    assert is_stable(cluster.bootstrap, target)


def test_the_command_for_transactions(name: str) -> None:
    """An open transaction is ended by force; one that hangs is found and aborted."""
    with TidemillPeer(settings={"transaction.partition.verification.enable": "false"}) as broker:

        def command(*arguments: str) -> str:
            return kafka_tool("TransactionsCommand", "--bootstrap-server", broker.bootstrap, *arguments)

        create_topic(broker.bootstrap, "orders", 1, {})
        with RawProducer(broker.bootstrap, name).begin() as producer:
            assert producer.produce("orders", b"open") == 0
            listed = command("list")
            assert re.search(rf"^{name}\s+1\s+{producer.producer_id}\s+Ongoing", listed, re.MULTILINE), listed
            assert re.search(r"Ongoing\s.*orders-0", command("describe", "--transactional-id", name))
            producers = command("describe-producers", "--topic", "orders", "--partition", "0")
            assert re.search(rf"^{producer.producer_id}\s+{producer.epoch}\s", producers, re.MULTILINE), (
                producers
            )
            command("forceTerminateTransaction", "--transactionalId", name)
            wait_until(lambda: is_stable(broker.bootstrap, "orders"), "the end by force")
        with RawProducer(broker.bootstrap, f"{name}-old", version=1).begin() as late:
            assert late.add("orders") == 0
            assert late.produce("orders", b"in time") == 0
            batch = late.produce_request("orders", b"hangs")
            assert late.end(commit=True) == 0
            wait_until(lambda: is_stable(broker.bootstrap, "orders"), "the marker")
            assert late.send_late(batch) == 0
        first = len(committed_values(broker.bootstrap, "orders", "read_uncommitted"))
        assert first == 3 and not is_stable(broker.bootstrap, "orders")
        found = command("find-hanging", "--topic", "orders", "--max-transaction-timeout", "0")
        (offset,) = re.findall(
            rf"^orders\s+0\s+{late.producer_id}\s+\d+\s+-?\d+\s+(\d+)", found, re.MULTILINE
        )
        command("abort", "--topic", "orders", "--partition", "0", "--start-offset", offset)
        assert is_stable(broker.bootstrap, "orders")
        assert committed_values(broker.bootstrap, "orders") == [b"in time"]
