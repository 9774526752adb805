"""`tidemill topics`."""

from __future__ import annotations

import json

from cluster_under_test import Cluster
from command_line import Run


def described(run: Run, name: str) -> dict[str, object]:
    (topic,) = json.loads(run("topics", "describe", name, "--json").stdout)
    return dict(topic)


def test_create_list_describe_and_delete(run: Run, cluster: Cluster) -> None:
    name = cluster.topic_name()
    created = run("topics", "create", name, "--partitions", "3", "--config", "retention.ms=12345")
    assert created.stdout == f"topic {name} created\n"
    listed = json.loads(run("topics", "list", "--json").stdout)
    assert {"topic": name, "partitions": 3, "replicas": 1} in listed
    assert f"{name}\t3\t1" in run("topics", "list").stdout.splitlines()
    topic = described(run, name)
    assert topic["configs"] == {"retention.ms": "12345"}
    assert len(str(topic["topic_id"])) == 22
    partitions = topic["partitions"]
    assert isinstance(partitions, list) and len(partitions) == 3
    assert {(p["first_offset"], p["next_offset"]) for p in partitions} == {(0, 0)}
    assert partitions[0]["leader"] in partitions[0]["in_sync"] == partitions[0]["replicas"]
    assert run("topics", "delete", name, "--yes").stdout == f"topic {name} deleted\n"
    assert name not in run("topics", "list").stdout


def test_describe_for_people(run: Run, cluster: Cluster) -> None:
    name = cluster.topic(partitions=2, retention_ms=777)
    text = run("topics", "describe", name).stdout
    assert text.startswith(f"topic {name}  id ")
    assert "  retention.ms=777\n" in text
    assert "partition\tleader\treplicas\tin sync\tfirst offset\tnext offset" in text


def test_several_topics_at_once(run: Run, cluster: Cluster) -> None:
    names = [cluster.topic_name() for _ in range(3)]
    assert run("topics", "create", *names, "-p", "1").stdout.count("created") == 3
    assert [
        topic["topic"] for topic in json.loads(run("topics", "describe", *names, "--json").stdout)
    ] == names
    assert run("topics", "delete", "-y", *names).stdout.count("deleted") == 3


def test_what_exists_already(run: Run, topic: str) -> None:
    refused = run("topics", "create", topic, code=2)
    assert refused.stderr == (
        f"tidemill: topic {topic} exists already: take another name, or add --if-not-exists\n"
    )
    assert run("topics", "create", topic, "--if-not-exists").stdout == f"topic {topic} exists\n"


def test_what_does_not_exist(run: Run, cluster: Cluster) -> None:
    name = cluster.topic_name()
    for arguments in (
        ("describe", name),
        ("delete", name, "--yes"),
        ("alter", name, "--set", "retention.ms=1"),
        ("add-partitions", name, "--total", "4"),
    ):
        refused = run("topics", *arguments, code=2)
        assert refused.stderr.startswith(f"tidemill: topic {name} does not exist: ")
        assert refused.stderr.count("\n") == 1


def test_alter_sets_and_unsets(run: Run, cluster: Cluster) -> None:
    name = cluster.topic(retention_ms=1000)
    run("topics", "alter", name, "--set", "segment.bytes=1048576", "-s", "cleanup.policy=compact")
    assert described(run, name)["configs"] == {
        "cleanup.policy": "compact", "retention.ms": "1000", "segment.bytes": "1048576",
    }  # fmt: skip
    run("topics", "alter", name, "--unset", "retention.ms", "--unset", "cleanup.policy", "--json")
    assert described(run, name)["configs"] == {"segment.bytes": "1048576"}


def test_alter_refusals(run: Run, topic: str) -> None:
    assert "nothing to change" in run("topics", "alter", topic, code=2).stderr
    assert (
        "is not of the form KEY=VALUE"
        in run("topics", "alter", topic, "--set", "retention.ms", code=2).stderr
    )
    assert "retention.ms" in run("topics", "alter", topic, "--set", "retention.ms=soon", code=2).stderr


def test_add_partitions(run: Run, cluster: Cluster) -> None:
    name = cluster.topic(partitions=2)
    run("topics", "add-partitions", name, "--total", "5")
    partitions = described(run, name)["partitions"]
    assert isinstance(partitions, list) and len(partitions) == 5
    assert "INVALID_PARTITIONS" in run("topics", "add-partitions", name, "--total", "3", code=2).stderr


def test_invalid_names_and_numbers_are_refused_in_a_sentence(run: Run, cluster: Cluster) -> None:
    assert run("topics", "create", "not/a/name", code=2).stderr.startswith("tidemill: topic not/a/name")
    assert run("topics", "create", cluster.topic_name(), "-p", "0", code=2).stderr.startswith("tidemill: ")


def test_deleting_asks_unless_told_not_to(run: Run, topic: str) -> None:
    assert "add --yes" in run("topics", "delete", topic, code=2).stderr
    assert topic in run("topics", "list").stdout
