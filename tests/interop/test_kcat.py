"""kcat from Debian: produce, consume, list."""

from __future__ import annotations

import json
import subprocess

import pytest
from cluster_under_test import Cluster
from kafka_jars import require

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def kcat(cluster: Cluster, *arguments: str, standard_input: str = "") -> str:
    command = [require("kcat"), "-b", cluster.bootstrap, *arguments]
    done = subprocess.run(
        command, input=standard_input, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_what_goes_in_comes_out(cluster: Cluster, codec: str) -> None:
    topic = cluster.topic()
    lines = [f"key-{number}:value {number}" for number in range(200)]
    kcat(
        cluster, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, standard_input="\n".join(lines) + "\n"
    )
    text = kcat(cluster, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%k:%s\n")
    assert text.splitlines() == lines


def test_headers_offsets_and_the_tail(cluster: Cluster) -> None:
    topic = cluster.topic()
    for number in range(10):
        kcat(cluster, "-P", "-t", topic, "-H", f"number={number}", standard_input=f"value {number}")
    text = kcat(cluster, "-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q", "-f", "%o %h %s\n")
    assert text.splitlines() == [f"{number} number={number} value {number}" for number in (7, 8, 9)]


def test_listing(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=4)
    listing = json.loads(kcat(cluster, "-L", "-J", "-t", topic))
    (described,) = listing["topics"]
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2, 3]
    assert [broker["name"] for broker in listing["brokers"]] == [cluster.bootstrap]


def test_offset_of_a_time(cluster: Cluster) -> None:
    topic = cluster.topic()
    kcat(cluster, "-P", "-t", topic, standard_input="one\ntwo\n")
    assert f"{topic} [0] offset 0" in kcat(cluster, "-Q", "-t", f"{topic}:0:1000")
