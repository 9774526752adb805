"""Apache Kafka and Tidemill in one room: data directories that each of them wrote, and Kafka's answer to
ApiVersions.

`TIDEMILL_INTEROP_WRITER=kafka` lets Apache Kafka write the directory that otherwise Tidemill writes: a test
of files that fails then is wrong about Kafka. (For tests with clients `TIDEMILL_TEST_PEER=kafka` does the
same.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_ranges import api_ranges
from broker_process import BrokerProcess
from kafka_peer import KafkaPeer
from sample_data import Written, write_sample
from tidemill_peer import TidemillPeer

WRITER = os.environ.get("TIDEMILL_INTEROP_WRITER", "tidemill")


def _write(broker: BrokerProcess) -> Written:
    with broker:
        sample = write_sample(broker.bootstrap, transactions=True)
        return Written(broker.data_directory, sample, api_ranges(broker.bootstrap))


@pytest.fixture(scope="session")
def written_by_kafka(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return _write(KafkaPeer(data_directory=tmp_path_factory.mktemp("written-by-kafka")))


@pytest.fixture(scope="session")
def written_by_us(tmp_path_factory: pytest.TempPathFactory) -> Written:
    kind = KafkaPeer if WRITER == "kafka" else TidemillPeer
    return _write(kind(data_directory=tmp_path_factory.mktemp("written-by-us")))


@pytest.fixture
def data_copy(tmp_path: Path) -> Iterator[Path]:
    """Where a test may put a copy of a data directory that it wants to start a broker on."""
    yield tmp_path / "copy"
