"""Fixtures of the command line's tests."""

from __future__ import annotations

from functools import partial

import pytest
from cluster_under_test import Cluster
from command_line import Run, run_program


@pytest.fixture
def run(cluster: Cluster) -> Run:
    """Run a command against the cluster: `run("topics", "list").stdout`."""
    return partial(run_program, bootstrap=cluster.bootstrap)
