"""`tidemill groups`."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
from clients import CONFLUENT, Sent
from cluster_under_test import Cluster
from command_line import Run
from confluent_kafka import ShareConsumer
from group_members import member
from share_wire import configure_group
from waiting import wait_until

from tidemill.testing import WireClient

START_MS = 1_790_000_000_000
COUNT = 10


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled(cluster: Cluster) -> str:
    """A topic with two partitions of ten messages, a second apart."""
    topic = cluster.topic(partitions=2)
    messages = [Sent(b"%d" % number, timestamp_ms=START_MS + 1000 * number) for number in range(COUNT)]
    for partition in range(2):
        CONFLUENT.produce(cluster.bootstrap, topic, messages, partition=partition)
    return topic


def committed(run: Run, group: str) -> dict[int, int]:
    (described,) = json.loads(run("groups", "describe", group, "--json").stdout)
    return {each["partition"]: each["committed"] for each in described["partitions"]}


def test_a_group_with_a_member(run: Run, cluster: Cluster, filled: str, group: str) -> None:
    with member("confluent-kafka", cluster.bootstrap, group, filled) as only:
        wait_until(lambda: len(only.received) == 2 * COUNT, "all messages")
        wait_until(lambda: committed(run, group) == {0: COUNT, 1: COUNT}, "the offsets")
        listed = json.loads(run("groups", "list", "--json").stdout)
        assert {"group": group, "state": "stable", "type": "classic"} in listed
        (described,) = json.loads(run("groups", "describe", group, "--json").stdout)
        assert (described["state"], described["assignor"], len(described["members"])) == (
            "stable",
            "range",
            1,
        )
        assert [each["lag"] for each in described["partitions"]] == [0, 0]
        refused = run("groups", "delete", group, "--yes", code=2)
        assert "has members: stop them first" in refused.stderr
        refused = run("groups", "reset-offsets", group, "--to-earliest", "--execute", code=2)
        assert "stop" in refused.stderr
    assert run("groups", "delete", group, "--yes").stdout == f"group {group} deleted\n"
    assert group not in run("groups", "list").stdout


def test_members_that_read_nothing_are_shown(run: Run, cluster: Cluster, group: str) -> None:
    topic = cluster.topic(partitions=1)
    with (
        member("confluent-kafka", cluster.bootstrap, group, topic) as one,
        member("confluent-kafka", cluster.bootstrap, group, topic) as other,
    ):

        def members() -> list[tuple[int, str]]:
            """Of a group that has settled."""
            (described,) = json.loads(run("groups", "describe", group, "--json").stdout)
            is_settled = described["state"] == "stable"
            return sorted((each["partitions"], each["member"]) for each in described["members"] if is_settled)

        wait_until(lambda: one.assigned | other.assigned, "a member that reads", 30)
        wait_until(lambda: [count for count, _ in members()] == [0, 1], "a member that reads nothing", 30)
        (_, idle), (_, reading) = members()
        heading, columns, *rows = run("groups", "describe", group).stdout.splitlines()
    assert heading == f"group {group}  state stable  assignor range  members 2  lag 0"
    assert columns == "topic\tpartition\tcommitted\tend\tlag\tmember\tclient\thost"
    assert rows == [
        f"{topic}\t0\t-\t0\t-\t{reading}\trdkafka\t/127.0.0.1",
        f"-\t-\t-\t-\t-\t{idle}\trdkafka\t/127.0.0.1",
    ]


def test_reset_shows_first_and_does_it_then(run: Run, filled: str, group: str) -> None:
    arguments = ("groups", "reset-offsets", group, "--topic", filled, "--to-offset", "4")
    shown = run(*arguments)
    assert f"{filled}\t0\t-\t4" in shown.stdout
    assert shown.stderr == "Nothing was changed; add --execute to do it.\n"
    assert "does not exist" in run("groups", "describe", group, code=2).stderr
    run(*arguments, "--execute")
    assert committed(run, group) == {0: 4, 1: 4}
    text = run("groups", "describe", group).stdout
    assert text.startswith(f"group {group}  state empty  members 0  lag {2 * (COUNT - 4)}\n")


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], COUNT),
        (["--to-offset", "99"], COUNT),
        (["--to-time", str(START_MS + 2500)], 3),
        (["--to-time", str(START_MS + 99_000)], COUNT),
        (["--shift", "-2"], 3),
        (["--shift", "100"], COUNT),
    ],
)
def test_where_to(run: Run, filled: str, group: str, goal: list[str], expected: int) -> None:
    run("groups", "reset-offsets", group, "-t", f"{filled}:1", "--to-offset", "5", "--execute")
    run("groups", "reset-offsets", group, *goal, "--execute")
    assert committed(run, group) == {1: expected}


def test_reset_to_how_long_ago(run: Run, cluster: Cluster, group: str) -> None:
    topic, now_ms = cluster.topic(), time.time_ns() // 1_000_000
    messages = [Sent(b"", timestamp_ms=now_ms - minutes * 60_000) for minutes in (30, 20, 5, 1)]
    CONFLUENT.produce(cluster.bootstrap, topic, messages)
    for ago, expected in (("10m", 2), ("1500s", 1), ("2h", 0), ("10s", 4)):
        run("groups", "reset-offsets", group, "-t", topic, "--to-time", ago, "--execute")
        assert committed(run, group) == {0: expected}, ago


def test_what_is_wrong_with_a_reset(run: Run, filled: str, group: str) -> None:
    assert "say where to" in run("groups", "reset-offsets", group, code=2).stderr
    assert (
        "say where to" in run("groups", "reset-offsets", group, "--to-latest", "--shift", "1", code=2).stderr
    )
    assert "committed nothing" in run("groups", "reset-offsets", group, "--to-latest", code=2).stderr
    place = f"{filled}:7"
    refused = run("groups", "reset-offsets", group, "-t", place, "--to-latest", code=2)
    assert refused.stderr == f"tidemill: topic {filled} has no partition 7\n"
    refused = run("groups", "reset-offsets", group, "-t", filled, "--shift", "1", code=2)
    assert "no committed offset to shift" in refused.stderr


def test_a_group_that_does_not_exist(run: Run, group: str) -> None:
    for command in (("describe",), ("delete", "--yes")):
        refused = run("groups", *command, group, code=2)
        assert refused.stderr == (
            f"tidemill: group {group} does not exist: `tidemill groups list` shows what is there\n"
        )


def test_a_share_group(run: Run, cluster: Cluster, filled: str, group: str) -> None:
    with WireClient(cluster.bootstrap) as connection:
        configure_group(connection, group, share_auto_offset_reset="earliest")
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.subscribe([filled])

    def facts() -> dict[str, Any]:
        consumer.poll(0.1)
        (described,) = json.loads(run("groups", "describe", group, "--json").stdout)
        found: dict[str, Any] = described
        return found

    consumer.poll(0.1)
    wait_until(lambda: {"group": group, "state": "stable", "type": "share"} in listed(run), "the group")
    wait_until(lambda: [each["lag"] for each in facts()["partitions"]] == [0, 0], "both partitions")
    described = facts()
    assert (described["type"], described["assignor"]) == ("share", "simple")
    (only,) = described["members"]
    assert [each["members"] for each in described["partitions"]] == [only["member"]] * 2
    assert [each["start"] for each in described["partitions"]] == [COUNT, COUNT], "all is done with"
    text = run("groups", "describe", group).stdout
    assert text.startswith(f"share group {group}  state stable  assignor simple  members 1  lag 0\n")
    assert "has members: stop them first" in run("groups", "delete", group, "--yes", code=2).stderr
    consumer.close()
    run("groups", "delete", group, "--yes")
    assert group not in run("groups", "list").stdout
    assert "does not exist" in run("groups", "describe", group, code=2).stderr


def listed(run: Run) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run("groups", "list", "--json").stdout)
    return found
