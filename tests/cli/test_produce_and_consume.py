"""`tidemill produce` and `tidemill consume`, together."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from command_line import PROGRAM, Run, environment


def lines(run: Run, *arguments: str) -> list[str]:
    return run("consume", *arguments).stdout.splitlines()


def messages(run: Run, *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(run, *arguments, "--json")]


def test_lines_there_and_back(run: Run, topic: str) -> None:
    sent = run("produce", topic, stdin="first\nsecond\n\nlast without newline")
    assert sent.stdout == ""
    assert sent.stderr.startswith(f"sent 4 messages to {topic} in ")
    assert lines(run, topic) == ["first", "second", "", "last without newline"]
    assert lines(run, topic, "--from-beginning") == ["first", "second", "", "last without newline"]


@pytest.mark.parametrize(
    ("compression", "acks"),
    [("none", "0"), ("gzip", "1"), ("snappy", "all"), ("lz4", "all"), ("zstd", "all")],
)
def test_all_codecs_and_acks(run: Run, topic: str, compression: str, acks: str) -> None:
    numbers = [str(n) for n in range(2_000)]
    run("produce", topic, "--compression", compression, "--acks", acks, "-q", stdin="\n".join(numbers))
    assert lines(run, topic) == numbers


def test_keys_headers_and_tombstones(run: Run, topic: str) -> None:
    text = "a:1\nb:2:3\na:\n"
    options = ("--key-separator", ":", "-H", "trace=7", "-H", "empty=", "--empty-is-null", "--json")
    report = run("produce", topic, *options, stdin=text)
    assert json.loads(report.stdout) == {
        "topic": topic, "sent": 3, "partitions": [{"partition": 0, "first_offset": 0, "last_offset": 2}],
    }  # fmt: skip
    found = messages(run, topic)
    assert [(m["key"], m["value"]) for m in found] == [("a", "1"), ("b", "2:3"), ("a", None)]
    assert all(m["headers"] == [["trace", "7"], ["empty", ""]] for m in found)
    assert [(m["topic"], m["partition"], m["offset"]) for m in found] == [(topic, 0, n) for n in range(3)]
    assert lines(run, topic, "--key-separator", "=") == ["a=1", "b=2:3", "a=null"]
    full = lines(run, topic, "--format", "full")
    assert full[0].startswith(f"{topic}-0@0  20")
    assert full[2].endswith("key=a  [trace=7, empty=]  null")


def test_one_key_for_all_keeps_them_in_one_partition(run: Run, cluster: Cluster) -> None:
    topic = cluster.topic(partitions=4)
    report = run("produce", topic, "--key", "same", "--json", stdin="\n".join(map(str, range(100))))
    assert len(json.loads(report.stdout)["partitions"]) == 1
    run("produce", topic, "--partition", "2", stdin="here")
    assert "here" in lines(run, topic, "--partition", "2")


def test_json_lines_copy_a_topic(run: Run, cluster: Cluster) -> None:
    source, target = cluster.topic(partitions=2), cluster.topic(partitions=2)
    by_hand = [
        '{"value": "text", "key": "k", "headers": {"h": "x", "n": null}, "partition": 1, "timestamp": 1700000000000}',
        '{"value": {"an": ["object"]}, "partition": 0}',
        '{"value": {"base64": "//79"}, "partition": 0}',
        '{"value": null, "key": "gone", "partition": 0}',
    ]
    run("produce", source, "--json-lines", stdin="\n".join(by_hand))
    copied = run("consume", source, "--json").stdout
    run("produce", target, "--json-lines", stdin=copied)
    found = sorted(messages(run, target), key=lambda m: (m["partition"], m["offset"]))
    assert [m["value"] for m in found] == ['{"an":["object"]}', {"base64": "//79"}, None, "text"]
    assert found[3] == {
        "topic": target, "partition": 1, "offset": 0, "timestamp": 1700000000000,
        "key": "k", "value": "text", "headers": [["h", "x"], ["n", None]],
    }  # fmt: skip
    original = sorted(messages(run, source), key=lambda m: (m["partition"], m["offset"]))
    assert [m | {"topic": target} for m in original] == found


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "is no JSON"),
        ("[1]", 'at least a "value"'),
        ('{"key": "k"}', 'at least a "value"'),
        ('{"value": "v", "partition": "x"}', '"partition" must be a whole number'),
        ('{"value": "v", "headers": 5}', '"headers" must be'),
        ('{"value": {"base64": "?"}}', "is no base64"),
    ],
)
def test_a_wrong_json_line_is_named(run: Run, topic: str, line: str, complaint: str) -> None:
    refused = run("produce", topic, "--json-lines", stdin=f'{{"value": "good"}}\n{line}\n', code=2)
    assert refused.stderr.startswith("tidemill: line 2 of stdin: ")
    assert complaint in refused.stderr


def test_files_by_line_and_whole(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\nb\n")
    binary = bytes(range(256)) * 10
    (tmp_path / "two").write_bytes(binary)
    run("produce", topic, str(tmp_path / "one"), "-", stdin="from stdin")
    assert lines(run, topic) == ["a", "b", "from stdin"]
    run("produce", topic, str(tmp_path / "two"), "--whole")
    raw = run("consume", topic, "--offset", "3", "--format", "raw").stdout
    assert raw.encode(errors="surrogateescape") == binary
    assert messages(run, topic, "-n", "1")[0]["value"] == {"base64": base64.b64encode(binary).decode()}
    missing = run("produce", topic, str(tmp_path / "none"), code=2)
    assert missing.stderr == f"tidemill: cannot read {tmp_path / 'none'}: No such file or directory\n"


def test_where_to_begin_and_to_stop(run: Run, topic: str) -> None:
    hand = [json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n * 60_000}) for n in range(10)]
    run("produce", topic, "--json-lines", stdin="\n".join(hand))
    assert lines(run, topic, "--offset", "7") == ["7", "8", "9"]
    assert lines(run, topic, "-o", "10") == []
    assert lines(run, topic, "--tail", "2") == ["8", "9"]
    assert lines(run, topic, "-n", "0") == []
    assert lines(run, topic, "-n", "50", "--max", "3") == ["0", "1", "2"]
    assert lines(run, topic, "--max", "0") == []
    assert lines(run, topic, "--from-time", str(1_700_000_000_000 + 8 * 60_000 - 1)) == ["8", "9"]
    assert lines(run, topic, "--from-time", "2023-11-14T22:20:20+00:00") == ["7", "8", "9"]
    assert lines(run, topic, "--from-time", "5m") == []
    for wrong, complaint in (
        (("-o", "99"), "take one from 0 to 10"),
        (("--from-time", "soon"), "is no time"),
    ):
        assert complaint in run("consume", topic, *wrong, code=2).stderr


def test_the_tail_of_many_partitions_is_ordered_by_time(run: Run, cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    hand = [
        json.dumps({"value": str(n), "partition": n % 3, "timestamp": 1_700_000_000_000 + n})
        for n in range(30)
    ]
    run("produce", topic, "--json-lines", stdin="\n".join(hand))
    assert lines(run, topic, "--tail", "4") == ["26", "27", "28", "29"]
    assert sorted(lines(run, topic, "-p", "0", "-p", "2"), key=int) == [
        str(n) for n in range(30) if n % 3 != 1
    ]


def test_following_prints_what_comes_later(run: Run, cluster: Cluster, topic: str) -> None:
    run("produce", topic, stdin="old\nolder")
    follower = subprocess.Popen(
        [*PROGRAM, "consume", topic, "--follow", "--tail", "1", "--max", "3"],
        stdout=subprocess.PIPE, text=True, env=environment(cluster.bootstrap),
    )  # fmt: skip
    with follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "older\n"
        run("produce", topic, stdin="new\nnewer\nnewest")
        assert follower.stdout.read() == "new\nnewer\n"
    assert follower.returncode == 0


def test_ctrl_c_ends_following_quietly(cluster: Cluster, topic: str) -> None:
    follower = subprocess.Popen(
        [*PROGRAM, "consume", topic, "--follow"], stderr=subprocess.PIPE, text=True, env=environment(cluster.bootstrap),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job has it ignored
    )  # fmt: skip
    with follower:
        time.sleep(2)
        follower.send_signal(signal.SIGINT)
        assert follower.communicate(timeout=20) == (None, "")
    assert follower.returncode == 130


def test_the_reader_of_a_pipe_may_go_away(run: Run, cluster: Cluster, topic: str) -> None:
    run("produce", topic, stdin="x" * 100 + "\n" + ("y" * 1000 + "\n") * 2_000)
    command = " ".join([*PROGRAM, "consume", topic]) + " | head -n 1"
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment(cluster.bootstrap), timeout=60
    )
    assert (result.stdout, result.stderr) == ("x" * 100 + "\n", "")


def test_a_missing_topic_or_partition(run: Run, cluster: Cluster, topic: str) -> None:
    name = cluster.topic_name()
    assert run("consume", name, code=2).stderr.startswith(f"tidemill: topic {name} does not exist: ")
    assert "its partitions are 0 to 0" in run("consume", topic, "-p", "4", code=2).stderr
    assert run("produce", topic, "-p", "4", "--timeout", "2", stdin="x", code=2).stderr.startswith(
        "tidemill: topic"
    )


def test_a_message_too_large_is_refused_in_a_sentence(run: Run, cluster: Cluster) -> None:
    topic = cluster.topic(max_message_bytes=1000)
    refused = run("produce", topic, stdin="x" * 5_000, code=2)
    assert "refuses a message of this size" in refused.stderr
    assert f"topics alter {topic}" in refused.stderr
    assert lines(run, topic) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "t", "--offset", "1", "--tail", "2"),
        ("produce", "t", "--json-lines", "--whole"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--header", "x"),
        ("produce", "t", "-X", "x"),
        ("consume", "t", "--max", "-1"),
        ("consume", "t", "--format", "xml"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, code=2).stderr


def test_properties_reach_librdkafka(run: Run, topic: str) -> None:
    run("produce", topic, "-X", "linger.ms=0", "-q", stdin="x")
    assert "No such configuration property" in run("consume", topic, "-X", "no.such=1", code=2).stderr
