"""`tidemill transactions`."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import Any

import pytest
from cluster_under_test import Cluster
from command_line import Run, run_program
from raw_transactions import RawProducer, end_offsets, is_stable

from tidemill.testing import SubprocessBroker


@pytest.fixture
def transactional_id() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


def printed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("transactions", *arguments, "--json").stdout)
    return found


def test_an_open_transaction_is_listed_and_described(
    run: Run, cluster: Cluster, topic: str, transactional_id: str
) -> None:
    with RawProducer(cluster.bootstrap, transactional_id).begin() as producer:
        assert producer.produce(topic, b"open") == 0
        (listed,) = [each for each in printed(run, "list") if each["transactional_id"] == transactional_id]
        assert (listed["state"], listed["producer_id"]) == ("Ongoing", producer.producer_id)
        assert transactional_id in run("transactions", "list", "--state", "Ongoing").stdout
        assert transactional_id not in run("transactions", "list", "--state", "Empty").stdout
        (described,) = printed(run, "describe", transactional_id)
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert (described["producer_epoch"], described["timeout_ms"]) == (producer.epoch, 60_000)
        assert described["duration_ms"] >= 0
        text = run("transactions", "describe", transactional_id).stdout
        assert text.startswith(f"transaction {transactional_id}  state Ongoing  producer ")
        assert text.endswith(f"topic\tpartition\n{topic}\t0\n")
        looked_after = run("transactions", "abort-hanging", "--longer-than", "0s", "--topic", topic, "--yes")
        assert looked_after.stderr == "No transaction hangs for longer than 0s.\n"
        assert producer.end(commit=True) == 0, "an open transaction is not a hanging one"


def test_a_hanging_transaction_is_found_and_aborted() -> None:
    """A batch that comes after the end of its transaction, on a broker that does not check that."""
    settings = {"transaction.partition.verification.enable": "false"}
    with SubprocessBroker(settings=settings) as broker:
        run = partial(run_program, bootstrap=broker.bootstrap)
        topic = broker.create_topic("orders")
        with RawProducer(broker.bootstrap, "payments", version=1).begin() as producer:
            assert producer.add(topic) == 0
            assert producer.produce(topic, b"in time") == 0
            late = producer.produce_request(topic, b"late")
            assert producer.end(commit=True) == 0
            assert producer.send_late(late) == 0
        assert end_offsets(broker.bootstrap, topic) == (2, 3), "a message, its marker, and what hangs"
        assert not printed(run, "abort-hanging"), "within 15 minutes it may still be an open one"
        (found,) = printed(run, "abort-hanging", "--longer-than", "0s")
        assert (found["topic"], found["first_offset"], found["outcome"]) == (topic, 2, "found")
        assert not is_stable(broker.bootstrap, topic), "it was only shown"
        shown = run("transactions", "abort-hanging", "--longer-than", "0s")
        assert f"{topic}\t0\t2\t{found['producer_id']}" in shown.stdout
        assert shown.stderr == "Nothing was changed; add --yes to abort them.\n"
        (aborted,) = printed(run, "abort-hanging", "--longer-than", "0s", "--topic", topic, "--yes")
        assert aborted["outcome"] == "aborted"
        assert is_stable(broker.bootstrap, topic)
        assert not printed(run, "abort-hanging", "--longer-than", "0s")


def test_what_is_wrong(run: Run, cluster: Cluster, transactional_id: str) -> None:
    refused = run("transactions", "describe", transactional_id, code=2)
    assert refused.stderr == (
        f"tidemill: transaction {transactional_id} does not exist: "
        "`tidemill transactions list` shows what is there\n"
    )
    assert "there is no state Asleep: say " in run("transactions", "list", "-s", "Asleep", code=2).stderr
    refused = run("transactions", "abort-hanging", "--longer-than", "soon", code=2)
    assert refused.stderr == "tidemill: 'soon' is no length of time: write 30s, 15m, 2h or 7d\n"
    missing = cluster.topic_name()
    refused = run("transactions", "abort-hanging", "--topic", missing, code=2)
    assert refused.stderr.startswith(f"tidemill: topic {missing} does not exist: ")
    refused = run("transactions", "list", "-X", "security.protocol=SSL", code=2)
    assert "does not speak security.protocol=SSL" in refused.stderr
    refused = run("transactions", "list", "--bootstrap", "127.0.0.1:1", code=2)
    assert "no broker answers at 127.0.0.1:1" in refused.stderr
