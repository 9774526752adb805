"""Fixtures of all tests that need a broker. `cluster` is the one source of addresses for tests with clients.

Some tests own their broker instead, by `own_broker` or a broker of `tidemill.testing`, because they could not share it
or would not find what they look for on another peer:

    tests/faults                           kill, stop, flood or damage it, and read its memory and descriptors
    compat: what survives the broker       groups, offsets, states and transactions over a kill and a restart
    compat: short locks and time-outs      settings of the broker that other tests would stumble over
    compat/test_telemetry.py               Kafka offers these calls only with a plug-in
    compat/test_testing_package.py         the brokers for other people's tests are what is tested
    cli/test_start.py, `start` elsewhere   the start itself is tested
    unit/api/test_gaps.py                  what is refused here and not by Kafka
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_under_test import PEER, Cluster, running_cluster

from tidemill.testing import SubprocessBroker

OwnBroker = Callable[..., SubprocessBroker]
ROOT = Path(__file__).resolve().parents[1]

# Brokers are started a few hundred times: they must not compile their sources each time, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "pycache")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster under test, chosen by TIDEMILL_TEST_PEER; shared, so tests keep to their own topics."""
    with running_cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A fresh topic with one partition."""
    return cluster.topic()


@pytest.fixture
def own_broker() -> Iterator[OwnBroker]:
    """A function that starts a Tidemill broker for this test alone, to restart, to kill or to set up specially."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> SubprocessBroker:
            return stack.enter_context(SubprocessBroker(**options))

        yield start


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against another peer only the tests on the shared cluster say anything."""
    if PEER == "tidemill":
        return
    kept = [item for item in items if "cluster" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
