"""franz-go, the Go client: its plain producer and consumer (`franz/main.go`, built on first use)."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from kafka_jars import CACHE, require

SOURCE = Path(__file__).parent / "franz"
COUNT = 5000


@pytest.fixture(scope="session")
def franz() -> Path:
    """The program, built with the machine's Go; its modules come through Go's module proxy."""
    program = CACHE / "franz" / "franz"
    environment = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false"}
    done = subprocess.run(
        [require("go"), "build", "-o", str(program), "."],
        cwd=SOURCE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"franz-go could not be built:\n{done.stderr}"
    return program


def run(franz: Path, *arguments: str) -> str:
    done = subprocess.run([franz, *arguments], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"franz {' '.join(arguments)}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_goes_in_comes_out_in_order(cluster: Cluster, franz: Path, codec: str) -> None:
    topic = cluster.topic(partitions=3)
    run(franz, "produce", cluster.bootstrap, topic, str(COUNT), codec)
    lines = [
        line.split() for line in run(franz, "consume", cluster.bootstrap, topic, str(COUNT)).splitlines()
    ]
    assert Counter(int(line[-1]) for line in lines) == Counter(range(COUNT))
    assert all(line[2:] == [f"key-{line[-1]}", "value", line[-1], line[-1]] for line in lines)
    for partition in range(3):
        offsets = [int(line[1]) for line in lines if int(line[0]) == partition]
        numbers = [int(line[-1]) for line in lines if int(line[0]) == partition]
        assert offsets == list(range(len(offsets))), f"partition {partition} has gaps or is out of order"
        assert numbers == sorted(numbers), f"the producer's order was lost in partition {partition}"
